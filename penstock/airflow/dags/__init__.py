"""The DAGs of a project, built from what it declares. A file in the folder of DAGs needs two lines:

from penstock.airflow.dags import declare_dags

globals().update(declare_dags())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from penstock.airflow.dags import backfills, captures, operations, partitions, streams
from penstock.catalog import partial_catalog
from penstock.errors import DeclarationError
from penstock.settings import settings

if TYPE_CHECKING:
    from airflow.sdk import DAG

Kind = Literal[
    "streams",
    "captures",
    "backfills",
    "partitions",
    "archives",
    "operate",
    "release",
    "replace",
    "rebuild",
    "heartbeat",
    "reaper",
]
BUILDERS = {
    "streams": streams.dags,
    "captures": captures.dags,
    "backfills": backfills.dags,
    "partitions": partitions.dags,
    "archives": operations.archives,
    "operate": operations.operate,
    "release": operations.release,
    "replace": operations.replace,
    "rebuild": operations.rebuild,
    "heartbeat": operations.heartbeat,
    "reaper": operations.reaper,
}


def declare_dags(*kinds: Kind) -> dict[str, DAG]:
    """The DAGs of the project by id. Only `heartbeat` and `reaper` do not read its declarations.

    Invalid files are left out, each with the DAGs that only it declares; `check_declarations` reports them.

    Args:
        kinds: The kinds of DAGs; without any, all of them.
    """
    return {dag.dag_id: dag for kind in kinds or get_args(Kind) for dag in BUILDERS[kind]()}


def lacks_dags() -> bool:
    """Whether the project has no folder of DAGs of its own, so that the provider's example DAGs are for it."""
    project = settings().project
    return any((project / name).is_dir() for name in ("jobs", "sql")) and not (project / "dags").is_dir()


def check_declarations() -> None:
    """Report invalid files in Airflow's list of import errors.

    Call it in a file of its own that has no DAG: Airflow takes no DAG from a file with an error.

    Raises:
        DeclarationError: Files are invalid.
    """
    _, errors = partial_catalog()
    if errors:
        raise DeclarationError(
            "these files are invalid; their app cannot be released, other apps are not affected",
            got="\n".join(["", *map(str, errors)]),
        )
