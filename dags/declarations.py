"""Shows in Airflow's list of import errors what cannot be read under jobs/ and sql/. It makes no DAG."""

from penstock.catalog import partial_catalog
from penstock.errors import DeclarationError

_, wrong = partial_catalog()
if wrong:
    raise DeclarationError(
        "these files cost their own app its next release, and no other app anything",
        got="\n".join(["", *map(str, wrong)]),
    )
