"""A form to rebuild the state of a stream from its output or its inputs."""

from datetime import UTC, datetime

from airflow.sdk import DAG, Param
from penstock_commands import RebuildStream

from penstock.catalog import partial_catalog
from penstock.model.output_mode import KeyedState

rebuildable = sorted(
    name for name, stream in partial_catalog()[0].streams.items() if isinstance(stream.output_mode, KeyedState)
)

with DAG(
    "rebuild_streams",
    description="rebuild the state of a stream from its topics",
    schedule=None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["penstock", "operate"],
    params={
        "stream": Param(
            rebuildable[0] if rebuildable else "",
            type="string",
            enum=rebuildable or [""],
            description="It must be stopped, and its folds must declare how their state is restored.",
        ),
    },
    doc_md="For a stream whose checkpoint is lost, or cannot be read by the present code. Stop it with "
    "`operate_streams`, run this, and start it: it continues after its last batch. The log reports the keys and bytes "
    "of the state before and after.",
) as dag:
    RebuildStream(task_id="rebuild")
