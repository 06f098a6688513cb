"""Table and topic compared, on a real MariaDB and Kafka: what no poll can see is found and repaired."""

from __future__ import annotations

import time
from dataclasses import asdict

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from sqlalchemy import create_engine, text

from penstock.capture import factory
from penstock.capture.output.position import Position, write
from penstock.capture.polling.poller import Poller
from penstock.capture.reconcile.drift import Drift
from penstock.capture.source.base import SourceError
from penstock.codec.heartbeat import HEARTBEAT_KEY
from penstock.kafka.admin import admin
from penstock.model.capture import parse
from penstock.testing import Record, read, send, table
from tests.support.captures import Source, polled, until, url_of
from tests.support.wait import wait_until


def compared(source: Source, poller: Poller) -> None:
    until(poller, lambda: not poller.position.reconcile and poller.metrics.polls > 0, "all is compared")
    assert source.same()


def test_a_reconcile_finds_and_repairs(source: Source) -> None:
    source.sql(*(f"INSERT INTO {source.name} (name) VALUES ('{i}')" for i in range(50)))
    poller = source.poller(more="RECONCILE EVERY 1 HOUR")
    polled(poller)
    # What no poll can see: a row that is gone, one that kept its cursor, one that changed its key.
    source.sql(
        f"DELETE FROM {source.name} WHERE id = 7",
        f"UPDATE {source.name} SET name = 'unseen', changed = '2020-01-01' WHERE id = 8",
        f"UPDATE {source.name} SET id = 1000, changed = '2020-01-01' WHERE id = 9",
    )
    until(poller, lambda: poller.position.low is not None, "the low watermark comes on")
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('later')")
    polled(poller, 2)
    assert not source.same()
    poller.compare("asked for")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert source.same()
    drift = poller.position.last_reconcile
    assert (drift.missing, drift.differing, drift.extra) == (1, 1, 2)


