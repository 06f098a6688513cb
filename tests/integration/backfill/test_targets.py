"""What a backfill's target does to it: it is cleaned, made again, slow, or lacks what was written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.backfill import run as running
from penstock.backfill import transform as making
from penstock.backfill import writer
from penstock.backfill.progress import BackfillStatus
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.s3 import S3Server
from penstock.errors import BackfillError, InputNotReady, SinkError
from penstock.kafka.admin import admin, topic_ids
from penstock.kafka.limits import ProducerBatch, ProducerRecord
from penstock.kafka.transactions import TransactionalWriter
from penstock.object_store.endpoint import Endpoint
from penstock.streams import Archive, Topic
from penstock.testing import Record, create, read, send
from tests.support.archive_backfills import (
    AGAIN,
    ALL,
    HOUR,
    KEPT,
    PER_PART,
    SUMS,
    again,
    do,
    event,
    filled,
    job,
    places,
    sums,
)
from tests.support.s3_store import endpoint_of, write_to_archive
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

LATEST = replace(AGAIN, compacted=True, config={})
# Cleaned as soon as the broker looks.
CLEANED = replace(LATEST, partitions=1, config={"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"})


@pytest.fixture
def endpoint(object_store: S3Server) -> Endpoint:
    return endpoint_of(object_store)


@pytest.fixture
def kept(endpoint: Endpoint, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Archive:
    assert home.exists()
    monkeypatch.setattr(running, "LAG_INTERVAL", 0.0)
    monkeypatch.setattr(writer, "ROWS_PER_TRANSACTION", 10)
    return filled(endpoint, monkeypatch, request.node.name)


def remade(broker: Broker, topic: Topic) -> None:
    for done in admin(broker.bootstrap).delete_topics([topic.name]).values():
        done.result(60)
    wait_until(lambda: topic.name not in admin(broker.bootstrap).list_topics(timeout=10).topics)
    create(broker.bootstrap, topic)


def last_of(key: str) -> tuple[int, int]:
    """The record of a key that is written last."""
    of, turn = [], {0: HOUR, 1: HOUR}
    for p, n in ALL:
        if event(p, n)["key"] == key.encode():
            # None comes before an earlier one of its key.
            turn[p] = max(turn[p], event(p, n)["event_time"])
            of.append((turn[p], p, n))
    return max(of)[1:]


def test_a_row_that_is_not_there_is_not_explained_by_an_older_one_of_its_key(
    kept: Archive, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a compacted topic, whose other rows may all be gone with good reason."""
    create(fresh_broker.bootstrap, LATEST)
    lost = "/{}/{}".format(*last_of("k2")).encode()
    made = writer._producer_batch

    def without(*given: Any) -> Iterator[ProducerRecord]:
        every: Iterator[ProducerRecord] = made(*given).records()
        return (one for one in every if not (dict(one.headers)[writer.ROW_HEADER] or b"").endswith(lost))

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_producer_batch", without)
        with pytest.raises(BackfillError, match="does not hold what the source gives"):
            do(job(again(kept)), fresh_broker)
    assert do(job(again(kept), again="once"), fresh_broker).rows == len(ALL)


def test_a_topic_that_the_broker_has_cleaned_meanwhile_is_right(kept: Archive, fresh_broker: Broker) -> None:
    """Really cleaned, between the last row and the verification, and written to by others."""
    create(fresh_broker.bootstrap, CLEANED)
    rows = 0

    def cleaned() -> dict[str, float]:
        nonlocal rows
        if (rows := rows + 1) == len(ALL) // 10 + 1:
            send(fresh_broker.bootstrap, [Record("again", "k4", "newer"), Record("again", "other", "1")])

            def few() -> bool:
                # What is written last is never cleaned: so something more is.
                send(fresh_broker.bootstrap, [Record("again", "other", "2")])
                return len(read(fresh_broker.bootstrap, "again")) < len(ALL) - 20

            wait_until(few, every=1.0)
        return {}

    done = do(job(again(kept)), fresh_broker, reader_lag=cleaned)
    assert done.rows == len(ALL)
    assert "the topic keeps a newer record of their keys" in done.summary


