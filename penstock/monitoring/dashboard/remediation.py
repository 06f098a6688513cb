"""What to do in each state: the sentences of docs/operations.md, for where that file cannot be opened."""

from __future__ import annotations

REMEDIES = {
    "running": "",
    "idle": "",
    "starting": "wait some seconds",
    "loading": "wait",
    "draining": "wait; killed after `PENSTOCK_DRAIN_TIMEOUT`",
    "queued": "give the cluster more workers, or the app less (`PENSTOCK_APP_CORES`, `PENSTOCK_EXECUTOR_MEMORY`)",
    "waiting": "see that its store runs, and that the driver reaches it",
    "failing": "read *last error*",
    "blocked": "read *last error*: it says what is in doubt and which command goes on",
    "hung": "nothing: it is killed and replaced",
    "down": "look at `streams_<app>` in Airflow: is it paused? does it back off?",
    "unknown": "is the control database reachable?",
    "stopped": "",
}
