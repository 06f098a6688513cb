"""The form by which a person starts, stops and releases streams."""

from datetime import UTC, datetime

from airflow.sdk import DAG, Param
from penstock_operators import OperateStreams

from penstock.catalog import apps, partial_catalog

catalog, wrong = partial_catalog()
targets = [f"app {app}" for app in apps(catalog, wrong)] + [f"stream {name}" for name in sorted(catalog.supervised)]

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
            description="`stop` lets a batch end first. `release` starts the whole app anew from the code as it is.",
        ),
        "target": Param(
            targets[0] if targets else "",
            type="string",
            enum=targets or [""],
            description="An app with all its streams, or one stream. Releasing a stream releases its app.",
        ),
        "note": Param("", type=["null", "string"], maxLength=500, description="Why; kept with the action."),
    },
    doc_md="Trigger it to start, stop or release streams. Who triggered it is recorded with the note.",
) as dag:
    OperateStreams(task_id="operate")
