"""Summaries that are computed again from an archive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.metrics.archive import RECEIPTS_ARCHIVE, SUMMARIES
from jobs.metrics.summaries import STREAM
from jobs.quality.archive import COUNTS
from jobs.quality.counts import METRICS
from penstock.backfill.archive_source import ArchiveSource
from penstock.backfill.job import BackfillJob
from penstock.backfill.run import BackfillResult, run
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.s3 import S3Server
from penstock.engine.operations.recompute import recompute_rows
from penstock.errors import BackfillError, DeclarationError
from penstock.object_store.endpoint import Endpoint
from penstock.settings import settings
from penstock.streams import Archive, Backfill
from penstock.testing import create, read, table
from tests.support.s3_store import endpoint_of, use_store, write_to_archive

pytestmark = pytest.mark.integration

START = datetime(2026, 1, 1, 10, tzinfo=UTC)


@pytest.fixture
def endpoint(object_store: S3Server) -> Endpoint:
    return endpoint_of(object_store)


@pytest.fixture(autouse=True)
def _store(home: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    use_store(monkeypatch, endpoint)
    assert settings().home == home


def ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def record(topic: str, offset: int, at: datetime, sent: datetime | None = None, **value: Any) -> dict[str, Any]:
    given = json.dumps({**value, "timestamp": ms(at)}).encode()
    return {
        "topic": topic, "partition": 0, "offset": offset, "key": None, "value": given, "timestamp": sent or at,
        "headers": None, "event_time": at,
    }  # fmt: skip


def do(job: BackfillJob, broker: Broker, spark: SparkSession) -> BackfillResult:
    def again(streams: Any, files: Any, begin: datetime, end: datetime) -> Iterator[pa.Table]:
        return recompute_rows(spark, streams, files, start=begin, end=end, by_hours=True)

    return run(job, broker.bootstrap, recompute=again)


def receipt(offset: int, at: datetime, value: float = 1.0, sent: datetime | None = None) -> dict[str, Any]:
    return record("receipts", offset, at, sent, environment="prod", metric="wait", value=value)


def fresh(backfill: Backfill, prefix: str, **changes: Any) -> tuple[Archive, Backfill]:
    """A backfill of an archive of its own."""
    assert isinstance(backfill.source, Archive)
    archive = replace(backfill.source, prefix=prefix, table=f"tests.{prefix}", **changes)
    return archive, replace(backfill, source=archive)


@pytest.mark.long
def test_summaries_are_computed_again_with_what_came_late(
    endpoint: Endpoint, fresh_broker: Broker, spark: SparkSession
) -> None:
    create(fresh_broker.bootstrap, *STREAM.output_topics)
    before = [receipt(n, START - timedelta(hours=2) + timedelta(minutes=n)) for n in range(3)]
    given = [receipt(3 + n, START + timedelta(minutes=n), float(n)) for n in range(60)]
    write_to_archive(RECEIPTS_ARCHIVE, endpoint, [*before, *given])
    job = BackfillJob(SUMMARIES, START, START + timedelta(hours=1), SUMMARIES.target_topic)
    assert do(job, fresh_broker, spark).rows == 6
    found = table(read(fresh_broker.bootstrap, SUMMARIES.target_topic))
    assert [json.loads(value)["count"] for value in found.values()] == [10] * 6
    assert do(job, fresh_broker, spark).rows == 0
    # Of one that came late the window is written over, and of others what they were.
    write_to_archive(RECEIPTS_ARCHIVE, endpoint, [receipt(63, START + timedelta(minutes=5), 1000.0)])
    assert do(job, fresh_broker, spark).rows == 6
    found = table(read(fresh_broker.bootstrap, SUMMARIES.target_topic))
    assert sorted((s["count"], s["max"]) for s in map(json.loads, found.values()))[-1] == (11, 1000.0)
    assert len(found) == 6


def test_a_stream_by_own_timestamps_is_given_all_hours_that_hold_some(
    endpoint: Endpoint, fresh_broker: Broker, spark: SparkSession
) -> None:
    """Receipts that came hours late lie far from the hour in which they were sent, and were counted."""
    archive, backfill = fresh(COUNTS, "own")
    create(fresh_broker.bootstrap, METRICS)
    hour, hours = START, timedelta(hours=1)
    given = [
        *(receipt(n, hour + timedelta(seconds=n)) for n in range(5)),
        receipt(5, hour - 3 * hours, sent=hour + timedelta(seconds=2)),
        receipt(6, hour - 2 * hours, sent=hour + timedelta(seconds=2, milliseconds=999)),
        # Of the interval by what they say, and sent before and behind it.
        receipt(7, hour + timedelta(minutes=1), sent=hour - timedelta(milliseconds=1)),
        receipt(8, hour + timedelta(minutes=1), sent=hour + hours),
    ]
    write_to_archive(archive, endpoint, given)
    done = do(BackfillJob(backfill, hour, hour + hours, backfill.target_topic), fresh_broker, spark)
    assert done.rows == 5
    found = {
        json.loads(key)["window"] - ms(hour): value
        for key, value in table(read(fresh_broker.bootstrap, METRICS.name)).items()
    }
    assert found == {0: "1", 1000: "1", 2000: "3", 3000: "1", 4000: "1"}


def test_a_stream_by_another_event_time_than_its_archive_is_refused(
    endpoint: Endpoint, fresh_broker: Broker, spark: SparkSession
) -> None:
    """Its windows may have records in any hour."""
    archive, backfill = fresh(SUMMARIES, "another", event_time="")
    create(fresh_broker.bootstrap, *STREAM.output_topics)
    given = [receipt(n, START + timedelta(minutes=n)) for n in range(5)]
    late = receipt(5, START, sent=START + timedelta(minutes=7))
    write_to_archive(archive, endpoint, [*given, {**late, "event_time": late["timestamp"]}])
    job = BackfillJob(backfill, START, START + timedelta(hours=1), backfill.target_topic)
    with pytest.raises(DeclarationError, match=r"another event time than the archive.*receipts\[0\]@5 by 420 s"):
        do(job, fresh_broker, spark)
    assert not read(fresh_broker.bootstrap, backfill.target_topic)


def test_windows_from_before_the_archive_began_are_refused(endpoint: Endpoint, fresh_broker: Broker) -> None:
    """It began at offset 7, ten minutes past the hour; that a record of an earlier hour came later says nothing."""
    archive, backfill = fresh(SUMMARIES, "begun")
    create(fresh_broker.bootstrap, *STREAM.output_topics)
    begun = START + timedelta(minutes=10)
    late = receipt(9, START - timedelta(hours=5), sent=begun + timedelta(minutes=1))
    write_to_archive(archive, endpoint, [receipt(7, START, sent=begun), receipt(8, begun + timedelta(minutes=1)), late])

    def of(hours: int) -> BackfillJob:
        begin = START + timedelta(hours=hours)
        return BackfillJob(backfill, begin, begin + timedelta(hours=1), backfill.target_topic)

    for hours in (-5, 0):
        said = (
            r"the archive began in the middle of receipts.*receipts/0 from offset 7 on, at 2026-01-01T10:10.*begin at "
        )
        with pytest.raises(BackfillError, match=f"{said}2026-01-01T11:00"):
            run(of(hours), fresh_broker.bootstrap, recompute=lambda *_: iter(()))
        ArchiveSource(replace(of(hours), unclosed=True), fresh_broker.bootstrap, print)
    # Records that were removed before they were archived are missing in the middle.
    gap, later = fresh(SUMMARIES, "gap")
    write_to_archive(gap, endpoint, [receipt(0, START)], starts={0: 0})
    ArchiveSource(replace(of(0), backfill=later), fresh_broker.bootstrap, print)
    write_to_archive(gap, endpoint, [receipt(5, START, sent=begun)], starts={0: 5})
    with pytest.raises(BackfillError, match="receipts/0 from offset 5 on, at 2026-01-01T10:10"):
        ArchiveSource(replace(of(0), backfill=later), fresh_broker.bootstrap, print)
    # Of later windows it has all there was.
    with pytest.raises(BackfillError, match=r"nothing is in archive.*it ended before"):
        ArchiveSource(of(1), fresh_broker.bootstrap, print)
