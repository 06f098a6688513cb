"""Backfills from a real object store, and from MongoDB, into a real broker's topics."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import Timestamp
from bson.datetime_ms import DatetimeMS
from confluent_kafka import TopicPartition
from pymongo import MongoClient

from penstock.backfill import mongodb_source, retry, writer
from penstock.backfill import run as running
from penstock.backfill.job import BackfillJob
from penstock.backfill.progress import BackfillStatus
from penstock.backfill.run import run
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.s3 import S3Server
from penstock.errors import BackfillError, DeclarationError, InputNotReady, LeaseLost, SinkError, Wait
from penstock.kafka.admin import admin, end_offsets
from penstock.object_store.endpoint import Endpoint
from penstock.settings import settings
from penstock.streams import Archive, Backfill, Collection, RowsQuery, TopicOutput
from penstock.testing import Record, create, latest, read, send
from tests.support import mongodb
from tests.support.archive_backfills import (
    AGAIN,
    ALL,
    HOUR,
    KEPT,
    PER_PART,
    SUM,
    SUMS,
    again,
    do,
    event,
    filled,
    held,
    job,
    places,
    sums,
    total,
)
from tests.support.s3_store import endpoint_of, write_to_archive
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def endpoint(object_store: S3Server) -> Endpoint:
    return endpoint_of(object_store)


@pytest.fixture
def kept(endpoint: Endpoint, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Archive:
    """An archive of topic `kept` with closed hours; what backfills fetch lies in the test's home."""
    assert settings().home == home
    return filled(endpoint, monkeypatch, request.node.name)


def test_records_are_written_as_they_are_in_order_of_event_time(kept: Archive, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, AGAIN)
    told: list[BackfillStatus] = []
    done = do(job(again(kept)), fresh_broker, told)
    assert done.rows == len(ALL)
    found = read(fresh_broker.bootstrap, "again")
    assert sorted(places(fresh_broker)) == ALL
    by_key: dict[tuple[str | None, int], list[int]] = {}
    for r, (p, n) in zip(found, places(fresh_broker), strict=True):
        was = event(p, n)
        assert (r.key, r.value) == (was["key"].decode(), was["value"] and was["value"].decode())
        assert r.timestamp == int(was["timestamp"].timestamp() * 1000)
        assert dict(r.headers).get("h") == (str(n) if n % 2 else None)
        by_key.setdefault((r.key, p), []).append(n)
    # By event time, but for a key in the order that it had.
    assert all(offsets == sorted(offsets) for offsets in by_key.values())
    assert [f.state for f in told if f.state in ("verifying", "done")][-1] == "done"
    assert "80 rows" in told[-1].verified
    # And once more: nothing.
    assert do(job(again(kept)), fresh_broker).rows == 0
    assert len(read(fresh_broker.bootstrap, "again")) == len(ALL)


def test_a_second_run_writes_only_records_that_arrived_late(
    kept: Archive, endpoint: Endpoint, fresh_broker: Broker
) -> None:
    create(fresh_broker.bootstrap, AGAIN)
    one = job(again(kept), hours=0.5)
    inside = {(p, n) for p, n in ALL if event(p, n)["event_time"] < HOUR + timedelta(minutes=30)}
    assert 0 < len(inside) < len(ALL)
    assert do(one, fresh_broker).rows == len(inside)
    assert set(places(fresh_broker)) == inside
    write_to_archive(kept, endpoint, [event(0, PER_PART)])
    assert do(one, fresh_broker).rows == 1
    assert sorted(places(fresh_broker)) == sorted([*inside, (0, PER_PART)])
    assert do(one, fresh_broker).rows == 0


