"""Captures on a real MariaDB and Kafka: the topic's last value per key is the table."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from datetime import timedelta

import orjson
import pytest
from confluent_kafka.admin import NewPartitions

from penstock.capture import factory
from penstock.capture.polling.poller import Poller
from penstock.capture.source.base import SourceError
from penstock.errors import LeaseLost
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.capture import parse
from penstock.model.topic import POSITIONS
from tests.support.captures import Source, polled, until
from tests.support.wait import wait_until


def test_table_and_topic_are_the_same(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b'), (NULL)")
    poller = source.poller()
    polled(poller)
    assert len(source.topic()) == 3
    assert source.same()
    source.sql(
        f"INSERT INTO {source.name} (name) VALUES ('d')",
        f"UPDATE {source.name} SET name = 'B' WHERE id = 2",
        f"UPDATE {source.name} SET gone = 1 WHERE id = 1",
        f"INSERT INTO {source.name} (name, changed) VALUES ('no cursor', NULL), ('epoch', '1970-01-01 00:00:01')",
    )
    polled(poller)
    assert len(source.topic()) == 4
    assert b'{"id":1}' not in source.topic()
    assert {orjson.loads(v)["name"] for v in source.topic().values()} == {"B", None, "d", "no cursor"}
    source.sql(f"UPDATE {source.name} SET name = 'still none', changed = NULL WHERE name = 'no cursor'")
    polled(poller, 2)
    assert b"still none" in b"".join(source.topic().values())


def test_what_does_not_change_is_written_once(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b')")
    poller = source.poller()
    polled(poller, 2)
    written = poller.metrics.written
    polled(poller, 30)
    assert poller.metrics.written == written
    assert poller.position.low is not None


def test_rows_changed_by_one_statement_are_not_read_for_ever(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) SELECT seq FROM seq_1_to_100")
    poller = source.poller()
    polled(poller, 2)

    def read() -> int:
        before = poller.metrics.read
        polled(poller)
        return poller.metrics.read - before

    assert read() == 100
    wait_until(lambda: read() == 0, what="they are not read again")
    # What is wrong in the topic is found though no poll reads it any more.
    source.send({source.table().popitem()[0]: b"rubbish"})
    poller.compare("test")
    until(poller, lambda: not poller.position.reconcile, "the comparison ends")
    assert source.same()
    source.sql(f"UPDATE {source.name} SET name = 'other'")
    assert read() == 100
    assert source.same()


def test_a_transaction_open_too_long_is_read_when_it_ends(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    poller = source.poller(more="HOLD 2 SECONDS DELAY 1 SECOND")
    polled(poller)
    slow = source.begun("slow")
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('before')")
    until(poller, lambda: poller.position.skipped is not None, "it is no longer waited for")
    assert "is open for" in caplog.text
    for i in range(40):
        source.sql(f"INSERT INTO {source.name} (name) VALUES ('fast {i}')")
        polled(poller)
        time.sleep(0.1)
    low = poller.position.low
    slow.commit()
    until(poller, lambda: poller.position.skipped is None, "what it owed is read")
    assert low is not None
    assert source.same()


def test_a_long_poll_goes_on_where_it_was_killed(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.capture.session.CaptureSession.PAGE", 10)
    poller = source.poller()
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('before')")
    until(poller, lambda: poller.position.low is not None, "the low watermark comes on")
    source.sql(f"INSERT INTO {source.name} (name) SELECT seq FROM seq_1_to_500")
    pages = 0

    def kill(at: str) -> None:
        nonlocal pages
        pages += at == "after commit"
        if pages == 40:
            raise KeyboardInterrupt

    poller.session.hook = kill
    with pytest.raises(KeyboardInterrupt):
        polled(poller)
    source.pollers.pop().close()
    # Some of what was read, and of what was not.
    source.sql(f"UPDATE {source.name} SET name = 'other' WHERE id IN (3, 100, 450)")
    second = source.poller()
    begun = second.position.catch_up
    assert begun is not None
    second.poll()
    assert second.metrics.read < 200
    assert second.position.catch_up is None
    polled(second)
    assert source.same()


def test_a_second_poller_shuts_the_first_out(source: Source) -> None:
    first = source.poller()
    polled(first)
    second = source.poller()
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a')")
    with pytest.raises(LeaseLost, match=r"capture .* a newer process has opened its output"):
        polled(first)
    assert source.topic() == {}
    polled(second)
    assert source.same()


@pytest.mark.parametrize("step", ["before read", "after read", "mid-produce", "before commit", "after commit"])
def test_killed_at_any_step(source: Source, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the broker and the database can tell, the process is gone: it says nothing more to either."""

    class Killed(BaseException):
        pass

    monkeypatch.setattr("penstock.capture.session.CaptureSession.PAGE", 7)
    chance = random.Random(step)
    source.sql(*(f"INSERT INTO {source.name} (name) VALUES ('{i}')" for i in range(20)))
    for _ in range(4):
        poller = source.poller()
        left = chance.randrange(3)

        def kill(at: str) -> None:
            nonlocal left
            left -= at == step
            if left < 0:
                raise Killed

        def work(poller: Poller) -> None:
            while True:
                source.sql(
                    f"UPDATE {source.name} SET name = '{chance.random()}' WHERE id = {chance.randrange(1, 21)}",
                    f"UPDATE {source.name} SET gone = 1 - gone WHERE id = {chance.randrange(1, 21)}",
                )
                poller.step()

        poller.session.hook = kill
        with pytest.raises(Killed):
            work(poller)
        source.pollers.pop().close()
    last = source.poller()
    polled(last)
    assert source.same()


