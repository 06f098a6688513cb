"""Golden cases: timed records into a real broker, through declared streams, against what must come out.

A case is a JSON object. `streams`: names of streams, each reading what the one before it wrote. `topics`: the topics
that are sent to, with their partitions. `steps`, each with any of: `send`, records (`topic`, `value`, and `key`,
`partition`, `timestamp` in epoch ms); `beat`, the clock time of a heartbeat, epoch ms; `expect`, all records that must
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


def cases(folder: Path) -> list[Case]:
    """The cases of a folder, by name of their files."""
    return [Case(path.stem, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


@dataclass(frozen=True)
class Case:
    """name: of its file; given: its JSON, see the module."""

    name: str
    given: Mapping[str, Any]

    def check(self, streams: Sequence[Stream], spark: SparkSession, bootstrap: str, folder: Path) -> None:
        """Run it; AssertionError with the step and what was found if it comes out otherwise.

        bootstrap: a broker without these topics. folder: an empty one, for the checkpoints.
        """
        streams = [replace(stream, enabled=True) for stream in streams]
        first, last = streams[0], streams[-1]
        target = self.given.get("output") or last.output_names[0]
        # The records are years old by their own time: the broker must not take them for expired.
        inputs = [Topic(name, partitions=n, config={"retention.ms": "-1"}) for name, n in self.given["topics"].items()]
        declared = catalog.build(streams).topics.values()
        create(bootstrap, *inputs, *(topic for topic in declared if topic.name not in self.given["topics"]))
        clock = [0.0]
        beater = HeartbeatSender(catalog.build(streams).heartbeat_topics(), None, bootstrap, clock=lambda: clock[0])
        seen: dict[int, int] = {}
        with ExitStack() as stack:
            stack.callback(beater.close)
            runs = [stack.enter_context(running(stream, spark, bootstrap, folder)) for stream in streams]
            for number, step in enumerate(self.given["steps"], 1):
                where = f"{self.name}, step {number}"
                send(bootstrap, [Record(**{"key": None, **record}) for record in step.get("send", ())])
                if "beat" in step:
                    clock[0] = step["beat"] / 1000
                    beater.run_once()
                for run in runs:
                    run.process_all_available()
                found = read(bootstrap, target, seen)
                _same(found, step["expect"], where)
                seen.update({r.partition: r.offset + 1 for r in found})
                self._beside(step, first, bootstrap, where)
                late = [run.figures.late for run in runs]
                _equal(late, [step.get("late", 0), *[0] * (len(runs) - 1)], f"{where}, late records")
                if "dead" in step:
                    _equal(runs[0].figures.dead, len(step["dead"]), f"{where}, dead letters counted")

    def _beside(self, step: Mapping[str, Any], first: Stream, bootstrap: str, where: str) -> None:
        if "kept" in step:
            kept = read(bootstrap, first.late_topic)
            got = sorted((r.value or "", dict(r.headers)["penstock.late-ms"]) for r in kept)
            _equal(got, sorted((k["value"], str(k["late_ms"])) for k in step["kept"]), f"{where}, late records kept")
        if "dead" in step:
            dead = read(bootstrap, Topic(next(iter(self.given["topics"]))).dead_letters)
            got = sorted((r.value or "", dict(r.headers)["penstock.reason"]) for r in dead)
            _equal(got, sorted((d["value"] or "", d["reason"]) for d in step["dead"]), f"{where}, dead letters")


def _equal(found: object, wanted: object, where: str) -> None:
    if found != wanted:
        raise AssertionError(f"{where}: got {found}, not {wanted}")


def _same(found: list[Record], wanted: list[dict[str, Any]], where: str) -> None:
    got = {(r.key, r.value) for r in found}
    if len(got) != len(found):
        raise AssertionError(f"{where}: one record came twice: {found}")
    missing = [w for w in wanted if not any(k == w["key"] and _close(v, w["value"]) for k, v in got)]
    if missing or len(found) != len(wanted):
        raise AssertionError(f"{where}: missing {missing}, got {sorted(got, key=str)}")


def _close(found: str | None, wanted: str | None) -> bool:
    """Equal, numbers in JSON to twelve digits: the order of additions is not part of the output mode."""
    if found == wanted or found is None or wanted is None:
        return found == wanted
    one, other = json.loads(found), json.loads(wanted)
    if not isinstance(one, dict):
        return bool(one == other)
    return list(one) == list(other) and all(
        math.isclose(v, other[k], rel_tol=1e-12) if isinstance(v, float) else v == other[k] for k, v in one.items()
    )
