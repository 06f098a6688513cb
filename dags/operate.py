"""A form to start, stop and release streams."""

from datetime import UTC, datetime

from airflow.sdk import DAG, Param
from penstock_operators import OperateStreams

from penstock.catalog import apps, partial_catalog

catalog, errors = partial_catalog()
targets = [f"app {app}" for app in apps(catalog, errors)] + [f"stream {name}" for name in sorted(catalog.supervised)]

with DAG(
    "operate_streams",
    description="start, stop or release streams",
    schedule=None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    is_paused_upon_creation=False,
    tags=["penstock", "operate"],
    params={
        "action": Param(
            "start",
            type="string",
            enum=["start", "stop", "release"],
            description="`stop` waits for the end of the batch. `release` restarts the whole app with the present "
            "code.",
        ),
        "target": Param(
            targets[0] if targets else "",
            type="string",
            enum=targets or [""],
            description="An app with all its streams, or one stream. Releasing a stream releases its app.",
        ),
        "note": Param("", type=["null", "string"], maxLength=500, description="Reason, recorded with the action."),
    },
    doc_md="Trigger it to start, stop or release streams. The user is recorded with the note.",
) as dag:
    OperateStreams(task_id="operate")
