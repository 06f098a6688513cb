"""How the steps of a long command are shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.cli import report
from penstock.cli.report import Steps
from tests.support.wait import wait_until


def test_a_step_without_a_terminal_prints_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "BETWEEN_LINES", 0.01)
    out = io.StringIO()
    with Steps(Console(file=out)).step("Starting Airflow") as step:
        step.say("waiting for the scheduler")
        wait_until(lambda: "waiting for the scheduler" in out.getvalue())
        step.say("waiting for the triggerer")
        wait_until(lambda: "waiting for the triggerer" in out.getvalue())
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert lines[:3] == ["Starting Airflow …", "waiting for the scheduler", "waiting for the triggerer"]
    assert lines[3].startswith("✓ Starting Airflow: waiting for the triggerer")


def test_a_short_step_is_two_lines() -> None:
    out = io.StringIO()
    with Steps(Console(file=out)).step("Starting Kafka") as step:
        step.say("it runs already")
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["Starting", "✓"]
