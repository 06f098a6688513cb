"""What the operator page asks of a sink: its statement explained, and its dead letters given to its store once more.

By processes of their own: who asks is Airflow's api-server, where neither Spark nor a project's code has a place.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.errors import SinkError
from penstock.supervision import launch

# Seconds. Both begin with the start of a JVM.
EXPLAIN_TIMEOUT, REPLAY_TIMEOUT = 180.0, 220.0
LIMIT, SHOWN = 50, 400
"""Records that are named one by one, and characters that are told of each."""
SMALL = {"PENSTOCK_SPARK_MASTER": "local[1]", "PENSTOCK_DRIVER_MEMORY": "512m"}


@dataclass(frozen=True)
class Replayed:
    """counts: how many records came to what; left: the first that can be replayed again, with the reason."""

    counts: dict[str, int]
    left: list[dict[str, str]]


def explained(name: str) -> str:
    """What `penstock sinks explain` prints. SinkError if it cannot."""
    done = _asked(("explain", name), EXPLAIN_TIMEOUT, SMALL)
    if done.returncode:
        raise _failed(("explain", name), done)
    return done.stdout.decode(errors="replace")


def replayed(name: str) -> Replayed:
    """What became of all that a sink put aside, as `penstock sinks replay` does it. SinkError if its store is away, or
    for anything else that keeps it from being tried."""
    command = ("replay", name, "--all", "--json")
    done = _asked(command, REPLAY_TIMEOUT, {}, "replay again: what was written by then is not written twice")
    try:
        results: list[dict[str, Any]] = orjson.loads(done.stdout)
    except ValueError:
        raise _failed(command, done) from None
    counts = Counter(one["said"].partition(": ")[0] for one in results)
    unfinished = [{"place": one["place"], "said": one["said"][:SHOWN]} for one in results if not one["ended"]]
    return Replayed(dict(counts), unfinished[:LIMIT])


def _asked(
    command: tuple[str, ...], timeout: float, more: Mapping[str, str], hint: str = ""
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [sys.executable, "-m", "penstock", "sinks", *command],
            env={**launch.environment(), **more},
            capture_output=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as e:
        raise SinkError(f"{_said(command)} has not ended", got=f"nothing within {timeout:g} s", hint=hint) from e


def _failed(command: tuple[str, ...], done: subprocess.CompletedProcess[bytes]) -> SinkError:
    # Before it stands what Java says of itself.
    error = done.stderr.decode(errors="replace").rpartition("error: ")[2].strip()
    return SinkError(f"{_said(command)} failed", got=error[-2000:] or f"exit code {done.returncode}")


def _said(command: tuple[str, ...]) -> str:
    return f"`penstock sinks {' '.join(command)}`"
