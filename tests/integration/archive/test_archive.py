"""A declared archive as it runs: a topic of a real broker into a real object store, and back by the command line."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.archive import file_io, hour_closer
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.reader import ArchiveHour, read_hours, read_interval
from penstock.archive.stream import archive_stream, output_of
from penstock.archive.table import ArchiveTable
from penstock.archive.verify import verify_archive
from penstock.catalog import discovery
from penstock.cli import app
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.s3 import S3Server
from penstock.model.archive import Archive
from penstock.model.mask import Mask
from penstock.model.topic import COMMITS, Topic
from penstock.object_store import bucket
from penstock.object_store.bucket import Bucket
from penstock.settings import settings
from penstock.testing import create, running
from tests.support.caches import clear_caches, unload_jobs
from tests.support.s3_store import Calls, Failing, endpoint_of, use_store
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

EVENTS = Topic("events", partitions=2, config={"retention.ms": "-1"})
HOUR = datetime(2026, 1, 31, 23, tzinfo=UTC)
TIME = "timestamp_millis(cast(get_json_object(cast(value as string), '$.timestamp') as bigint))"
ARCHIVE = Archive("kept", EVENTS, bucket="lake", prefix="events", event_time=TIME, every=timedelta(0), max_records=70)


@pytest.fixture(autouse=True)
def store(object_store: S3Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Where the settings lead to, empty."""
    at = endpoint_of(object_store)
    assert home == settings().home
    use_store(monkeypatch, at)
    monkeypatch.setattr(hour_closer, "CHECK_INTERVAL", 0.5)
    made = Bucket(at, "lake", "events")
    made.ensure_exists()
    for one in made.list_objects(""):
        made.delete(one.key)
    return made


def fill(bootstrap: str, first: int, count: int, at: datetime = HOUR) -> list[dict[str, Any]]:
    """Records of all kinds; what the archive is to hold of them, without its event time's own rules."""
    expected: list[dict[str, Any]] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    ms = int(at.timestamp() * 1000)

    def done(error: object, message: Any) -> None:
        assert error is None
        place = {"partition": message.partition(), "offset": message.offset()}
        expected.append({**place, "value": message.value(), "key": message.key()})

    for n in range(first, first + count):
        value = {0: None, 1: b"\xff\xfe", 2: b'{"timestamp": "x"}'}.get(n % 7, json.dumps({"timestamp": ms}).encode())
        headers: dict[str, str | bytes | None] | None = {"n": b"%d" % n} if n % 2 else None
        producer.produce("events", value, b"k%d" % n, n % 2, timestamp=ms + 60_000, headers=headers, on_delivery=done)
    assert producer.flush(60) == 0
    return expected


def there() -> list[dict[str, Any]]:
    table = ArchiveTable.find(output_of(ARCHIVE))
    assert table
    return [row for _, part in read_interval(table) for row in part.to_pylist()]


def hours() -> dict[str, ArchiveHour]:
    to = output_of(ARCHIVE)
    table = ArchiveTable.find(to)
    return {hour.name: hour for hour in read_hours(table, ClosedHours.of(to))} if table else {}


