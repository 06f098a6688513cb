"""One DAG for each declared capture: an hourly check of its health, and a form to poll, reconcile or reset it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from airflow.sdk import DAG, Param

from penstock.airflow.assets import lineage
from penstock.airflow.captures import OperateCapture
from penstock.airflow.dags.base import note_param, penstock_dag
from penstock.catalog import partial_catalog
from penstock.model.capture import Capture

DOC = """
### Capture `{name}`
`{connection}` ({dialect}) -> topic `{topic}`, key {key}, cursor `{cursor}`.

The driver of the app `captures` polls the table; `streams_captures` keeps it running. A run of this DAG checks the
capture, **fails if the capture fails**, and warns if it is behind. Trigger it to poll now, to compare table and topic
(`reconcile`), to read all rows again (`snapshot`), or to continue after a change of the statement or another decision
(`continue`). The run ends when that is done. While it waits, it checks the capture each hour, and **fails if the
capture fails**; what was asked for is then done once it works.
"""


def make_dag(capture: Capture) -> DAG:
    """The DAG of one capture."""
    with penstock_dag(
        f"capture_{capture.name}",
        description=f"capture {capture.name}: health, reconcile, snapshot",
        schedule="@hourly",
        max_active_runs=1,
        tags=["penstock", "capture"],
        params={
            "action": Param(
                "check",
                type="string",
                enum=["check", "poll", "reconcile", "snapshot", "continue"],
                description="`snapshot` reads all rows again; `continue` accepts what the capture waits for, such as "
                "the removal of many rows.",
            ),
            "note": note_param(),
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
        # The retries are for errors of Airflow: on a busy machine it may take a task that was deferred only briefly for
        # a killed one. An error of the capture fails without retries.
        OperateCapture(
            task_id="operate", capture=capture.name, retries=2, retry_delay=timedelta(seconds=10),
            **lineage(partial_catalog()[0], [capture]),
        )  # fmt: skip
    return dag


def dags() -> Iterator[DAG]:
    """The DAG of each capture of the project."""
    for capture in partial_catalog()[0].captures.values():
        yield make_dag(capture)
