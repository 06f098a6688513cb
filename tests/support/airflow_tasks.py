"""Tasks and triggers of Airflow, run without Airflow."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest


def context(run: str = "r1", user: str | None = None, cleared: int = 0, **params: Any) -> Any:
    ti = SimpleNamespace(dag_id="streams_chaos", run_id=run, task_id="supervise", try_number=1)
    dag_run = SimpleNamespace(run_id=run, triggering_user_name=user, clear_number=cleared)
    return {"ti": ti, "params": params, "dag_run": dag_run}


async def first(trigger: Any, seconds: float = 10.0) -> Any:
    async with asyncio.timeout(seconds):
        async for event in trigger.run():
            return event.payload
    return None


def operator(monkeypatch: pytest.MonkeyPatch) -> Any:
    from penstock.airflow.operators import SuperviseStreams

    made = SuperviseStreams(task_id="supervise", app="chaos")
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(made, "_command", lambda _, incarnation: [*sleep, incarnation])
    return made
