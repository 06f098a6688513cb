"""One DAG for each declared app: keeps its driver running while the desired state of any of its streams is on."""

from __future__ import annotations

from collections.abc import Iterator

from airflow.sdk import DAG

from penstock.airflow.assets import lineage
from penstock.airflow.dags.base import penstock_dag
from penstock.airflow.operators import SuperviseStreams
from penstock.catalog import Supervised, apps, partial_catalog

DOC = """
### App `{app}`
Streams: {streams}.

Each run launches or adopts the app's driver and watches it. The run ends when it had to act, or after an hour, and
the next run adopts the driver. A run **fails** if a stream fails for a minute or is blocked, with the reason in its
log, and at the end of its hour if a stream still fails; the driver continues. If you mark a run as failed, the driver
is ended and the next run launches another. To stop streams trigger `operate_streams`, to release the app
`release_streams`. Pausing this DAG does not affect the driver.
"""


def make_dag(app: str, streams: list[Supervised]) -> DAG:
    """The DAG of one app."""
    with penstock_dag(
        f"streams_{app}",
        description=f"keeps the driver of app {app} running",
        schedule="@continuous",
        max_active_runs=1,
        tags=["penstock", "streams"],
        doc_md=DOC.format(app=app, streams=", ".join(f"`{s.name}`" for s in streams) or "none that can be read"),
    ) as dag:
        SuperviseStreams(task_id="supervise", app=app, **lineage(partial_catalog()[0], streams))
    return dag


def dags() -> Iterator[DAG]:
    """The DAG of each app of the project."""
    for app, streams in apps(*partial_catalog()).items():
        yield make_dag(app, streams)
