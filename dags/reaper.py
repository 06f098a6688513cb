"""Ends orphaned drivers."""

from datetime import UTC, datetime

from airflow.sdk import DAG
from penstock_operators import EndOrphanedDrivers

with DAG(
    "reaper",
    description="ends orphaned drivers",
    schedule="*/5 * * * *",
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["penstock"],
    doc_md="Every five minutes it ends drivers whose app is not declared, has no stream that is on, or has another"
    " driver.",
) as dag:
    EndOrphanedDrivers(task_id="reap")
