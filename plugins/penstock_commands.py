"""Operators that run a command of Penstock in a process of its own, whose lines go to the task's log.

A process that outlives its task holds nobody up: what it does is fenced or locked, and whoever does the same next goes
on where it was.
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

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from penstock_operators import task_key

if TYPE_CHECKING:
    from airflow.sdk import Context


COMMAND = ("-m", "penstock")


class CommandOperator(BaseOperator):
    """Its task fails for good if the command does, and is tried again if that may help."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._process: subprocess.Popen[str] | None = None

    def run_command(self, arguments: Sequence[str]) -> str:
        """Run it to its end; the last line that it printed. What it logs comes into the task's log as what it is."""
        from penstock.cli.backfills import TEMPORARY_FAILURE
        from penstock.settings import settings

        last_line = ""
        with subprocess.Popen(
            [sys.executable, *COMMAND, *arguments], cwd=settings().project, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PENSTOCK_LOG_JSON": "true"},
        ) as self._process:  # fmt: skip
            assert self._process.stdout is not None
            for line in map(str.rstrip, self._process.stdout):
                level, text = _record(line) or (logging.INFO, line)
                self.log.log(level, "%s", text)
                if text is line:
                    last_line = line or last_line
        code = self._process.returncode
        if code == TEMPORARY_FAILURE or code < 0:
            raise AirflowException(f"it is tried again: {last_line or f'ended by signal {-code}'}")
        if code:
            raise AirflowFailException(last_line)
        return last_line

    def on_kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            # Java below it too.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)


class RunBackfill(CommandOperator):
    """Runs a backfill. Params: source, begin, end, target, rate, dry_run, timestamps, unclosed, again.

    whole: whether it has no begin.
    """

    ui_color = "#e6dcf2"

    def __init__(self, *, backfill: str, whole: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.backfill, self.whole = backfill, whole

    def execute(self, context: Context) -> str:
        return self.run_command(["backfill", "run", self.backfill, *self.asked(context)])

    def asked(self, context: Context) -> list[str]:
        """The words for what the form and the data interval say."""
        params, run = context["params"], context["dag_run"]
        begin, end = params["begin"] or run.data_interval_start, params["end"] or run.data_interval_end
        # Who triggers by the API need not give a logical date, and there is no interval without one.
        if end is None or (begin is None and not self.whole):
            raise AirflowFailException(
                "the run has no data interval; hint: trigger it with a logical date, or say begin and end"
            )
        words = ["--to", _minute(end), "--target", params["target"], "--source", params["source"]]
        words += ["--rate", str(params["rate"]), "--timestamps", params["timestamps"], "--owner", task_key(context)]
        # Each try of a run is the same request.
        words += ["--request", run.run_id]
        words += [] if self.whole else ["--from", _minute(begin)]
        return words + [f"--{name.replace('_', '-')}" for name in ("dry_run", "unclosed", "again") if params[name]]


class RebuildStream(CommandOperator):
    """Makes a stream's state anew of what its topics hold, as `penstock streams rebuild` does. Params: stream."""

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
    """A time as the command takes it."""
    at = datetime.fromisoformat(time) if isinstance(time, str) else time
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