def test_changes_while_it_polls(source: Source) -> None:
    """Writers of one row at a time, of long and of short transactions, and a checker."""
    source.sql(*(f"INSERT INTO {source.name} (name) VALUES ('{i}')" for i in range(50)))
    over = threading.Event()

    def write(seed: int) -> None:
        chance, connection = random.Random(seed), source.connect()
        with connection.cursor() as cursor:
            while not over.is_set():
                for _ in range(chance.choice((1, 1, 3))):
                    key = chance.randrange(1, 13) * 4 + seed
                    cursor.execute(f"UPDATE {source.name} SET name = '{chance.random()}' WHERE id = {key}")
                    time.sleep(chance.choice((0, 0, 0.05)))
                connection.commit()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for writer in writers:
        writer.start()
    try:
        poller = source.poller()
        polled(poller, 80)
    finally:
        over.set()
        for writer in writers:
            writer.join()
    polled(poller)
    assert source.same()


# What a review found


def test_a_cursor_that_is_yet_to_come_hides_nothing(source: Source) -> None:
    poller = source.poller()
    source.sql(f"INSERT INTO {source.name} (name, changed) VALUES ('early', '2037-01-01')")
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('now')")
    until(poller, lambda: poller.position.low is not None, "the low watermark comes on")
    polled(poller, 15)
    assert poller.position.low.year < 2037
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('later')")
    polled(poller)
    assert source.same()
    written = poller.metrics.written
    polled(poller, 5)
    assert poller.metrics.written == written, "it is read at each poll, and written once"


