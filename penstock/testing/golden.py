"""Golden cases: timed records are sent to a real broker and through declared streams; the output is compared.

A case is a JSON object. `streams`: names of streams, each reading what the one before it wrote. `topics`: the topics
that are sent to, with their partitions. `steps`, each with any of: `send`, records (`topic`, `value`, and `key`,
`partition`, `timestamp` in epoch ms); `beat`, the clock time of a heartbeat, epoch ms; `restart`, true if the streams
are stopped before the records are sent, and started from their checkpoints behind them; `expect`, all records that must
then be new on the last stream's first output, or on the one that `output` names, `key` and `value`; and of the first
stream: `dead`, the dead letters so far, `value` and `reason`; `late`, how many were late; `kept`, those kept, `value`
and `late_ms`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import catalog
from penstock.model.stream import Stream
from penstock.model.topic import Topic
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.testing.run import running
from penstock.testing.topics import Record, create, read, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.query.stream_run import StreamRun


def cases(folder: Path) -> list[Case]:
    """The cases of a folder, by name of their files."""
    return [Case(path.stem, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


@dataclass(frozen=True)
class Case:
    """A golden case. name: of its file; given: its JSON, as the module describes."""

    name: str
    given: Mapping[str, Any]

    def check(self, streams: Sequence[Stream], spark: SparkSession, bootstrap: str, folder: Path) -> None:
        """Run the case.

        Args:
            streams: The declared streams, in the order of the case.
            spark: A session.
            bootstrap: A broker that has none of the topics.
            folder: An empty folder for the checkpoints.

        Raises:
            AssertionError: A step had another result.
        """
        streams = [replace(stream, enabled=True) for stream in streams]
        first, last = streams[0], streams[-1]
        target = self.given.get("output") or last.output_names[0]
        # The records have old timestamps: the broker must not delete them by retention.
        inputs = [Topic(name, partitions=n, config={"retention.ms": "-1"}) for name, n in self.given["topics"].items()]
        declared = catalog.build(streams).topics.values()
        create(bootstrap, *inputs, *(topic for topic in declared if topic.name not in self.given["topics"]))
        clock = [0.0]
        beater = HeartbeatSender(catalog.build(streams).heartbeat_topics(), None, bootstrap, clock=lambda: clock[0])
        next_offsets: dict[int, int] = {}
        late, dead = [0] * len(streams), 0
        with ExitStack() as stack:
            stack.callback(beater.close)
            started = stack.enter_context(ExitStack())

            def start() -> list[StreamRun]:
                return [started.enter_context(running(stream, spark, bootstrap, folder)) for stream in streams]

            runs = start()
            for number, step in enumerate(self.given["steps"], 1):
                label = f"{self.name}, step {number}"
                if restart := step.get("restart", False):
                    started.close()
                    late = [before + run.figures.late for before, run in zip(late, runs, strict=True)]
                    dead += runs[0].figures.dead
                send(bootstrap, [Record(**{"key": None, **record}) for record in step.get("send", ())])
                if "beat" in step:
                    clock[0] = step["beat"] / 1000
                    beater.run_once()
                if restart:
                    runs = start()
                for run in runs:
                    run.process_all_available()
                new = read(bootstrap, target, next_offsets)
                _same(new, step["expect"], label)
                next_offsets.update({r.partition: r.offset + 1 for r in new})
                self._check_dead_letters_and_late(step, first, bootstrap, label)
                late_so_far = [before + run.figures.late for before, run in zip(late, runs, strict=True)]
                _equal(late_so_far, [step.get("late", 0), *[0] * (len(runs) - 1)], f"{label}, late records")
                if "dead" in step:
                    _equal(dead + runs[0].figures.dead, len(step["dead"]), f"{label}, dead letters counted")

    def _check_dead_letters_and_late(self, step: Mapping[str, Any], first: Stream, bootstrap: str, label: str) -> None:
        if "kept" in step:
            late_records = read(bootstrap, first.late_topic)
            actual = sorted((r.value or "", dict(r.headers)["penstock.late-ms"]) for r in late_records)
            _equal(actual, sorted((k["value"], str(k["late_ms"])) for k in step["kept"]), f"{label}, late records kept")
        if "dead" in step:
            dead = read(bootstrap, Topic(next(iter(self.given["topics"]))).dead_letters)
            actual = sorted((r.value or "", dict(r.headers)["penstock.reason"]) for r in dead)
            _equal(actual, sorted((d["value"] or "", d["reason"]) for d in step["dead"]), f"{label}, dead letters")


def _equal(actual: object, expected: object, label: str) -> None:
    if actual != expected:
        raise AssertionError(f"{label}: got {actual}, not {expected}")


def _same(records: list[Record], expected: list[dict[str, Any]], label: str) -> None:
    actual = {(r.key, r.value) for r in records}
    if len(actual) != len(records):
        raise AssertionError(f"{label}: one record came twice: {records}")
    missing = [row for row in expected if not any(k == row["key"] and _close(v, row["value"]) for k, v in actual)]
    if missing or len(records) != len(expected):
        raise AssertionError(f"{label}: missing {missing}, got {sorted(actual, key=str)}")


def _close(actual: str | None, expected: str | None) -> bool:
    """Equal, but numbers in JSON to twelve digits: the order of additions is not defined."""
    if actual == expected or actual is None or expected is None:
        return actual == expected
    actual_json, expected_json = json.loads(actual), json.loads(expected)
    if not isinstance(actual_json, dict):
        return bool(actual_json == expected_json)
    return list(actual_json) == list(expected_json) and all(
        math.isclose(v, expected_json[k], rel_tol=1e-12) if isinstance(v, float) else v == expected_json[k]
        for k, v in actual_json.items()
    )
