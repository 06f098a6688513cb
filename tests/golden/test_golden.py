"""Golden cases: timed records into a real broker, through the declared stream, against what must come out.

A case names its streams, each reading what the one before it wrote, and the topics of the first with their partitions.
Each step sends records, or a heartbeat at a clock time, and gives all that must then be new on the last stream's output
(`expect`), and of the first stream: the dead letters so far (`dead`), how many were late (`late`), those kept (`kept`).
"""

from __future__ import annotations

import json
from collections.abc import Container
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.local.parts import Broker
from penstock.streams import Stream, Topic
from penstock.streams.beats import Beater
from tests.streams import Record, cases, create, read, running, send

HERE = Path(__file__).parent
CASES = [
    pytest.param(case, id=f"{system}-{case['name']}")
    for system in ("quality", "metrics")
    for case in cases(HERE / system)
]


def close_enough(found: str | None, wanted: str | None) -> bool:
    """Equal, numbers in JSON to twelve digits: the order of additions is not part of the promise."""
    if found == wanted or found is None or wanted is None:
        return found == wanted
    one, other = json.loads(found), json.loads(wanted)
    if not isinstance(one, dict):
        return bool(one == other)
    return list(one) == list(other) and all(
        v == pytest.approx(other[k], rel=1e-12) if isinstance(v, float) else v == other[k] for k, v in one.items()
    )


def check(found: list[Record], wanted: list[dict[str, Any]], where: str) -> None:
    got = {(r.key, r.value) for r in found}
    assert len(got) == len(found), f"{where}: one record came twice: {found}"
    missing = [w for w in wanted if not any(k == w["key"] and close_enough(v, w["value"]) for k, v in got)]
    assert not missing, f"{where}: missing {missing}, got {sorted(got, key=str)}"
    assert len(found) == len(wanted), f"{where}: more than expected: {sorted(got, key=str)}"


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_case(case: dict[str, Any], spark: SparkSession, fresh_broker: Broker, tmp_path: Path) -> None:
    broker = fresh_broker
    streams = [catalog.load().stream(name) for name in case["streams"]]
    first, last = streams[0], streams[-1]
    # The records are years old by their own time: the broker must not take them for expired.
    inputs = [Topic(name, partitions=n, config={"retention.ms": "-1"}) for name, n in case["topics"].items()]
    create(broker.bootstrap, *inputs, *outputs(streams, case["topics"]))
    beater = Beater(catalog.build(streams).windowed(), None, broker.bootstrap, clock=lambda: now)
    now, seen = 0.0, dict[int, int]()
    with ExitStack() as stack:
        runs = [stack.enter_context(running(s, spark, broker.bootstrap, tmp_path)) for s in streams]
        for number, step in enumerate(case["steps"], 1):
            where = f"step {number}"
            send(broker.bootstrap, [Record(key=None, **record) for record in step.get("send", ())])
            if "beat" in step:
                now = step["beat"] / 1000
                beater.run_once()
            for run in runs:
                run.settle()
            found = read(broker.bootstrap, last.output.name, seen)
            check(found, step["expect"], where)
            seen.update({r.partition: r.offset + 1 for r in found})
            assert runs[0].figures.late == step.get("late", 0), where
            assert not any(run.figures.late for run in runs[1:]), where
            if "kept" in step:
                kept = read(broker.bootstrap, first.late_topic)
                got = sorted((r.value or "", dict(r.headers)["penstock.late-ms"]) for r in kept)
                assert got == sorted((k["value"], str(k["late_ms"])) for k in step["kept"]), where
            if "dead" in step:
                dead = read(broker.bootstrap, f"{next(iter(case['topics']))}-dead-letter")
                got = sorted((r.value or "", dict(r.headers)["penstock.reason"]) for r in dead)
                assert got == sorted((d["value"] or "", d["reason"]) for d in step["dead"]), where
                assert runs[0].figures.dead == len(step["dead"])
    beater.close()


def outputs(streams: list[Stream], inputs: Container[str]) -> list[Topic]:
    return [topic for topic in catalog.build(streams).topics.values() if topic.name not in inputs]
