"""Reports invalid files below jobs/ and sql/ in Airflow's list of import errors. It has no DAG."""

from penstock.catalog import partial_catalog
from penstock.errors import DeclarationError

_, errors = partial_catalog()
if errors:
    raise DeclarationError(
        "these files are invalid; their app cannot be released, other apps are not affected",
        got="\n".join(["", *map(str, errors)]),
    )
