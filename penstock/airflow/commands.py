"""Operators that run a command of Penstock in a process of its own, whose lines go to the task's log.

A process that outlives its task is harmless: what it does is fenced or locked, and the next process continues where it
was.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from penstock.airflow.assets import DeclaresLineage
from penstock.airflow.operators import request_of, task_key

if TYPE_CHECKING:
    from airflow.sdk import Context


COMMAND = ("-m", "penstock")


class CommandOperator(DeclaresLineage):
    """A task that fails without retry if the command does, unless a retry may help."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._process: subprocess.Popen[str] | None = None

    def run_command(self, arguments: Sequence[str]) -> str:
        """Run a command to its end. Its log records keep their levels in the task's log.

        Returns:
            The last line that it printed.
        """
        from penstock.cli.backfills import TEMPORARY_FAILURE
        from penstock.settings import settings
        from penstock.supervision import launch

        last_line = ""
        with subprocess.Popen(
            [sys.executable, *COMMAND, *arguments], cwd=settings().project, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **launch.connection_variables(), "PENSTOCK_LOG_JSON": "true"},
        ) as self._process:  # fmt: skip
            assert self._process.stdout is not None
            for line in map(str.rstrip, self._process.stdout):
                level, text = _record(line) or (logging.INFO, line)
                self.log.log(level, "%s", text)
                if text is line:
                    last_line = line or last_line
        code = self._process.returncode
        # A process that ends itself at a signal, to report it, returns 128 and the signal's number.
        ended_by = -code if code < 0 else code - 128
        if code == TEMPORARY_FAILURE or ended_by > 0:
            raise AirflowException(f"it is retried: {last_line or f'ended by signal {ended_by}'}")
        if code:
            raise AirflowFailException(last_line)
        return last_line

    def on_kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            # With its child processes, such as Java.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)


class RunBackfill(CommandOperator):
    """Runs a backfill. Params: source, begin, end, target, rate, dry_run, timestamps, unclosed, again.

    full_history: whether it has no begin.
    """

    ui_color = "#e6dcf2"

    def __init__(self, *, backfill: str, full_history: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.backfill, self.full_history = backfill, full_history

    def execute(self, context: Context) -> str:
        from penstock.control import Actor, connect

        options = self.options(context)
        params, run = context["params"], context["dag_run"]
        # A run of a schedule has no user.
        if run.triggering_user_name and not params["dry_run"]:
            begin, end = self._interval(context)
            detail = f"{begin or ''}..{end} -> {params['target']} (run {run.run_id})"
            actor = Actor(run.triggering_user_name, "airflow")
            connect().record(actor, "backfill", self.backfill, detail, request_of(context))
        return self.run_command(["backfill", "run", self.backfill, *options])

    def _interval(self, context: Context) -> tuple[str | None, str]:
        """Begin and end as the command accepts them; the begin is None for the full history."""
        params, run = context["params"], context["dag_run"]
        begin, end = params["begin"] or run.data_interval_start, params["end"] or run.data_interval_end
        # A run that is triggered by the API may have no logical date, and then no interval.
        if end is None or (begin is None and not self.full_history):
            raise AirflowFailException(
                "the run has no data interval; hint: trigger it with a logical date, or give begin and end"
            )
        return None if self.full_history else _minute(begin), _minute(end)

    def options(self, context: Context) -> list[str]:
        """The options of the command by the form and the data interval."""
        params = context["params"]
        begin, end = self._interval(context)
        options = ["--to", end, "--target", params["target"], "--source", params["source"]]
        options += ["--rate", str(params["rate"]), "--timestamps", params["timestamps"], "--owner", task_key(context)]
        options += ["--request", request_of(context)]
        options += ["--from", begin] if begin else []
        return options + [f"--{name.replace('_', '-')}" for name in ("dry_run", "unclosed", "again") if params[name]]


class RebuildStream(CommandOperator):
    """Rebuilds the state of a stream from its topics, as `penstock streams rebuild` does. Params: stream."""

    ui_color = "#e6dcf2"

    def execute(self, context: Context) -> str:
        run = context["dag_run"]
        note = f"by {run.triggering_user_name or 'unknown'} (run {run.run_id})"
        return self.run_command(["streams", "rebuild", str(context["params"]["stream"]), "--note", note])


def _record(line: str) -> tuple[int, str] | None:
    """Level and text of a record of Penstock's log, as `penstock.logs.Json` writes it."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
        level = logging.getLevelNamesMapping()[record["level"]]
        return level, "\n".join([record["message"], *([record["exception"]] if "exception" in record else [])])
    except (ValueError, KeyError, TypeError):
        return None


def _minute(time: Any) -> str:
    """A time as the command accepts it."""
    at = datetime.fromisoformat(time) if isinstance(time, str) else time
    in_utc = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    return in_utc.replace(tzinfo=None).isoformat(timespec="seconds")
