"""Sends heartbeats, which close windows if no records arrive."""

from datetime import UTC, datetime

from airflow.sdk import DAG
from penstock_operators import SendHeartbeats

with DAG(
    "heartbeat",
    description="sends heartbeats",
    schedule="@continuous",
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["penstock", "heartbeat"],
    doc_md="A trigger sends the heartbeats while a run waits. Each hour, and after a release, a new run takes over.",
) as dag:
    SendHeartbeats(task_id="beat")
