"""Base counts, made of archived walk-ins, while walk-ins come in and are counted."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from jobs.presence import BASE_COUNTS, ENRICHED_WALK_INS, WALK_IN_COUNTS
from jobs.presence.archive import BASE, WALK_INS_ARCHIVE
from penstock.archive import hour_closer
from penstock.archive.stream import archive_stream
from penstock.backfill.job import BackfillJob
from penstock.backfill.run import BackfillResult, run
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.s3 import S3Server
from penstock.errors import InputNotReady
from penstock.kafka.admin import admin, log_end_offsets
from penstock.object_store.endpoint import Endpoint
from penstock.settings import settings
from penstock.testing import Record, create, latest, read, running, send
from tests.support.s3_store import endpoint_of, use_store
from tests.support.sql_streams import project_stream
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

STREAM = project_stream("walk-in-counts")
HOUR = datetime(2026, 1, 1, 10, tzinfo=UTC)
# Hours that are closed as soon as all is archived: walk-ins go on to come into them.
ARCHIVE = replace(WALK_INS_ARCHIVE, prefix="bases", every=timedelta(0), close_delay=timedelta(0))
WALKS = replace(ENRICHED_WALK_INS, config={"retention.ms": "-1"})


@pytest.fixture
def endpoint(home: Path, object_store: S3Server, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    assert settings().home == home
    monkeypatch.setattr(hour_closer, "CHECK_INTERVAL", 0.5)
    monkeypatch.setenv("PENSTOCK_S3_MAKE_BUCKETS", "1")
    use_store(monkeypatch, endpoint_of(object_store))
    return endpoint_of(object_store)


def walks(chance: random.Random, count: int, begin: datetime, length: timedelta) -> list[dict[str, Any]]:
    """Walk-ins in order of time."""
    ms = int(begin.timestamp() * 1000)
    times = sorted(chance.randrange(length // timedelta(milliseconds=1)) for _ in range(count))
    return [
        {
            "device": f"d{chance.randrange(9)}", "business": chance.choice("12"),
            "contact": f"c-{chance.randrange(12)}", "since": ms + at, "timestamp": ms + at,
        }
        for at in times
    ]  # fmt: skip


def records(rows: list[dict[str, Any]]) -> list[Record]:
    return [
        Record(ENRICHED_WALK_INS.name, row["contact"], json.dumps(row), n % 4, timestamp=row["timestamp"])
        for n, row in enumerate(rows)
    ]


def counted(rows: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """Each walk-in once, however often it was told."""
    each = {(r["business"], r["contact"], r["timestamp"], r["device"]) for r in rows}
    return dict(Counter((business, contact) for business, contact, _, _ in each))


def counts(bootstrap: str) -> dict[tuple[str, str], int]:
    rows = (json.loads(value) for value in latest(read(bootstrap, WALK_IN_COUNTS.name)).values() if value)
    return {(row["business"], row["contact"]): row["count"] for row in rows}


@pytest.mark.long
def test_counts_are_right_to_the_last_walk_in(
    spark: SparkSession, fresh_broker: Broker, endpoint: Endpoint, tmp_path: Path
) -> None:
    """History that only the archive has still, and walk-ins that come while bases are told, twice each."""
    assert endpoint.url
    bootstrap, chance = fresh_broker.bootstrap, random.Random(4)
    kept = archive_stream(ARCHIVE)
    # Topics of times of long ago lose them at once, unless they keep all.
    create(bootstrap, WALKS, *(t for one in (STREAM, kept) for t in one.topics() if t.name != WALKS.name))
    history = walks(chance, 150, HOUR, timedelta(hours=2))
    live = walks(chance, 120, HOUR + timedelta(hours=2), timedelta(hours=3))
    backfill = replace(BASE, source=ARCHIVE)

    def told(hours: int, again: str = "") -> BackfillResult:
        job = BackfillJob(backfill, None, HOUR + timedelta(hours=hours), backfill.target_topic, again=again)

        def tried() -> BackfillResult | None:
            try:
                return run(job, bootstrap, recompute=lambda *_: iter(()))
            except InputNotReady:
                return None

        done = wait_until(tried, every=0.5, what=f"the archive has come to {hours} hours")
        assert done is not None
        return done

    with running(kept, spark, bootstrap, tmp_path / "kept") as keeping:
        send(bootstrap, records(history))
        keeping.process_all_available()
        places = [(WALKS.name, p) for p in range(WALKS.partitions)]
        ends = log_end_offsets(admin(bootstrap), places, bootstrap)
        asked = [TopicPartition(*place, end) for place, end in ends.items()]
        for gone in admin(bootstrap).delete_records(asked).values():
            gone.result(60)
        with running(STREAM, spark, bootstrap, tmp_path / "counts") as counting:
            sent, halfway = threading.Event(), threading.Event()

            def flow() -> None:
                for n in range(0, len(live), 20):
                    piece = live[n : n + 20]
                    # Some are told again.
                    send(bootstrap, records([*piece, *chance.sample(live[: n + 20], 3)]))
                    if n == len(live) // 2:
                        # All of the third hour is sent by now.
                        halfway.set()
                    sent.wait(0.4)

            flowing = threading.Thread(target=flow)
            flowing.start()
            try:
                assert told(2).rows == len(counted(history))
                assert halfway.wait(180)
                third = [row for row in live if row["timestamp"] < (HOUR.timestamp() + 3 * 3600) * 1000]
                assert told(3).rows == len(counted([*history, *third]))
                told(2, again="once")
            finally:
                flowing.join(180)
            keeping.process_all_available()
            counting.process_all_available()
            assert counts(bootstrap) == counted([*history, *live])
            written = len(read(bootstrap, WALK_IN_COUNTS.name))
            # Applied once more nothing changes.
            told(2, again="twice")
            told(3, again="twice")
            counting.process_all_available()
    assert counts(bootstrap) == counted([*history, *live])
    assert len(read(bootstrap, WALK_IN_COUNTS.name)) == written
    assert len(read(bootstrap, BASE_COUNTS.name)) > 2 * len(counted(history))
