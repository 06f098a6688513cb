"""The streams of presence with their checkpoints lost, again and again: what they tell is what the rules say of all of
the past."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from jobs.presence import walk_ins
from penstock.devstack.servers.kafka import Broker
from penstock.engine.operations import rebuild
from penstock.engine.operations.rebuild import RebuildResult
from penstock.engine.session import session_for
from penstock.errors import Blocked, PenstockError
from penstock.kafka.admin import admin
from penstock.model.topic import COMMITS
from penstock.streams import Stream, Topic
from penstock.testing import Record, create, latest, read, running, send
from tests.support import presence_model as model
from tests.support.sql_streams import project_stream

pytestmark = pytest.mark.integration

Row = dict[str, Any]
Told = Callable[[str], object]
HISTORIES = [model.histories(seed) for seed in range(60)]
# Of one threshold each, so that histories fit together.
THRESHOLDS = {"1": -70, "2": -60}
PROBES = [p for h in HISTORIES if h.thresholds == THRESHOLDS for p in h.probes]
EVENTS = [e for h in HISTORIES for e in h.events]


@dataclass(frozen=True)
class Case:
    """given: the records of a stream, in the order of their times; told: what it has told; wanted: by the rules."""

    stream: Stream
    given: Sequence[tuple[str, Mapping[str, Any]]]
    told: Told
    wanted: object


def rows(bootstrap: str, topic: str) -> list[Row]:
    found = (json.loads(r.value) for r in read(bootstrap, topic) if r.value)
    return sorted((row for row in found if "heartbeat" not in row), key=json.dumps)


def in_time(*topics: tuple[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    return sorted(((name, row) for name, given in topics for row in given), key=lambda one: one[1]["timestamp"])


def walks() -> Case:
    wanted = sorted(model.walk_ins(PROBES, THRESHOLDS), key=json.dumps)
    return Case(walk_ins.STREAM, in_time(("probes", PROBES)), lambda b: rows(b, "walk-ins"), wanted)


def contacts() -> Case:
    def newest(bootstrap: str) -> dict[str, Row]:
        return {key or "": json.loads(value or "") for key, value in latest(read(bootstrap, "device-contacts")).items()}

    # Out of order: what is older comes behind the rebuild too.
    given = [("crm-events" if n % 3 else "crm-events-backfill", event) for n, event in enumerate(EVENTS)]
    return Case(project_stream("device-contacts"), given, newest, model.device_contacts(EVENTS))


def names() -> Case:
    walked = [w for h in HISTORIES for w in model.walk_ins(h.probes, h.thresholds)]
    events = sorted(EVENTS, key=lambda e: e["timestamp"])
    known = []
    for device in sorted({e["device"] for e in events}):
        mine = [e for e in events if e["device"] == device]
        for at in sorted({e["timestamp"] for e in mine}):
            known.append(model._contact(device, [e for e in mine if e["timestamp"] <= at]))
    wanted = sorted(model.enriched(walked, events), key=json.dumps)
    given = in_time(("device-contacts", known), ("walk-ins", walked))
    return Case(project_stream("enriched-walk-ins"), given, lambda b: rows(b, "enriched-walk-ins"), wanted)


def records(given: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Record]:
    return [Record(topic, row["device"], json.dumps(row), 0) for topic, row in given]


def rebuilt(stream: Stream, spark: SparkSession, bootstrap: str, folder: Path) -> RebuildResult:
    return rebuild.rebuild(stream, session_for(spark, stream), bootstrap, str(folder), lambda: None)


def made(bootstrap: str, stream: Stream) -> None:
    create(bootstrap, *(replace(one, partitions=1) for one in stream.topics()), COMMITS)
    table = [Record("businesses", of, json.dumps({"id": int(of), "threshold": t})) for of, t in THRESHOLDS.items()]
    send(bootstrap, table if stream.tables else [])


@pytest.mark.parametrize(
    ("case", "losses"), [(walks, 1), *(pytest.param(case, 2, marks=pytest.mark.long) for case in (contacts, names))]
)
def test_the_output_follows_the_rules_though_the_checkpoint_is_lost_and_rebuilt(
    case: Callable[[], Case], losses: int, spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    one, bootstrap = case(), fresh_broker.bootstrap
    stream, given = one.stream, one.given
    made(bootstrap, stream)
    # In the middle of visits, waits and logins.
    cuts = [len(given) * n // (losses + 1) for n in range(losses + 2)]
    for number, (begin, end) in enumerate(pairwise(cuts)):
        if number:
            shutil.rmtree(tmp_path / stream.name)
            with (
                pytest.raises(Blocked, match=f"streams rebuild {stream.name}"),
                running(stream, spark, bootstrap, tmp_path),
            ):
                pass
            found = rebuilt(stream, spark, bootstrap, tmp_path)
            assert found.after.keys > 0
        with running(stream, spark, bootstrap, tmp_path) as run:
            for half in (given[begin : (begin + end) // 2], given[(begin + end) // 2 : end]):
                send(bootstrap, records(half))
                run.process_all_available()
    assert one.told(bootstrap) == one.wanted
    assert len(one.wanted) > 40  # type: ignore[arg-type]


@pytest.mark.long
def test_no_state_is_rebuilt_from_inputs_that_lost_its_records(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    bootstrap, stream = fresh_broker.bootstrap, walk_ins.STREAM
    made(bootstrap, stream)
    start, hour = 1_700_000_000_000, 3_600_000
    probe = {"device": "a", "business": "1", "router": "r", "signal": -50}
    given = [
        Record("probes", "a", json.dumps({**probe, "timestamp": start + n * hour}), 0, timestamp=start + n * hour)
        for n in range(12)
    ]
    create(bootstrap, Topic("probes", partitions=1, config={"retention.ms": "-1"}))
    with running(stream, spark, bootstrap, tmp_path) as run:
        for some in (given[:10], given[10:11], given[11:]):
            send(bootstrap, some)
            run.process_all_available()
    shutil.rmtree(tmp_path / stream.name)

    def cut(first: int) -> None:
        for gone in admin(bootstrap).delete_records([TopicPartition("probes", 0, first)]).values():
            gone.result(60)

    # A batch's watermark is ten minutes behind the latest of the one before the last: 9 h less 10 min. Of what is left
    # something must be older than 4 h 10 min before that, and the 5 min that a record may lie ahead.
    cut(4)
    assert rebuilt(stream, spark, bootstrap, tmp_path).after.keys == 1
    cut(5)
    with pytest.raises(PenstockError, match=r"deleted records of probes\[0\]"):
        rebuilt(stream, spark, bootstrap, tmp_path)