@pytest.mark.parametrize("at", [0, 3, *(pytest.param(at, marks=pytest.mark.long) for at in (1, 8))])
def test_an_interrupted_run_is_continued(
    kept: Archive, endpoint: Endpoint, home: Path, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Before a transaction, or between the last and the verification; then the archive gets more, and the files that
    were fetched are gone."""
    create(fresh_broker.bootstrap, AGAIN)
    monkeypatch.setattr(writer, "ROWS_PER_TRANSACTION", 10)
    monkeypatch.setattr(running, "LAG_INTERVAL", 0.0)
    calls = 0

    def cut() -> dict[str, float]:
        nonlocal calls
        if (calls := calls + 1) > at:
            raise KeyboardInterrupt
        return {}

    told: list[BackfillStatus] = []
    with pytest.raises(KeyboardInterrupt):
        do(job(again(kept)), fresh_broker, told, reader_lag=cut)
    assert told[-1].state == "stopped"
    # A transaction that is committed is seen a moment later.
    wait_until(lambda: len(places(fresh_broker)) == at * 10)
    write_to_archive(kept, endpoint, [event(1, PER_PART)])
    if at == 3:
        shutil.rmtree(home / "backfills")
    done = do(job(again(kept)), fresh_broker)
    assert done.rows == len(ALL) + 1 - at * 10
    assert sorted(places(fresh_broker)) == sorted([*ALL, (1, PER_PART)])


def test_rows_that_are_gone_are_made_and_written_anew(
    kept: Archive, home: Path, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums that come out otherwise each time in their last digits, as those of several threads do."""
    create(fresh_broker.bootstrap, SUMS)
    monkeypatch.setattr(writer, "ROWS_PER_TRANSACTION", 2)
    monkeypatch.setattr(running, "LAG_INTERVAL", 0.0)
    query = "SELECT who, sum(n) + random() / 1e9 AS total, getvariable('end') - 1 AS as_of FROM records GROUP BY who"
    one, calls = job(sums(kept, query)), 0

    def cut() -> dict[str, float]:
        nonlocal calls
        if (calls := calls + 1) > 1:
            raise KeyboardInterrupt
        return {}

    for gone in (True, True, False):
        with pytest.raises(KeyboardInterrupt):
            do(one, fresh_broker, reader_lag=cut)
        calls = 0
        if gone:
            shutil.rmtree(home / "backfills")
    # What is there is taken as it is; what was written of the others is no row of this run.
    count = len(total(one.end))
    done = do(one, fresh_broker)
    assert done.rows == count - 2
    assert done.summary.startswith(f"{count} rows, hash ")
    assert {who: round(n) for who, n in held(fresh_broker).items()} == total(one.end)
    assert do(one, fresh_broker).rows == 0


def test_who_does_the_same_job_elsewhere_is_fenced(kept: Archive, fresh_broker: Broker, tmp_path: Path) -> None:
    """Two processes that know nothing of each other's folder: the later one ends the job, the earlier one leaves."""
    create(fresh_broker.bootstrap, AGAIN)
    begun, waits = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def held() -> dict[str, float]:
        begun.set()
        assert waits.wait(180)
        return {}

    def first() -> None:
        try:
            do(job(again(kept)), fresh_broker, reader_lag=held)
        except BaseException as e:
            failed.append(e)

    earlier = threading.Thread(target=first)
    earlier.start()
    try:
        assert begun.wait(180)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_HOME", str(tmp_path / "elsewhere"))
            settings.cache_clear()
            assert do(job(again(kept)), fresh_broker).rows == len(ALL)
        settings.cache_clear()
    finally:
        waits.set()
        earlier.join(180)
    assert [type(e) for e in failed] == [LeaseLost]
    assert sorted(places(fresh_broker)) == ALL


def test_a_dry_run_writes_nothing(kept: Archive, fresh_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    create(fresh_broker.bootstrap, AGAIN)
    with caplog.at_level("INFO"):
        done = do(job(again(kept), dry_run=True), fresh_broker)
    assert done.rows == 0
    assert "80 rows would be written to again" in done.summary
    assert "would write k" in caplog.text
    assert read(fresh_broker.bootstrap, "again") == []


def test_it_waits_for_readers_and_keeps_its_pace(
    kept: Archive, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(fresh_broker.bootstrap, AGAIN)
    monkeypatch.setattr(running, "LAG_INTERVAL", 0.0)
    monkeypatch.setattr(writer, "ROWS_PER_TRANSACTION", 10)
    lags = iter([{"counts": 70.0}, {"counts": 61.0}, {"counts": 5.0}])
    told: list[BackfillStatus] = []
    do(job(again(kept)), fresh_broker, told, reader_lag=lambda: next(lags, {}))
    waited = [f for f in told if f.state == "waiting"]
    assert waited
    assert all("counts is" in f.why and f.rows_done == 0 for f in waited)


def test_pace() -> None:
    slept: list[float] = []
    now = 100.0
    pace = writer.RateLimiter(10, lambda: now + sum(slept), slept.append)
    for _ in range(5):
        pace.acquire(pace.batch_rows)
    # The first second's are free, as those of a pause of a second would be.
    assert sum(slept) == pytest.approx(3.0)


def test_rows_are_made_of_all_before_the_end(kept: Archive, endpoint: Endpoint, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, SUMS)
    one = job(sums(kept), hours=1.0)
    assert do(one, fresh_broker).rows == 5
    assert held(fresh_broker) == total(HOUR + timedelta(hours=1))
    key, value = next(iter(latest(read(fresh_broker.bootstrap, "sums")).items()))
    assert key == json.dumps({"who": json.loads(value or "")["who"]}, separators=(",", ":"))
    assert do(one, fresh_broker).rows == 0
    # Of more records, and by another query, the rows are made anew.
    write_to_archive(kept, endpoint, [{**event(0, PER_PART), "value": event(0, 1)["value"]}])
    assert do(one, fresh_broker).rows == 5
    doubled = sums(kept, SUM.replace("sum(n)", "2 * sum(n)"))
    assert do(job(doubled, hours=1.0), fresh_broker).rows == 5
    assert held(fresh_broker)["k0"] == 2 * total(HOUR + timedelta(hours=1))["k0"]


def test_what_somebody_else_takes_away_is_seen(
    kept: Archive, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(fresh_broker.bootstrap, AGAIN)
    monkeypatch.setattr(running, "LAG_INTERVAL", 0.0)
    monkeypatch.setattr(writer, "ROWS_PER_TRANSACTION", 10)
    gone = admin(fresh_broker.bootstrap)

    def meanwhile() -> dict[str, float]:
        ends = end_offsets(gone, [("again", p) for p in range(3)], fresh_broker.bootstrap)
        asked = [TopicPartition("again", p, end) for (_, p), end in ends.items() if end]
        if asked:
            for done in gone.delete_records(asked[:1]).values():
                done.result(60)
        return {}

    told: list[BackfillStatus] = []
    with pytest.raises(BackfillError, match="does not hold what the source gives"):
        do(job(again(kept)), fresh_broker, told, reader_lag=meanwhile)
    assert told[-1].state == "failed"
    # It is not taken for done.
    with pytest.raises(BackfillError, match="does not hold"):
        do(job(again(kept)), fresh_broker)
    assert do(job(again(kept), again="once"), fresh_broker).rows == len(ALL)


def test_refusals(kept: Archive, endpoint: Endpoint, fresh_broker: Broker) -> None:
    with pytest.raises(BackfillError, match=r"no topic again.*topics --apply"):
        do(job(again(kept)), fresh_broker)
    create(fresh_broker.bootstrap, replace(AGAIN, config={}), SUMS)
    with pytest.raises(BackfillError, match=r"delete records as old as these at once.*--timestamps now"):
        do(job(again(kept)), fresh_broker)
    assert do(job(again(kept), timestamps="now", hours=0.1), fresh_broker).rows > 0
    with pytest.raises(DeclarationError, match="a key twice"):
        do(job(sums(kept, "SELECT 'a' AS who, n AS total, moment AS as_of FROM records")), fresh_broker)
    with pytest.raises(DeclarationError, match="lacking as_of"):
        do(job(sums(kept, "SELECT who, n AS total FROM records")), fresh_broker)
    with pytest.raises(DeclarationError, match="its query is invalid"):
        do(job(sums(kept, "SELECT who FROM nowhere")), fresh_broker)
    with pytest.raises(DeclarationError, match=r"without a unique JSON text.*as_of"):
        do(job(sums(kept, "SELECT who, n AS total, event_time AS as_of FROM records")), fresh_broker)
    # The topic has records that are not archived, and hours are open. One that is stamped ahead hides none behind it.
    create(fresh_broker.bootstrap, KEPT)
    stamps = [1] * (PER_PART - 1) + [int(HOUR.timestamp() + 99 * 3600) * 1000, 1]
    send(fresh_broker.bootstrap, [Record("kept", "k", "v", 0, timestamp=at) for at in stamps])
    with pytest.raises(InputNotReady, match=r"has not come to the end.*kept\[0\] up to 40 of 41"):
        do(job(sums(kept)), fresh_broker)
    assert do(job(sums(kept), unclosed=True), fresh_broker).rows == 5
    write_to_archive(kept, endpoint, [event(0, PER_PART)], close=False)
    with pytest.raises(BackfillError, match=r"hours of archive kept-archive are open.*--unclosed"):
        do(job(sums(kept)), fresh_broker)
    with pytest.raises(BackfillError, match="interval is empty"):
        job(again(kept), hours=0)
    assert not read(fresh_broker.bootstrap, "sums")[5:]


def of_documents() -> Backfill:
    return Backfill(
        "documents", Collection("crm", "people"), TopicOutput(SUMS, key=("who",), value=("who", "total", "as_of")),
        rows=RowsQuery("timestamp_millis(moment)", "SELECT id AS who, n AS total, moment AS as_of FROM records",
                       schema="id STRING, n BIGINT, moment BIGINT NOT NULL"),
    )  # fmt: skip


def test_documents(home: Path, fresh_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings().home == home
    create(fresh_broker.bootstrap, SUMS)
    backfill = of_documents()
    one = BackfillJob(backfill, None, HOUR, "sums")
    with pytest.raises(SinkError, match="no MongoDB is configured"):
        do(one, fresh_broker)
    with mongodb.store(tmp_path / "mongo") as url:
        monkeypatch.setenv("PENSTOCK_MONGODB_URL", url)
        settings.cache_clear()
        client: MongoClient[dict[str, Any]] = MongoClient(url)
        with client:
            people = client["crm"]["people"]
            people.insert_many(
                [{"_id": f"p{n}", "id": f"p{n}", "n": n, "moment": HOUR, "more": {"x": [n]}} for n in range(29)]
            )
            # What is a whole number is one, whatever holds it; fields that nobody asks for may be anything.
            moment = float(HOUR.timestamp() * 1000)
            odd = {"more": DatetimeMS(253_402_300_800_000), "stamp": Timestamp(5, 6)}
            people.insert_many(
                [{"_id": "p29", "id": "p29", "n": "29", "moment": moment, **odd}, {"_id": "x", "n": 1, "moment": 1.5}]
            )
            done = do(one, fresh_broker)
            assert done.rows == 30
            assert done.summary.endswith(
                "1 records of the source are left out: document x: field moment is no bigint: 1.5"
            )
            done = do(one, fresh_broker)
            assert done.rows == 0
            assert done.summary.endswith("1 records of the source gave none")
            people.update_one({"_id": "p3"}, {"$set": {"n": 1000}})
            assert do(one, fresh_broker).rows == 30
            empty = replace(backfill, source=Collection("crm", "nobody"))
            with pytest.raises(SinkError, match=r"the collection does not exist in MongoDB; got: mongodb.crm.nobody"):
                do(replace(one, backfill=empty), fresh_broker)
            client.drop_database("crm")
    found = held(fresh_broker)
    assert found == {f"p{n}": 1000 if n == 3 else n for n in range(30)}


def test_a_mongodb_that_is_away_is_waited_for_and_not_for_ever(
    home: Path, fresh_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mongodb.embedded()
    assert settings().home == home
    monkeypatch.setattr(mongodb_source, "SERVER_SELECTION_MS", 500)
    create(fresh_broker.bootstrap, SUMS)
    one = BackfillJob(of_documents(), None, HOUR, "sums")
    with mongodb.server(tmp_path / "mongo") as part:
        monkeypatch.setenv("PENSTOCK_MONGODB_URL", part.url)
        settings.cache_clear()
        with MongoClient[dict[str, Any]](part.url) as client:
            client["crm"]["people"].insert_many([{"id": f"p{n}", "n": n, "moment": HOUR} for n in range(30)])
        part.stop()
        told: list[BackfillStatus] = []
        with monkeypatch.context() as patch:
            patch.setattr(retry, "RETRY_TIMEOUT", 1.0)
            with pytest.raises(Wait, match=r"MongoDB does not answer for mongodb.crm.people.*it is resumed"):
                do(one, fresh_broker, told)
        assert [f.state for f in told][-2:] == ["waiting", "failed"]
        waits = threading.Event()

        def report(now: BackfillStatus) -> None:
            if now.state == "waiting":
                waits.set()

        def returns() -> None:
            assert waits.wait(180)
            part.restart()

        later = threading.Thread(target=returns)
        later.start()
        try:
            done = run(one, fresh_broker.bootstrap, report=report, recompute=lambda *_: iter(()))
        finally:
            waits.set()
            later.join(180)
    assert done.rows == 30
    assert len(held(fresh_broker)) == 30