def places(rows: list[dict[str, Any]]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return sorted(((r["partition"], r["offset"], r["key"], r["value"]) for r in rows), key=lambda p: p[:2])


def test_a_topic_is_archived_and_its_hour_closed(spark: SparkSession, fresh_broker: Broker, tmp_path: Path) -> None:
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, EVENTS, COMMITS)
    sent = fill(bootstrap, 0, 200)
    with running(archive_stream(ARCHIVE), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        wait_until(lambda: (one := hours().get("2026-01-31T23")) and one.is_closed, 240, what="the hour is closed")
        late = fill(bootstrap, 200, 50)
        run.process_all_available()
        assert run.figures.dead == 0
    # Another run goes on behind it.
    with running(archive_stream(ARCHIVE), spark, bootstrap, tmp_path) as run:
        sent += fill(bootstrap, 250, 30, HOUR + timedelta(hours=1))
        run.process_all_available()
    found = there()
    assert places(found) == places(sent + late)
    assert {row["topic"] for row in found} == {"events"}
    told = [row for row in found if row["value"] and row["value"].startswith(b'{"timestamp": 1')]
    assert all(row["event_time"] < row["timestamp"] for row in told)
    assert len(told) > 100
    assert all(row["event_time"] == row["timestamp"] for row in found if row not in told)
    headers = [row["headers"] for row in found if row["headers"]]
    assert len(headers) == len([row for row in found if row["partition"] == 1])
    assert sorted(hours()) == ["2026-01-31T23", "2026-02-01T00"]


def test_an_archive_keeps_what_it_masks_under_the_key_alone(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tombstones stay tombstones, records go to the hours of their event time, and what is encrypted comes back."""
    secret = bytes(range(40, 72))
    monkeypatch.setenv("PENSTOCK_MASK_KEYS", json.dumps({"pii": base64.b64encode(secret).decode()}))
    settings.cache_clear()
    masks = (Mask("key", "hashed", "pii"), Mask("value", "encrypted", "pii"), Mask("headers", "dropped"))
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, EVENTS, COMMITS)
    sent = fill(bootstrap, 0, 28)
    with running(archive_stream(replace(ARCHIVE, mask=masks)), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    found = there()
    assert {row["headers"] for row in found} == {None}
    assert len([row for row in found if row["event_time"] < row["timestamp"]]) == 16
    cipher = AESGCM(secret)
    opened = [
        {**row, "value": row["value"] and cipher.decrypt(row["value"][:12], row["value"][12:], None)} for row in found
    ]
    hashed = [{**row, "key": hmac.digest(secret, row["key"], hashlib.sha256)} for row in sent]
    assert places(opened) == places(hashed)
    assert sum(row["value"] is None for row in found) == 4


def test_a_stream_waits_while_the_store_is_paused(
    spark: SparkSession,
    fresh_broker: Broker,
    object_store: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket, "REQUEST_TIMEOUT", 2.0)
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, EVENTS, COMMITS)
    sent = fill(bootstrap, 0, 20)
    with running(archive_stream(ARCHIVE), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        object_store.pause()
        try:
            sent += fill(bootstrap, 20, 20)

            def waits() -> bool:
                run.reconcile()
                return run.report().state == "waiting"

            wait_until(waits, 240)
        finally:
            object_store.resume()
        run.process_all_available()
    assert places(there()) == places(sent)


# After each call to the store without Spark: tests/unit/archive/test_writer.py.
@pytest.mark.parametrize("at", [16, *(pytest.param(n, marks=pytest.mark.long) for n in (4, 9, 14, 20, 30))])
def test_a_stream_that_is_cut_off_between_two_writes_goes_on(
    spark: SparkSession,
    fresh_broker: Broker,
    object_store: S3Server,
    tmp_path: Path,
    at: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, EVENTS, COMMITS)
    sent = fill(bootstrap, 0, 100)
    calls = Calls(at, "after")
    with monkeypatch.context() as patch:
        patch.setattr(
            file_io,
            "open_bucket",
            lambda bucket, prefix="": Failing(Bucket(endpoint_of(object_store), bucket, prefix), calls),
        )
        with running(archive_stream(ARCHIVE), spark, bootstrap, tmp_path) as run:

            def failed() -> bool:
                run.reconcile()
                return calls.count >= at

            wait_until(failed, 240)
    with running(archive_stream(ARCHIVE), spark, bootstrap, tmp_path) as run:
        sent += fill(bootstrap, 100, 20, HOUR + timedelta(hours=2))
        run.process_all_available()
    assert places(there()) == places(sent)
    to = output_of(ARCHIVE)
    table = ArchiveTable.find(to)
    assert table
    assert all(one.ok for one in verify_archive(table, ClosedHours.of(to)))


def test_the_command_line_shows_and_verifies(store: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.model.output import CommitMarker
    from tests.support.small_archive import batch, keys, open_writer

    system = tmp_path / "jobs" / "shop"
    system.mkdir(parents=True)
    (system / "kept.py").write_text(
        "from penstock.streams import Archive, Topic\n"
        "KEPT = Archive('kept', Topic('t'), bucket='lake', prefix='events')\n"
    )
    monkeypatch.setenv("PENSTOCK_PROJECT", str(tmp_path))
    clear_caches()
    unload_jobs()
    output = output_of(Archive("kept", Topic("t"), bucket="lake", prefix="events"))
    opened = open_writer(output)
    opened.write({output.name: batch(0, 1, 2)}, CommitMarker("q", 0, {}))
    opened.write({output.name: batch(3, 4, hour=11)}, CommitMarker("q", 1, {}))
    hour_closer.HourCloser(opened, output, lambda _: ({}, {})).close_due_hours()
    opened.write({output.name: batch(5, hour=11)}, CommitMarker("q", 2, {}))

    def asked(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["archives", *words])
        return done.exit_code, done.output

    try:
        assert asked("list")[1].split()[-6:] == ["kept", "t", "penstock.kept", "s3://lake/events", "-", "yes"]
        _, text = asked("show", "kept")
        shown = [line.split()[:4] for line in text.splitlines()[1:]]
        assert shown == [["2026-01-01T10", "closed", "1", "3"], ["2026-01-01T11", "reopened", "1", "3"]]
        assert asked("show", "kept", "--from", "2026-01-01T11")[1].count("2026-01-01") == 1
        assert asked("verify", "kept")[0] == 0
        store.put(keys(output)[0], b"")
        code, text = asked("verify", "kept", "--to", "2026-01-01T11")
        assert code == 1
        assert "a file of the archive cannot be read: s3://lake/events/data/hour=2026-01-01-10/" in " ".join(
            text.split()
        )
        assert asked("verify", "kept", "--from", "2026-01-01T11")[0] == 0
        assert asked("verify", "other")[0] == 2
    finally:
        clear_caches()
        unload_jobs()
        discovery.load.cache_clear()
