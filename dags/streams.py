"""One DAG per declared app: keeps its driver running while any of its streams is wanted."""

from datetime import UTC, datetime

from airflow.sdk import DAG
from penstock_operators import SuperviseStreams

from penstock.catalog import Supervised, apps, partial_catalog

DOC = """
### App `{app}`
In it: {streams}.

Each run starts or adopts the app's driver and waits beside it; it ends when it had to act, or after an hour, and the
next run adopts. So a run that ends says nothing about the driver. A run **fails** when a stream fails for a minute or
is blocked, with the reason in its log, and at the end of its hour if one still does; the driver goes on. Marking a run
failed ends the driver, and the next run starts another. To stop or release streams use `operate_streams`; to pause this
DAG leaves the driver alone.
"""


def supervising(app: str, streams: list[Supervised]) -> DAG:
    """The DAG that keeps one app's driver."""
    with DAG(
        f"streams_{app}",
        description=f"keeps the driver of app {app} running",
        schedule="@continuous",
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # Runs that fail one after the other say that the supervision itself is broken, and then it stops and shows it.
        # While the api-server is away each fails in about 10 s: so many leave it hours. One in which a stream fails
        # takes an hour: six weeks.
        max_consecutive_failed_dag_runs=1000,
        is_paused_upon_creation=False,
        tags=["penstock", "streams"],
        doc_md=DOC.format(app=app, streams=", ".join(f"`{s.name}`" for s in streams) or "nothing that can be read"),
    ) as dag:
        SuperviseStreams(task_id="supervise", app=app)
    return dag


globals().update({f"streams_{app}": supervising(app, streams) for app, streams in apps(*partial_catalog()).items()})