def test_columns_that_change_in_the_middle_of_a_comparison(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.capture.reconcile.digest_index.DigestIndex.CHUNK", 5)
    source.sql(*(f"INSERT INTO {source.name} (name, changed) VALUES ('{i}', '2020-01-01')" for i in range(40)))
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('new')")
    poller = source.poller()
    polled(poller)
    poller.compare("asked for")
    until(
        poller,
        lambda: poller.session.index.behind is not None and poller.session.index.behind[0] >= 20,
        "half is compared",
    )
    source.sql(f"ALTER TABLE {source.name} ADD COLUMN size INT NOT NULL DEFAULT 7")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert source.same()


def test_what_somebody_else_wrote_into_the_topic_is_taken_out(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name, changed) VALUES ('a', '2020-01-01'), ('b', '2020-01-01')")
    poller = source.poller()
    polled(poller)
    junk = (b"junk", b'{"id":[1]}', b'{"id":{}}', b'{"id":null}', b'{"id": 1}', b'{"id":99}', b'{"other":1}')
    source.send(dict.fromkeys((*junk, b'{"id":2}', HEARTBEAT_KEY), b"{}"))
    poller.compare("asked for")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    found = source.topic()
    assert found.pop(HEARTBEAT_KEY) == b"{}"
    assert found == source.table()
    drift = poller.position.last_reconcile
    assert (drift.missing, drift.differing, drift.extra) == (0, 1, 7)


FOREIGN = [
    ("postgres", "numeric", [b'{"k":"Infinity"}', b'{"k":"NaN"}', b'{"k":"%s"}' % (b"9" * 140_000), b'{"k":"2"}']),
    ("postgres", "text", [b'{"k":"a\\u0000b"}', b"[" * 100_000, b'{"k":%s}' % (b"9" * 140_000), b'{"k":"2"}']),
    ("postgres", "uuid", [b'{"k":"00000000-0000-0000-0000-000000000009"}', b'{"k":"00"}']),
    ("postgres", "inet", [b'{"k":"nowhere"}', b'{"k":"10.0.0.9"}']),
    ("mysql", "DECIMAL(20)", [b'{"k":"Infinity"}', b'{"k":"NaN"}', b'{"k":"%s"}' % (b"9" * 140_000), b'{"k":"2"}']),
    ("mysql", "DOUBLE", [b'{"k":"Infinity"}', b'{"k":"NaN"}', b'{"k":1e300}', b'{"k":2.0}']),
    ("mysql", "VARCHAR(9) CHARACTER SET latin1", ['{"k":"漢"}'.encode(), b'{"k":"%s"}' % (b"x" * 5000), b'{"k":"2"}']),
]


@pytest.mark.parametrize(("dialect", "kind", "foreign"), FOREIGN, ids=[f"{d}-{k}" for d, k, _ in FOREIGN])
def test_keys_that_the_database_cannot_be_asked_for(
    request: pytest.FixtureRequest, source: Source, monkeypatch: pytest.MonkeyPatch, dialect: str, kind: str,
    foreign: list[bytes],
) -> None:  # fmt: skip
    """What the engine refuses is no row's key: it is taken out as any other that no row has."""
    request.param = dialect
    url = url_of(request, source.folder / "x.db")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", url)
    one = {"uuid": "'00000000-0000-0000-0000-000000000001'", "inet": "'10.0.0.1'"}.get(kind, "'1'")
    engine = create_engine(url)
    with engine.begin() as c:
        c.execute(text("DROP TABLE IF EXISTS foreign_keys"))
        c.execute(text(f"CREATE TABLE foreign_keys (k {kind} NOT NULL PRIMARY KEY, c INT)"))
        c.execute(text(f"INSERT INTO foreign_keys VALUES ({one}, 1)"))
    engine.dispose()
    topic = f"foreign-{FOREIGN.index((dialect, kind, foreign))}"
    declared = f"CAPTURE INTO {topic} FROM {dialect} other KEY (k) CURSOR c EVERY 100 MILLISECONDS OVERLAP 1 SECOND"
    file = source.folder / f"{topic}.sql"
    poller = factory.open_poller(parse(f"{declared} AS SELECT k, c FROM foreign_keys", file), source.broker.bootstrap)
    source.pollers.append(poller)
    polled(poller)
    send(source.broker.bootstrap, [Record(topic, key.decode(), "{}") for key in foreign])
    poller.compare("asked for")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert poller.position.last_reconcile.extra == len(foreign)
    assert len(table(read(source.broker.bootstrap, topic))) == 1


def test_a_key_that_its_column_can_no_longer_hold(source: Source) -> None:
    source.sql(f"ALTER TABLE {source.name} MODIFY id VARCHAR(20) CHARACTER SET utf8mb4")
    source.sql(f"INSERT INTO {source.name} (id, changed) VALUES ('a', '2020-01-01'), ('漢', '2020-01-01')")
    poller = source.poller()
    polled(poller)
    source.sql(f"DELETE FROM {source.name} WHERE id <> 'a'")
    source.sql(f"ALTER TABLE {source.name} MODIFY id VARCHAR(20) CHARACTER SET latin1")
    poller.compare("asked for")
    compared(source, poller)
    assert len(source.topic()) == 1


def test_records_that_were_taken_out_of_the_topic_are_missed(source: Source) -> None:
    """By retention or by hand: what the file of the comparison knew of them is no longer so."""
    source.sql(*(f"INSERT INTO {source.name} (name, changed) VALUES ('{i}', '2020-01-01')" for i in range(9)))
    poller = source.poller()
    polled(poller)
    poller.compare("asked for")
    compared(source, poller)
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('later')")
    polled(poller, 2)
    client = admin(source.broker.bootstrap)
    # Of a topic that is compacted alone the broker lets nobody delete.
    policy = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, source.name, incremental_configs=[policy])
    client.incremental_alter_configs([topic])[topic].result(30)
    [gone] = client.delete_records([TopicPartition(source.name, 0, 5)]).values()
    gone.result(30)
    wait_until(lambda: not source.same(), what="they are gone")
    poller.compare("asked for")
    compared(source, poller)
    assert poller.position.last_reconcile.missing == 5


