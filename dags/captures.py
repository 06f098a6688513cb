"""One DAG per declared capture: an hourly look at its health, and a form to run, compare or reset it."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param
from penstock_operators import OperateCapture

from penstock.catalog import partial_catalog
from penstock.model.capture import Capture

DOC = """
### Capture `{name}`
`{connection}` ({dialect}) -> topic `{topic}`, key {key}, cursor `{cursor}`.

The polling itself is done by the driver of app `captures`, many times a minute; `streams_captures` keeps that running.
A run of this DAG looks at the capture and **fails if it fails**, and warns if it is behind. Triggered by hand it also
asks the capture to poll now, to compare all of table and topic (`reconcile`), to read all rows anew (`snapshot`), or to
go on from the old cursor after its statement was changed, or with whatever else waits for a decision (`continue`), and
ends when that is done.
"""


def operating(capture: Capture) -> DAG:
    """The DAG of one capture."""
    with DAG(
        f"capture_{capture.name}",
        description=f"capture {capture.name}: health, reconcile, snapshot",
        schedule="@hourly",
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=["penstock", "capture"],
        params={
            "action": Param(
                "check",
                type="string",
                enum=["check", "poll", "reconcile", "snapshot", "continue"],
                description="`snapshot` reads all rows again; `continue` accepts what it waits for, as a changed "
                "statement.",
            ),
            "note": Param("", type=["null", "string"], maxLength=500, description="Why; kept with the action."),
        },
        doc_md=DOC.format(
            name=capture.name,
            connection=capture.connection,
            dialect=capture.dialect,
            topic=capture.topic.name,
            key=", ".join(f"`{column}`" for column in capture.key),
            cursor=capture.cursor,
        ),
    ) as dag:
        # What is wrong with the capture fails at once. This is for Airflow itself: on a busy machine it may take a task
        # that was deferred for a moment only, and runs again, for one that was killed.
        OperateCapture(task_id="operate", capture=capture.name, retries=2, retry_delay=timedelta(seconds=10))
    return dag


globals().update({f"capture_{capture.name}": operating(capture) for capture in partial_catalog()[0].captures.values()})
