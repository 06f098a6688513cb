"""Actions of the operator page that run a command: preview a stream, explain a sink, replay its dead letters.

Each has a process of its own, as Airflow's api-server must import neither Spark nor a project's code.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.errors import CommandError
from penstock.supervision import launch

# Seconds, including the start of a JVM.
JVM_TIMEOUT, REPLAY_TIMEOUT = 180.0, 220.0
LIMIT, MAX_TEXT = 50, 400
"""Records that are listed, and characters of each."""
PREVIEW_SECONDS = 5
RECORDED = "--recorded"
SMALL = {"PENSTOCK_SPARK_MASTER": "local[1]", "PENSTOCK_DRIVER_MEMORY": "512m"}


@dataclass(frozen=True)
class Replayed:
    """counts: records by result; left: the first records that can be replayed again, with the reason."""

    counts: dict[str, int]
    left: list[dict[str, str]]


@dataclass(frozen=True)
class Preview:
    """facts: as `penstock streams explain --json`; rows: the first rows with output, key and value; totals: counts."""

    facts: dict[str, Any]
    rows: list[dict[str, Any]]
    totals: dict[str, Any]


def previewed(stream: str) -> Preview:
    """What `penstock streams preview` shows of a stream. CommandError if it cannot."""
    options = ("--json", "--for", f"{PREVIEW_SECONDS}s", "--rows", str(LIMIT))
    command = ("streams", "preview", stream, *options)
    done = _run(command, JVM_TIMEOUT, SMALL)
    if done.returncode:
        raise _failed(command, done)
    facts, *rows, totals = (orjson.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{"))
    for row in rows:
        row |= {name: row[name] and row[name][:MAX_TEXT] for name in ("key", "value")}
    return Preview(facts, rows, totals)


def explained(sink: str) -> str:
    """What `penstock sinks explain` prints. CommandError if it cannot."""
    command = ("sinks", "explain", sink)
    done = _run(command, JVM_TIMEOUT, SMALL)
    if done.returncode:
        raise _failed(command, done)
    return done.stdout.decode(errors="replace")


def replayed(sink: str, places: Sequence[str] = (), *, dry: bool = False) -> Replayed:
    """The result of `penstock sinks replay NAME` for some places, TOPIC[PARTITION]@OFFSET, or for all dead letters; of
    a dry run, what it would be. The caller records it in the audit log.

    Raises:
        CommandError: The command fails.
    """
    chosen = _places(places) or ("--all",)
    command = ("sinks", "replay", sink, *chosen, "--dry-run" if dry else RECORDED, "--json")
    done = _run(command, REPLAY_TIMEOUT, {}, "replay again: records that were written are not written twice")
    try:
        results: list[dict[str, Any]] = orjson.loads(done.stdout)
    except ValueError:
        raise _failed(command, done) from None
    counts = Counter(one["said"].partition(": ")[0] for one in results)
    unfinished = [{"place": one["place"], "said": one["said"][:MAX_TEXT]} for one in results if not one["ended"]]
    return Replayed(dict(counts), unfinished[:LIMIT])


def letters_replayed(topic: str, places: Sequence[str], *, dry: bool = False) -> Replayed:
    """The result of `penstock dead-letters replay TOPIC` for some places, TOPIC[PARTITION]@OFFSET; of a dry run, what
    it would be. The caller records it in the audit log.

    Raises:
        CommandError: The command fails.
    """
    command = ("dead-letters", "replay", topic, *_places(places), "--dry-run" if dry else RECORDED, "--json")
    done = _run(command, REPLAY_TIMEOUT, {}, "replay again: records that were sent are not sent twice")
    try:
        results: list[dict[str, Any]] = orjson.loads(done.stdout)
    except ValueError:
        raise _failed(command, done) from None
    outcomes = [
        "refused" if one["refused"] else "discarded before" if one["discarded"] else "replayed before" if one["done"]
        else "would be sent" if dry else "sent" for one in results
    ]  # fmt: skip
    refused = [{"place": one["place"], "said": one["refused"][:MAX_TEXT]} for one in results if one["refused"]]
    return Replayed(dict(Counter(outcomes)), refused[:LIMIT])


def _places(places: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for place in places for word in ("--place", place))


def _run(
    command: tuple[str, ...], timeout: float, more: Mapping[str, str], hint: str = ""
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [sys.executable, "-m", "penstock", *command],
            env={**launch.environment(), **launch.connection_variables(), **more},
            capture_output=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as e:
        raise CommandError(
            f"{_command_text(command)} has not ended", got=f"nothing within {timeout:g} s", hint=hint
        ) from e


def _failed(command: tuple[str, ...], done: subprocess.CompletedProcess[bytes]) -> CommandError:
    # Java prints its own lines before.
    error = done.stderr.decode(errors="replace").rpartition("error: ")[2].strip()
    return CommandError(f"{_command_text(command)} failed", got=error[-2000:] or f"exit code {done.returncode}")


def _command_text(command: tuple[str, ...]) -> str:
    return f"`penstock {' '.join(word for word in command if word != RECORDED)}`"