@pytest.mark.parametrize("chunk", [2000, 7])
def test_a_key_that_is_given_another_type(source: Source, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Types belong to a page: keys that were learnt as numbers took the rows for gone that had just been written."""
    monkeypatch.setattr("penstock.capture.reconcile.digest_index.DigestIndex.CHUNK", chunk)
    source.sql(*(f"INSERT INTO {source.name} (name, changed) VALUES ('{i}', '2020-01-01')" for i in range(40)))
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('new')")
    poller = source.poller()
    poller.compare("asked for")
    compared(source, poller)
    poller.compare("asked for")
    until(poller, lambda: poller.session.index.behind is not None or poller.session.index.scanned, "some are compared")
    source.sql(f"ALTER TABLE {source.name} MODIFY id VARCHAR(20)")
    source.sql(f"INSERT INTO {source.name} (id, name, changed) VALUES ('x', 'x', '2020-01-01')")
    compared(source, poller)
    assert b'{"id":"7"}' in source.topic()
    assert poller.position.last_reconcile.extra == 41
    source.sql(f"DELETE FROM {source.name} WHERE id = 'x'", f"ALTER TABLE {source.name} MODIFY id BIGINT UNSIGNED")
    poller.compare("asked for")
    compared(source, poller)
    assert b'{"id":7}' in source.topic()


def test_a_key_that_is_given_another_type_between_two_questions(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is read to its end, and its type changes before the topic's other keys are looked up."""
    source.sql(*(f"INSERT INTO {source.name} (name, changed) VALUES ('{i}', '2020-01-01')" for i in range(9)))
    poller = source.poller()
    polled(poller)
    source.send({b'{"id":77}': b"{}"})
    poller.compare("asked for")
    until(poller, lambda: poller.session.index.scanned, "the table is read")
    source.sql(f"ALTER TABLE {source.name} MODIFY id VARCHAR(20)")
    scan = poller.session.index.scan
    monkeypatch.setattr(poller, "_next_poll", float("inf"))
    until(poller, lambda: poller.session.index.scan > scan, "the other type is seen")
    assert poller.position.drift == Drift(), "nothing was said to be gone"
    poller.poll_now()
    compared(source, poller)


def test_keys_that_the_database_compares_as_equal(source: Source) -> None:
    source.sql(f"ALTER TABLE {source.name} MODIFY id VARCHAR(20) COLLATE utf8mb4_general_ci")
    for value in ("a", "B", "c ", "d"):
        source.sql(f"INSERT INTO {source.name} (id) VALUES ('{value}')")
    poller = source.poller()
    polled(poller)
    source.sql(f"UPDATE {source.name} SET id = 'A' WHERE id = 'a'", f"UPDATE {source.name} SET id = 'c' WHERE id = 'c'")
    polled(poller, 2)
    poller.compare("asked for")
    compared(source, poller)
    assert set(source.topic()) == {b'{"id":"A"}', b'{"id":"B"}', b'{"id":"c"}', b'{"id":"d"}'}


def test_a_cursor_that_is_given_another_type(source: Source) -> None:
    source.sql(f"ALTER TABLE {source.name} MODIFY changed BIGINT")
    source.sql(*(f"INSERT INTO {source.name} (name, changed) VALUES ('{i}', {20260101 + i})" for i in range(9)))
    poller = source.poller()
    until(poller, lambda: poller.position.low is not None and poller.metrics.polls > 1, "a low watermark")
    source.sql(f"ALTER TABLE {source.name} MODIFY changed DATE")
    with pytest.raises(SourceError, match=r"cursor of capture .* has another type than before; got: changed"):
        polled(poller)
    source.pollers.remove(poller)
    poller.close()
    source.sql(f"INSERT INTO {source.name} (name, changed) VALUES ('later', '2026-02-02')")
    again = source.poller()
    assert again.position.low is None
    compared(source, again)


def test_a_cursor_that_loses_its_zone_hides_no_later_change(source: Source) -> None:
    west = "SET time_zone = '-05:00'"
    source.sql(*(f"INSERT INTO {source.name} (name) VALUES ('{i}')" for i in range(9)))
    poller = source.poller()
    until(poller, lambda: poller.position.low is not None and poller.metrics.polls > 1, "a low watermark")
    source.sql(
        west,
        f"ALTER TABLE {source.name} MODIFY changed DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)",
        f"INSERT INTO {source.name} (name) VALUES ('later')",
    )
    with pytest.raises(SourceError, match=r"cursor of capture .* has another type than before; got: changed"):
        until(poller, lambda: False, "it polls")
    source.close(poller)
    again = source.poller()
    assert again.position.low is None
    compared(source, again)
    # Its watermark is of the new type.
    until(again, lambda: again.position.low is not None, "a low watermark")
    source.sql(west, f"INSERT INTO {source.name} (name) VALUES ('latest')")
    polled(again, 2)
    assert source.same()


def test_a_cursor_that_loses_its_zone_during_the_snapshot(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.capture.session.CaptureSession.PAGE", 5)
    source.sql(*(f"INSERT INTO {source.name} (name) VALUES ('{i}')" for i in range(30)))
    poller = source.poller()
    until(poller, lambda: poller.metrics.rows > 0, "the snapshot has begun")
    source.sql("SET time_zone = '-05:00'", f"ALTER TABLE {source.name} MODIFY changed DATETIME(6)")
    with pytest.raises(SourceError, match=r"cursor of capture .* has another type than before; got: changed"):
        until(poller, lambda: poller.position.snapshot is None, "the snapshot ends")
    source.close(poller)
    again = source.poller()
    assert again.position.low is None
    compared(source, again)


def test_a_comparison_keeps_its_rate_whatever_is_polled(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.capture.reconcile.digest_index.DigestIndex.CHUNK", 20)
    source.sql(f"INSERT INTO {source.name} (name) SELECT seq FROM seq_1_to_100")
    poller = source.poller(more="RECONCILE EVERY 1 DAY RATE 50")
    polled(poller)
    began, polls = time.monotonic(), poller.metrics.polls
    poller.compare("asked for")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert time.monotonic() - began >= 100 / 50 - 20 / 50
    assert poller.metrics.polls - polls > 5


def test_what_the_last_comparison_found_is_kept_while_another_runs(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b')")
    poller = source.poller()
    polled(poller)
    assert time.time() - poller.session.index.in_sync_at < 60, "a snapshot needs no comparison at once"
    source.send({b"junk": b"{}"})
    poller.compare("asked for")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    found = poller.position.last_reconcile
    assert (found.extra, found.why, found.explained) == (1, "asked for", False)
    poller.compare("asked for")
    source.close(poller)
    again = source.poller()
    assert again.position.reconcile
    assert again.position.last_reconcile == found
    assert 0 <= again.session.index.in_sync_at - found.ended < 1


@pytest.mark.parametrize("runs", [False, True])
def test_what_an_earlier_version_has_repaired_is_taken_over(
    source: Source, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    """It kept in the file of the index what is in the position now."""
    last = Drift(1, 2, 3, rows=9, ended=1.6e9, why="asked for")
    running = Drift(differing=4, rows=2) if runs else last

    def value(position: Position) -> bytes:
        return write({k: v for k, v in asdict(position).items() if k not in ("drift", "reconciles")}).encode()

    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b')")
    with monkeypatch.context() as earlier:
        earlier.setattr(Position, "value", value)
        poller = source.poller()
        polled(poller)
        poller.session.index._store("last", asdict(last))
        poller.session.index._store("drift", asdict(running))
        source.close(poller)
    for _ in range(2):
        poller = source.poller()
        assert poller.position.reconciles == (last,)
        assert poller.position.drift == (running if runs else Drift())
        source.close(poller)
    poller = source.poller("snapshot")
    polled(poller)
    poller.compare("asked for")
    compared(source, poller)
    source.close(poller)
    found = source.poller().position.reconciles
    assert found[0] == last
    assert sum(drift.differing for drift in found[1:]) == (4 if runs else 0)