@pytest.mark.parametrize("at", [3, 99])
def test_a_target_that_was_made_again_gets_all_of_it(
    kept: Archive, fresh_broker: Broker, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    """Deleted when it was done, or in the middle."""
    create(fresh_broker.bootstrap, AGAIN)
    calls = 0

    def cut() -> dict[str, float]:
        nonlocal calls
        if (calls := calls + 1) > at:
            raise KeyboardInterrupt
        return {}

    if at < 10:
        with pytest.raises(KeyboardInterrupt):
            do(job(again(kept)), fresh_broker, reader_lag=cut)
    else:
        do(job(again(kept)), fresh_broker)
    remade(fresh_broker, AGAIN)
    assert do(job(again(kept)), fresh_broker).rows == len(ALL)
    assert "topic again was recreated since" in caplog.text
    assert sorted(places(fresh_broker)) == ALL
    assert do(job(again(kept)), fresh_broker).rows == 0


def test_rows_in_partitions_that_the_target_gets_meanwhile_are_verified(
    kept: Archive, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(fresh_broker.bootstrap, replace(AGAIN, partitions=1))
    first_offsets = running._Run._first

    def grown(self: running._Run) -> dict[int, int]:
        firsts = first_offsets(self)
        create(fresh_broker.bootstrap, AGAIN)
        return firsts

    # The producer that writes the rows learns of them with its next metadata; here it is opened after them.
    monkeypatch.setattr(running._Run, "_first", grown)
    commit, opened = TransactionalWriter.commit, list[TransactionalWriter]()

    def fresh(self: TransactionalWriter, messages: Any, mark: bytes) -> int:
        if not opened:
            opened.append(self)
            self._producer.list_topics(AGAIN.name, timeout=10)
        return commit(self, messages, mark)

    monkeypatch.setattr(TransactionalWriter, "commit", fresh)
    assert do(job(again(kept)), fresh_broker).rows == len(ALL)
    assert sorted(places(fresh_broker)) == ALL
    assert len({r.partition for r in read(fresh_broker.bootstrap, AGAIN.name)}) > 1


def test_an_archive_of_a_topic_that_was_made_again_goes_into_a_compacted_one(
    kept: Archive, endpoint: Endpoint, fresh_broker: Broker
) -> None:
    """Two records of the archive have one place, and rows of both are older ones of their key."""
    twice = replace(kept, prefix=f"{kept.prefix}-twice", table="tests.twice")
    for name, count in (("old", PER_PART), ("new", 20)):
        write_to_archive(twice, endpoint, [event(p, n) for p in (0, 1) for n in range(count)], topic_id=name)
    create(fresh_broker.bootstrap, CLEANED)
    rows, some = 0, len(ALL) + 40

    def cleaned() -> dict[str, float]:
        nonlocal rows
        if (rows := rows + 1) == some // 10 + 1:

            def few() -> bool:
                send(fresh_broker.bootstrap, [Record("again", "other", "2")])
                return len(read(fresh_broker.bootstrap, "again")) < some - 20

            wait_until(few, every=1.0)
        return {}

    assert do(job(again(twice)), fresh_broker, reader_lag=cleaned).rows == some


def test_a_transaction_has_a_bound_in_bytes(
    kept: Archive, endpoint: Endpoint, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(fresh_broker.bootstrap, AGAIN)
    write_to_archive(kept, endpoint, [{**event(0, 40 + n), "value": b"x" * 30_000} for n in range(20)])
    monkeypatch.setattr(writer, "ROWS_PER_TRANSACTION", 1000)
    monkeypatch.setattr(making, "BATCH_BYTES", 100_000)
    sizes = list[int]()
    commit = TransactionalWriter.commit

    def weighed(self: TransactionalWriter, messages: ProducerBatch | list[ProducerRecord], mark: bytes) -> int:
        given = messages.records() if isinstance(messages, ProducerBatch) else messages
        sizes.append(sum(len(m.key or b"") + len(m.value or b"") for m in given))
        return commit(self, messages, mark)

    monkeypatch.setattr(TransactionalWriter, "commit", weighed)
    assert do(job(again(kept)), fresh_broker).rows == len(ALL) + 20
    assert sum(sizes) > 600_000
    assert max(sizes) <= 100_000


def test_readers_do_not_hold_it_up_for_ever(
    kept: Archive, fresh_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(fresh_broker.bootstrap, AGAIN)
    monkeypatch.setattr(running, "MAX_LAG_WAIT", 0.5)
    told: list[BackfillStatus] = []
    with pytest.raises(InputNotReady, match=r"its readers had too much lag.*counts is 90 s behind.*it is resumed"):
        do(job(again(kept)), fresh_broker, told, reader_lag=lambda: {"counts": 90.0})
    assert {f.state for f in told} >= {"waiting", "failed"}
    assert do(job(again(kept)), fresh_broker).rows == len(ALL)


def test_a_dry_run_goes_on_from_the_mark_and_is_in_nobodys_way(kept: Archive, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, AGAIN)
    dry = job(again(kept), dry_run=True)
    said: list[str] = []

    def beside() -> dict[str, float]:
        if len(said) < 4:
            said.append(do(dry, fresh_broker).summary)
        return {}

    # Three transactions later the run itself is not fenced.
    assert do(job(again(kept)), fresh_broker, reader_lag=beside).rows == len(ALL)
    assert said == [
        "80 rows would be written to again; nothing was",
        *(f"{80 - n} rows would be written to again; nothing was; {n} of 80 are there already" for n in (10, 20, 30)),
    ]
    assert do(dry, fresh_broker).summary.startswith("nothing is new: 80 rows were written")
    assert do(replace(dry, again="once"), fresh_broker).summary == "80 rows would be written to again; nothing was"
    assert sorted(places(fresh_broker)) == ALL


def test_an_archive_of_the_topic_before_it_was_made_again_tells_nothing_of_this_one(
    kept: Archive, endpoint: Endpoint, fresh_broker: Broker
) -> None:
    create(fresh_broker.bootstrap, AGAIN, KEPT)
    client = admin(fresh_broker.bootstrap)
    before = topic_ids(client, [KEPT.name], fresh_broker.bootstrap)[KEPT.name]
    write_to_archive(kept, endpoint, [event(1, 40)], topic_id=before)
    remade(fresh_broker, KEPT)
    send(fresh_broker.bootstrap, [Record("kept", "k", "v", 0)])
    later = replace(job(again(kept)), begin=HOUR + timedelta(hours=12), end=HOUR + timedelta(hours=13))
    with pytest.raises(InputNotReady, match=r"kept\[0\] up to 0 of 1 of the recreated topic"):
        do(later, fresh_broker)
    now = topic_ids(client, [KEPT.name], fresh_broker.bootstrap)[KEPT.name]
    write_to_archive(kept, endpoint, [{**event(0, 0), "event_time": HOUR + timedelta(hours=20)}], topic_id=now)
    assert "had no record then" in do(later, fresh_broker).summary


def test_a_base_of_a_part_of_the_records_is_refused(kept: Archive, endpoint: Endpoint, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, SUMS)
    late, gap = (replace(kept, prefix=f"{kept.prefix}-{name}", table=f"tests.{name}") for name in ("late", "gap"))
    write_to_archive(late, endpoint, [event(0, n) for n in range(5, 9)])
    with pytest.raises(BackfillError, match=r"not have all records of kept.*kept/0 without a gap from offset 5 on"):
        do(job(sums(late)), fresh_broker)
    assert do(job(sums(late), unclosed=True), fresh_broker).rows == 4
    # Heartbeats lay before its first record, and then offsets were passed over.
    write_to_archive(gap, endpoint, [event(0, n) for n in range(6, 11)], starts={0: 0})
    assert do(job(sums(gap)), fresh_broker).rows == 4
    write_to_archive(gap, endpoint, [event(0, 14)], starts={0: 13})
    with pytest.raises(BackfillError, match=r"kept/0 without a gap from offset 13 on"):
        do(job(sums(gap)), fresh_broker)


def test_nothing_in_the_archive(kept: Archive, endpoint: Endpoint, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, AGAIN)
    create(fresh_broker.bootstrap, KEPT)

    def of(first: float, last: float, **given: Any) -> Any:
        begin, end = (HOUR + timedelta(hours=h) for h in (first, last))
        return replace(job(again(kept), **given), begin=begin, end=end)

    write_to_archive(kept, endpoint, [{**event(1, 40), "event_time": HOUR + timedelta(hours=9)}])
    # Between two hours, and behind the last of a topic that is there: it had none.
    for one in (of(5, 6), of(12, 13)):
        dry = do(replace(one, dry_run=True), fresh_broker).summary
        done = do(one, fresh_broker)
        assert dry == f"0 rows would be written to again; nothing was: {done.summary}"
        assert (done.rows, done.summary) == (
            0,
            "nothing is in archive kept-archive for this interval: topic kept had no record then",
        )
        assert do(one, fresh_broker).summary == done.summary
    # Part of an hour that has records, of other minutes.
    assert do(of(9.5, 9.9), fresh_broker).summary.startswith("none of the 1 records of the source")
    # The archive was not there then.
    with pytest.raises(BackfillError, match=r"it begins later.*hours from 2026-01-01T10 to 2026-01-01T19"):
        do(of(-3, -2), fresh_broker)
    assert do(of(-3, -2, unclosed=True), fresh_broker).rows == 0
    for gone in admin(fresh_broker.bootstrap).delete_topics([KEPT.name]).values():
        gone.result(60)
    wait_until(lambda: KEPT.name not in admin(fresh_broker.bootstrap).list_topics(timeout=10).topics)
    with pytest.raises(BackfillError, match=r"it ended before, and its topic is not there"):
        do(of(12, 13), fresh_broker)
    empty = again(replace(kept, prefix="nothing", table="tests.nothing"))
    with pytest.raises(InputNotReady, match=r"archive kept-archive holds nothing yet.*prefix 'nothing'"):
        do(job(empty), fresh_broker)


def test_an_archive_is_read_as_it_was_at_a_time(kept: Archive, endpoint: Endpoint, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, AGAIN)
    at = datetime.now(UTC)
    time.sleep(0.01)
    write_to_archive(kept, endpoint, [event(0, PER_PART)])
    assert do(job(again(kept), unclosed=True, as_of=at), fresh_broker).rows == len(ALL)
    assert sorted(places(fresh_broker)) == ALL
    with pytest.raises(SinkError, match="keeps no snapshot of that time"):
        do(job(again(kept), unclosed=True, as_of=HOUR), fresh_broker)
