"""The form by which a person has a stream's state made anew of its own output, or of its inputs."""

from datetime import UTC, datetime

from airflow.sdk import DAG, Param
from penstock_commands import RebuildStream

from penstock.catalog import partial_catalog
from penstock.model.output_mode import KeyedState

rebuilt = sorted(
    name for name, stream in partial_catalog()[0].streams.items() if isinstance(stream.output_mode, KeyedState)
)

with DAG(
    "rebuild_streams",
    description="make a stream's state anew of what its topics hold",
    schedule=None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["penstock", "operate"],
    params={
        "stream": Param(
            rebuilt[0] if rebuilt else "",
            type="string",
            enum=rebuilt or [""],
            description="It must be stopped, and its fold must say how its state is made anew.",
        ),
    },
    doc_md="For a stream whose checkpoint is lost, or cannot be read by the code as it is. Stop it with "
    "`operate_streams`, run this, start it again: it goes on behind its last batch. The log says how many keys and "
    "bytes the state had and has.",
) as dag:
    RebuildStream(task_id="rebuild")
