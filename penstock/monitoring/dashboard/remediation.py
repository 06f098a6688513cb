"""What to do in each state; the same sentences as in docs/operations.md."""

from __future__ import annotations

REMEDIES = {
    "running": "",
    "idle": "",
    "starting": "wait some seconds",
    "loading": "wait",
    "draining": "wait; killed after `PENSTOCK_DRAIN_TIMEOUT`",
    "queued": "add workers to the cluster, or let the app use less (`PENSTOCK_APP_CORES`, `PENSTOCK_EXECUTOR_MEMORY`)",
    "waiting": "check that its store runs and that the driver can reach it",
    "failing": "read *last error*",
    "blocked": "read *last error*: it says which command continues",
    "hung": "nothing: the driver is killed and replaced",
    "down": "check in Airflow whether the DAG `streams_<app>` is paused, or waits between attempts",
    "unknown": "check that the control database is reachable",
    "stopped": "",
}
