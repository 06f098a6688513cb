"""An archive of a small topic, and backfills of it: what they are to write is known record by record."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.backfill import archive_source
from penstock.backfill.job import BackfillJob
from penstock.backfill.progress import BackfillStatus
from penstock.backfill.run import BackfillResult, run
from penstock.backfill.writer import ROW_HEADER
from penstock.devstack.servers.kafka import Broker
from penstock.object_store.endpoint import Endpoint
from penstock.streams import Archive, Backfill, RowsQuery, Topic, TopicOutput
from penstock.testing import latest, read
from tests.support.s3_store import use_store, write_to_archive

KEPT = Topic("kept", partitions=2)
AGAIN = Topic("again", partitions=3, config={"retention.ms": "-1"})
SUMS = Topic("sums", partitions=2, compacted=True)
HOUR = datetime(2026, 1, 1, 10, tzinfo=UTC)
EVENT = "who STRING NOT NULL, n BIGINT NOT NULL, moment BIGINT NOT NULL"
PER_PART = 40


def filled(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, name: str) -> Archive:
    """An archive of topic `kept` with closed hours, of a test's own."""
    use_store(monkeypatch, endpoint)
    monkeypatch.setattr(archive_source, "STALL_TIMEOUT", 0.0)
    archive = Archive("kept-archive", KEPT, bucket="lake", prefix=f"t-{abs(hash(name))}", every=timedelta(0))
    write_to_archive(archive, endpoint, [event(p, n) for p in (0, 1) for n in range(PER_PART)])
    return archive


def event(partition: int, n: int, who: str = "") -> dict[str, Any]:
    """Record n of a partition: event times go up and down from 10:00 on, every seventh is a tombstone."""
    at = HOUR + timedelta(seconds=30 * (n * 7 % PER_PART) * 5)
    who = who or f"k{n % 5}"
    value = json.dumps({"who": who, "n": n, "moment": int(at.timestamp() * 1000)}).encode()
    return {
        "topic": "kept", "partition": partition, "offset": n, "key": who.encode(),
        "value": None if n % 7 == 3 else value, "timestamp": at, "event_time": at,
        "headers": [{"key": "h", "value": b"%d" % n}] if n % 2 else None,
    }  # fmt: skip


def again(kept: Archive, target: Topic | TopicOutput = AGAIN, **given: Any) -> Backfill:
    return Backfill("once-more", kept, target, **given)


def job(backfill: Backfill, hours: float = 3, **given: Any) -> BackfillJob:
    return BackfillJob(
        backfill, None if backfill.full_history else HOUR, HOUR + timedelta(hours=hours), backfill.target_topic, **given
    )


def do(one: BackfillJob, broker: Broker, told: list[BackfillStatus] | None = None, **given: Any) -> BackfillResult:
    report = (lambda _: None) if told is None else told.append
    return run(one, broker.bootstrap, report=report, recompute=lambda *_: iter(()), **given)


def places(broker: Broker, topic: str = "again") -> list[tuple[int, int]]:
    """Which records of the archive a topic holds, in the order of its partitions."""
    found = [dict(r.headers)[ROW_HEADER].split("/") for r in read(broker.bootstrap, topic)]
    return [(int(p), int(n)) for _, _, p, n in found]


ALL = sorted((p, n) for p in (0, 1) for n in range(PER_PART))


SUM = "SELECT who, sum(n)::BIGINT AS total, getvariable('end') - 1 AS as_of FROM records GROUP BY who"


def sums(kept: Archive, query: str = SUM, **given: Any) -> Backfill:
    output = TopicOutput(SUMS, key=("who",), value=("who", "total", "as_of"))
    return Backfill(
        "sums-again",
        kept,
        output,
        rows=RowsQuery("timestamp_millis(moment)", query, schema=EVENT),
        full_history=True,
        **given,
    )


def total(upto: datetime) -> dict[str, int]:
    found: dict[str, int] = {}
    for p, n in ALL:
        one = event(p, n)
        if one["value"] is not None and one["event_time"] < upto:
            found[one["key"].decode()] = found.get(one["key"].decode(), 0) + n
    return found


def held(broker: Broker) -> dict[str, int]:
    found = latest(read(broker.bootstrap, "sums"))
    rows = [json.loads(value) for value in found.values() if value]
    return {row["who"]: row["total"] for row in rows}
