"""What the DAGs of Penstock have in common."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from airflow.sdk import DAG, Param

# They begin with the present and run as soon as Airflow sees them; an argument of a DAG's own takes precedence. However
# many runs fail, as while the API server is down, Airflow must pause none of them: nothing would resume it.
penstock_dag = partial(
    DAG,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=False,
    max_consecutive_failed_dag_runs=0,
)


def note_param() -> Param:
    """The field of a form for why somebody does it."""
    return Param("", type=["null", "string"], maxLength=500, description="Reason, recorded with the action.")