def test_a_clock_that_was_set_back_while_nobody_polled(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a')")
    poller = source.poller()
    until(poller, lambda: poller.position.low is not None, "the low watermark comes on")
    # What is kept of a time when the clock was an hour ahead.
    ahead = replace(poller.position, low=poller.position.low + timedelta(hours=1))
    poller.session.output.commit([], ahead.value())
    again = source.poller()
    assert again.position.low == ahead.low
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('b')")
    polled(again)
    assert source.same()
    assert again.position.low < ahead.low


def test_a_row_that_comes_back_and_goes_again_within_one_poll(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b'), ('c')")
    poller = source.poller()
    polled(poller)
    source.sql(f"UPDATE {source.name} SET gone = 1 WHERE id = 1")
    polled(poller)
    monkeypatch.setattr("penstock.capture.session.CaptureSession.PAGE", 2)
    source.sql(f"UPDATE {source.name} SET gone = 0 WHERE id = 1", f"UPDATE {source.name} SET name = 'B' WHERE id = 2")
    source.sql(f"UPDATE {source.name} SET name = 'C' WHERE id = 3")
    pages = 0

    def go_again(at: str) -> None:
        nonlocal pages
        pages += at == "after read"
        if at == "after read" and pages == 2:
            source.sql(f"UPDATE {source.name} SET gone = 1 WHERE id = 1")

    poller.session.hook = go_again
    polled(poller, 3)
    assert pages > 3
    assert source.same()


def test_partitions_are_not_changed_under_the_keys(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a')")
    polled(source.poller())
    text = source.declared()
    with pytest.raises(factory.PositionRefused, match=r"another number of partitions.*declare PARTITIONS 1"):
        source.opened(text.replace(" FROM mysql", " PARTITIONS 3 FROM mysql", 1))
    client = admin(source.broker.bootstrap)
    assert partition_counts(client, source.broker.bootstrap)[source.name] == 1


def test_a_topic_that_was_given_partitions_is_given_up(source: Source) -> None:
    """What keys left behind in the partitions of before would be read as their values for ever."""
    source.sql(f"INSERT INTO {source.name} (name) SELECT seq FROM seq_1_to_9")
    poller = source.poller()
    polled(poller)
    client, bootstrap = admin(source.broker.bootstrap), source.broker.bootstrap
    client.create_partitions([NewPartitions(source.name, 3)])[source.name].result(30)
    wait_until(lambda: partition_counts(client, bootstrap)[source.name] == 3)
    with pytest.raises(factory.PositionRefused, match="was changed while"):
        factory.check_topic(poller.capture, poller.position, bootstrap)
    source.close(poller)
    text = source.declared().replace(" FROM mysql", " PARTITIONS 3 FROM mysql", 1)
    for decision in ("", "continue", "snapshot"):
        with pytest.raises(factory.PositionRefused, match=r"its keys have moved; got: 3, position of 1"):
            source.opened(text, decision)
    client.delete_topics([source.name])[source.name].result(30)
    wait_until(lambda: source.name not in partition_counts(client, bootstrap))
    polled(source.opened(text, "snapshot"))
    assert source.same()


def test_a_position_that_cannot_be_read_waits_for_a_snapshot(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b')")
    poller = source.poller()
    polled(poller)
    source.close(poller)
    writer = TransactionalWriter(source.name, "test", source.broker.bootstrap, POSITIONS, "capture")
    writer.commit([], b"{}")
    writer.close()
    with pytest.raises(factory.PositionRefused, match=r"cannot be read; got: .*penstock capture ask .* snapshot"):
        source.poller()
    polled(source.poller("snapshot"))
    assert source.same()


def test_a_topic_that_was_made_anew_is_refused(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a')")
    poller = source.poller()
    polled(poller)
    factory.check_topic(poller.capture, poller.position, source.broker.bootstrap)
    client, bootstrap = admin(source.broker.bootstrap), source.broker.bootstrap
    client.delete_topics([source.name])[source.name].result(30)
    wait_until(lambda: source.name not in partition_counts(client, bootstrap))
    with pytest.raises(factory.PositionRefused, match="was changed while"):
        factory.check_topic(poller.capture, poller.position, bootstrap)
    with pytest.raises(factory.PositionRefused, match=r"is not the one that capture .* wrote"):
        source.poller()
    again = source.poller("snapshot")
    polled(again)
    assert source.same()


def test_a_position_that_was_lost_leaves_nothing_behind(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b'), ('c')")
    polled(source.poller())
    source.sql(f"DELETE FROM {source.name} WHERE id = 2")
    text = source.declared()
    # The file has another name, so its position is not found.
    declared = parse(text, source.folder / f"{source.name}-renamed.sql")
    poller = factory.open_poller(declared, source.broker.bootstrap)
    source.pollers.append(poller)
    until(poller, lambda: not poller.position.reconcile and poller.metrics.polls > 0, "all is compared")
    assert source.same()


def test_a_key_of_type_enum_is_refused(source: Source) -> None:
    source.sql(f"ALTER TABLE {source.name} ADD COLUMN kind ENUM('z', 'a') NOT NULL DEFAULT 'a'")
    text = source.declared().replace("KEY (id)", "KEY (id, kind)")
    with pytest.raises(SourceError, match=r"cannot be paged by a column of type ENUM; got: kind.*CAST\(kind AS CHAR\)"):
        source.opened(text)


def test_another_cursor_cannot_go_on(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a')")
    polled(source.poller())
    text = source.declared().replace("CURSOR changed", "CURSOR id")
    for decision in ("", "continue"):
        with pytest.raises(factory.PositionRefused, match=r"cannot go on: its KEY or CURSOR was changed"):
            source.opened(text, decision)
