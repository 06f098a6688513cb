"""The DAG that emits the asset events of closed partitions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from airflow.sdk import DAG

from penstock.airflow.dags.base import penstock_dag
from penstock.airflow.partitions import EmitPartitions, assets_by_name
from penstock.catalog import partial_catalog

DOC = """
### Partitions
{names}.

A run waits until a partition is closed, emits one asset event for it, and ends; the next run asks Airflow whether it
has recorded the event, and emits it again if not. Schedule a DAG on the asset with `PartitionedAssetTimetable`, and it
runs once for each partition.
"""


def dags() -> Iterator[DAG]:
    """The DAG, if anything declares partitions, or is a capture."""
    if not (assets := assets_by_name(partial_catalog()[0])):
        return
    names = "; ".join(f"`{name}`: {', '.join(f'`{a.name}`' for a in of)}" for name, of in assets.items())
    with penstock_dag(
        "partitions",
        description="emits asset events of closed partitions",
        schedule="@continuous",
        max_active_runs=1,
        tags=["penstock", "partitions"],
        doc_md=DOC.format(names=names),
    ) as dag:
        # The retries are for errors of Airflow; each try asks what the one before has emitted.
        EmitPartitions(
            task_id="emit", outlets=[a for of in assets.values() for a in of], retries=3,
            retry_delay=timedelta(seconds=10), max_active_tis_per_dag=1,
        )  # fmt: skip
    yield dag
