"""Summaries that are computed again from an archive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.metrics.kept import RECEIPTS_ARCHIVE, SUMMARIES
from jobs.metrics.summaries import STREAM
from penstock.archive.place import Endpoint
from penstock.backfill.job import Job
from penstock.backfill.run import Outcome, run
from penstock.engine.recompute import recomputed
from penstock.errors import BackfillError
from penstock.local.parts import Broker
from penstock.settings import settings
from penstock.testing import create, read, table
from tests import archived
from tests.archived import holds, where

pytestmark = pytest.mark.integration

START = datetime(2026, 1, 1, 10, tzinfo=UTC)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with archived.server(tmp_path_factory.mktemp("s3")) as part:
        yield where(part)


@pytest.fixture(autouse=True)
def _store(home: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_S3_URL", endpoint.url)
    monkeypatch.setenv("PENSTOCK_S3_ACCESS_KEY", endpoint.access_key)
    monkeypatch.setenv("PENSTOCK_S3_SECRET_KEY", endpoint.secret_key)
    settings.cache_clear()
    assert settings().home == home


def ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def record(topic: str, offset: int, at: datetime, **value: Any) -> dict[str, Any]:
    given = json.dumps({**value, "timestamp": ms(at)}).encode()
    return {
        "topic": topic, "partition": 0, "offset": offset, "key": None, "value": given, "timestamp": at,
        "headers": None, "event_time": at,
    }  # fmt: skip


def do(job: Job, broker: Broker, spark: SparkSession) -> Outcome:
    def again(streams: Any, files: Any, begin: datetime, end: datetime) -> Iterator[pa.Table]:
        return recomputed(spark, streams, files, start=begin, end=end)

    return run(job, broker.bootstrap, recompute=again)


def receipt(offset: int, at: datetime, value: float = 1.0) -> dict[str, Any]:
    return record("receipts", offset, at, environment="prod", metric="wait", value=value)


def test_summaries_are_computed_again_with_what_came_late(
    endpoint: Endpoint, fresh_broker: Broker, spark: SparkSession
) -> None:
    create(fresh_broker.bootstrap, *STREAM.written)
    before = [receipt(n, START - timedelta(hours=2) + timedelta(minutes=n)) for n in range(3)]
    given = [receipt(3 + n, START + timedelta(minutes=n), float(n)) for n in range(60)]
    holds(RECEIPTS_ARCHIVE, endpoint, [*before, *given])
    job = Job(SUMMARIES, START, START + timedelta(hours=1), SUMMARIES.fills)
    assert do(job, fresh_broker, spark).rows == 6
    found = table(read(fresh_broker.bootstrap, SUMMARIES.fills))
    assert [json.loads(value)["count"] for value in found.values()] == [10] * 6
    assert do(job, fresh_broker, spark).rows == 0
    # Of one that came late the window is written over, and of others what they were.
    holds(RECEIPTS_ARCHIVE, endpoint, [receipt(63, START + timedelta(minutes=5), 1000.0)])
    assert do(job, fresh_broker, spark).rows == 6
    found = table(read(fresh_broker.bootstrap, SUMMARIES.fills))
    assert sorted((s["count"], s["max"]) for s in map(json.loads, found.values()))[-1] == (11, 1000.0)
    assert len(found) == 6
    # The archive's first hour may be one of which it has a part.
    holds(RECEIPTS_ARCHIVE, endpoint, [receipt(64, START - timedelta(hours=5))])
    with pytest.raises(BackfillError, match="may have begun in the middle of hour 2026-01-01T05"):
        do(Job(SUMMARIES, START - timedelta(hours=6), START, SUMMARIES.fills), fresh_broker, spark)
