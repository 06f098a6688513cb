"""One DAG for each declared backfill, to run any interval by form, or a range of days by Airflow's backfill."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from penstock.airflow.assets import lineage
from penstock.airflow.commands import RunBackfill
from penstock.airflow.dags.base import penstock_dag
from penstock.airflow.timetables import EachInterval, OnDemandIntervals
from penstock.catalog import partial_catalog
from penstock.model.backfill import Backfill

DOC = """
### Backfill `{name}`
`{source}` -> topic `{target}`. {description}

A run writes one interval: the interval of the form, or its data interval. It continues where an earlier run of the
same interval ended. At the end it verifies the topic, and **fails** if rows of the source are missing there. For a
range: `airflow backfill create --dag-id backfill_{name} --from-date 2026-01-01 --to-date 2026-01-31
--reprocess-behavior completed`. {scheduled}
"""
SCHEDULED = (
    "It also runs at the end of each interval, and makes up for those that it missed, such as while it was paused."
)
NOT_SCHEDULED = "It has no schedule, and runs only when it is triggered."


def make_dag(backfill: Backfill, archives: list[str]) -> DAG:
    """The DAG of one backfill. archives: those that it can read."""
    source = backfill.reads[0].name
    timetable = EachInterval if backfill.scheduled else OnDemandIntervals
    with penstock_dag(
        f"backfill_{backfill.name}",
        description=backfill.description or f"{source} into {backfill.target_topic}",
        schedule=timetable(backfill.cron, timezone="UTC"),
        # A run for a day before the start date would have no task, and succeed.
        start_date=datetime(1970, 1, 1, tzinfo=UTC),
        max_active_runs=1,
        tags=["penstock", "backfill"],
        # An hour that is not closed yet may be closed later.
        default_args={"retries": 3, "retry_delay": timedelta(minutes=10)},
        params={
            "source": Param(
                source, type="string", enum=archives, description="The archive, table or collection that is read."
            ),
            "begin": Param(
                None,
                type=["null", "string"],
                format="date-time",
                description="Begin of the interval in event time; empty: that of the data interval.",
            ),
            "end": Param(
                None,
                type=["null", "string"],
                format="date-time",
                description="End of the interval, exclusive; empty: that of the data interval.",
            ),
            "target": Param(
                backfill.target_topic, type="string", minLength=1, description="The topic that is written."
            ),
            "rate": Param(
                backfill.max_rate, type="integer", minimum=0, description="Limit in records per second; 0: none."
            ),
            "dry_run": Param(False, type="boolean", title="dry run", description="Only report what would be written."),
            "timestamps": Param(
                "original",
                type="string",
                enum=["original", "now"],
                description="Timestamps of records that are copied.",
            ),
            "unclosed": Param(
                False,
                type="boolean",
                description="Also read hours that are not closed, although more records may arrive.",
            ),
            "again": Param(False, type="boolean", description="Write again what an earlier run has written."),
        },
        doc_md=DOC.format(
            name=backfill.name,
            source=source,
            target=backfill.target_topic,
            description=backfill.description,
            scheduled=SCHEDULED if backfill.scheduled else NOT_SCHEDULED,
        ),
    ) as dag:
        RunBackfill(
            task_id="run",
            backfill=backfill.name,
            full_history=backfill.full_history,
            # max_active_runs does not limit the runs of Airflow's backfill.
            max_active_tis_per_dag=1,
            **lineage(partial_catalog()[0], [backfill]),
        )
    return dag


def dags() -> Iterator[DAG]:
    """The DAG of each backfill of the project that can be run."""
    catalog = partial_catalog()[0]
    for backfill in catalog.backfills.values():
        if backfill.runnable:
            archives = sorted(catalog.archives) if backfill.copies_records else [backfill.reads[0].name]
            yield make_dag(backfill, archives)
