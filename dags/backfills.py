"""One DAG per declared backfill: a form for any interval, and Airflow's own backfill for ranges of days."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, CronDataIntervalTimetable, Param
from penstock_commands import RunBackfill
from penstock_timetables import OnDemandIntervals

from penstock.catalog import partial_catalog
from penstock.model.backfill import Backfill

DOC = """
### Backfill `{name}`
`{source}` -> topic `{target}`. {description}

A run brings one interval, its data interval unless the form says another, and goes on where an earlier run of the same
interval was; what was done is not done twice. It ends with a verification, and **fails** if the topic does not hold
what the source gives. For a range: `airflow backfill create --dag-id backfill_{name} --from-date 2026-01-01 --to-date
2026-01-31 --reprocess-behavior completed`. {scheduled}
"""
BY_ITSELF = "It also runs by itself at the end of each interval."
ASKED = "It never runs by itself: it is declared to run when somebody asks."


def filling(backfill: Backfill, archives: list[str]) -> DAG:
    """The DAG of one backfill. archives: those that may be its source."""
    source = backfill.reads[0].name
    timetable = CronDataIntervalTimetable if backfill.scheduled else OnDemandIntervals
    with DAG(
        f"backfill_{backfill.name}",
        description=backfill.description or f"{source} into {backfill.target_topic}",
        schedule=timetable(backfill.cron, timezone="UTC"),
        # Of a day before it a run that is triggered would have no task, and succeed.
        start_date=datetime(1970, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=["penstock", "backfill"],
        # What is not there yet, closed hours above all, may be later.
        default_args={"retries": 3, "retry_delay": timedelta(minutes=10)},
        params={
            "source": Param(source, type="string", enum=archives, description="What is read."),
            "begin": Param(
                None, type=["null", "string"], format="date-time", description="Event time; empty: the data interval's."
            ),
            "end": Param(
                None, type=["null", "string"], format="date-time", description="Not part of it; empty: the interval's."
            ),
            "target": Param(backfill.target_topic, type="string", minLength=1, description="The topic that is filled."),
            "rate": Param(
                backfill.max_rate, type="integer", minimum=0, description="Records a second at most; 0 for no bound."
            ),
            "dry_run": Param(False, type="boolean", title="dry run", description="Only say what would be written."),
            "timestamps": Param(
                "original", type="string", enum=["original", "now"], description="Of records written as they are."
            ),
            "unclosed": Param(False, type="boolean", description="Take what is there, though more may come."),
            "again": Param(False, type="boolean", description="Write once more what was written before."),
        },
        doc_md=DOC.format(
            name=backfill.name, source=source, target=backfill.target_topic, description=backfill.description,
            scheduled=BY_ITSELF if backfill.scheduled else ASKED,
        ),
    ) as dag:  # fmt: skip
        RunBackfill(
            task_id="run",
            backfill=backfill.name,
            whole=backfill.full_history,
            # Airflow's own backfills have a bound of their own.
            max_active_tis_per_dag=1,
        )
    return dag


catalog = partial_catalog()[0]
for one in catalog.backfills.values():
    if one.runnable:
        own = one.reads[0].name
        others = sorted(catalog.archives) if one.copies_records else [own]
        globals()[f"backfill_{one.name}"] = filling(one, others)
