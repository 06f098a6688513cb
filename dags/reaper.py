"""Ends what nobody owns."""

from datetime import UTC, datetime

from airflow.sdk import DAG
from penstock_operators import EndOrphanedDrivers

with DAG(
    "reaper",
    description="ends drivers that nobody owns",
    schedule="*/5 * * * *",
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["penstock"],
    doc_md="Every five minutes: drivers whose app is not declared, not wanted, or has another driver are ended.",
) as dag:
    EndOrphanedDrivers(task_id="reap")
