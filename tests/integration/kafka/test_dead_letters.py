"""Dead letters read and sent again: each record once, to nobody who has taken it, whatever happens in between."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from penstock.catalog import build
from penstock.cli import app, dead_letters
from penstock.control import Control
from penstock.devstack.servers.kafka import Broker
from penstock.errors import BrokerError
from penstock.kafka import admin as kafka_admin
from penstock.kafka import replay as replays
from penstock.kafka.admin import admin, topic_ids
from penstock.kafka.dead_letters import open_consumer, read_range
from penstock.kafka.limits import ProducerRecord
from penstock.kafka.record_lookup import newest_records
from penstock.kafka.replay import REPLAYS, Replay, replay
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.topic import COMMITS
from penstock.settings import settings
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, send
from tests.support.sales_letters import DEAD, SALES, letters, of_sales, put_aside, sent_again
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, SALES, DEAD, COMMITS)
    return fresh_broker.bootstrap


def test_a_record_is_sent_again_once_to_where_it_was(bootstrap: str) -> None:
    send(bootstrap, [Record(SALES.name, "k", text, 1, timestamp=1_700_000_000_000) for text in ("zero", "one", "two")])
    # Two streams have put it aside, and one of the records is gone.
    put_aside(bootstrap, ("a", 1, 1, "one"), ("b", 1, 1, "one"), ("a", 1, 0, "zero"), ("b", 1, 0, "zero"))
    for done in admin(bootstrap).delete_records([TopicPartition(SALES.name, 1, 1)]).values():
        done.result(30)
    assert [one.refusal for one in sent_again(bootstrap, "ab")] == ["", ""]
    assert of_sales(bootstrap) == [(1, "zero", "sales[1]@0"), (1, "one", "sales[1]@1")]
    copy, original = read(bootstrap, SALES.name)[-2:]
    assert (copy.timestamp, original.timestamp) == (1_700_000_000_000, 1_700_000_000_000)
    assert (dict(copy.headers).get("h"), dict(original.headers).get("h")) == ("1", None)
    assert [one.already_replayed for one in sent_again(bootstrap, "ab")] == [True, True]
    assert len(of_sales(bootstrap)) == 2


def test_a_copy_without_the_time_of_its_record_is_not_sent(bootstrap: str) -> None:
    """It would have the time of now, which may be the event time."""
    send(bootstrap, [Record(SALES.name, "k", "zero", 0)])
    put_aside(bootstrap, ("a", 0, 0, "zero"), ("a", 0, 7, "seven"), timestamp=None)
    assert [one.refusal for one in sent_again(bootstrap)] == [
        "",
        "its copy has neither timestamp nor headers, and the topic no longer has the record",
    ]
    assert [value for _, value, _ in of_sales(bootstrap)] == ["zero"]


def test_a_record_of_a_topic_that_was_made_again_is_another_one(bootstrap: str) -> None:
    """In the same place, with the same key and value; of the earlier one only its letter is left."""

    def of_now() -> str:
        return topic_ids(admin(bootstrap), [SALES.name], bootstrap)[SALES.name]

    send(bootstrap, [Record(SALES.name, "k", "zero", 1, timestamp=1_700_000_000_000)])
    put_aside(bootstrap, ("a", 1, 0, "zero"), topic_id=of_now())
    assert [one.already_replayed for one in sent_again(bootstrap)] == [False]
    admin(bootstrap).delete_topics([SALES.name])[SALES.name].result(30)
    wait_until(lambda: SALES.name not in admin(bootstrap).list_topics(timeout=10).topics)
    create(bootstrap, SALES)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(SALES.name, b"zero", b"k", 1, timestamp=1_700_000_000_001, headers=[("none", None), ("h", b"1")])
    assert producer.flush(30) == 0
    put_aside(bootstrap, ("a", 1, 0, "zero"), topic_id=of_now())
    assert sorted(one.already_replayed for one in sent_again(bootstrap)) == [False, True]
    # A commit is answered before it can be read.
    wait_until(lambda: len(newest_records([SALES.name], 9, bootstrap)) == 2)
    assert [one.headers for one in newest_records([SALES.name], 9, bootstrap)] == [(("none", None), ("h", b"1"))] * 2
    assert [one.already_replayed for one in sent_again(bootstrap)] == [True, True]


def test_an_open_transaction_hides_no_note_of_what_was_sent_again(bootstrap: str) -> None:
    put_aside(bootstrap, ("a", 1, 0, "zero"))
    create(bootstrap, REPLAYS)
    other = Producer({"bootstrap.servers": bootstrap, "transactional.id": "other", "log_level": 2})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(REPLAYS.name, b"{}", b"other", 0)
    assert other.flush(30) == 0
    writer = TransactionalWriter("dead-letters", "penstock.replay", bootstrap, REPLAYS, "replay")
    writer.commit([ProducerRecord(REPLAYS.name, Replay(letters(bootstrap)[0]).key, b"{}")], b"{}")
    writer.close()
    ending = threading.Timer(1.5, other.commit_transaction)
    ending.start()
    assert [one.already_replayed for one in sent_again(bootstrap)] == [True]
    ending.join()


def test_what_has_a_newer_record_of_its_key_is_not_sent_to_a_compacted_topic(bootstrap: str) -> None:
    """It would be the last of its key: an older value, or one that was deleted."""
    admin(bootstrap).delete_topics([SALES.name])[SALES.name].result(30)
    wait_until(lambda: SALES.name not in admin(bootstrap).list_topics(timeout=10).topics)
    create(bootstrap, replace(SALES, compacted=True, config={}))
    send(bootstrap, [Record(SALES.name, key, text, 1) for key, text in [("k", "a"), ("l", "b"), ("k", None)]])
    put_aside(bootstrap, ("a", 1, 0, "a"), ("a", 1, 1, "b"), key="kl")
    assert ["offset 2" in one.refusal for one in sent_again(bootstrap)] == [True, False]
    assert [value for _, value, _ in of_sales(bootstrap)] == ["b"]


def test_no_stream_reads_a_record_twice_unless_somebody_says_so(bootstrap: str) -> None:
    put_aside(bootstrap, ("a", 0, 7, "seven"))
    (one,) = sent_again(bootstrap, ["a", "b", "c"])
    assert one.refusal == "it would be read twice by b, c, which have no dead letter of it (--again-for b)"
    assert sent_again(bootstrap, ["a", "b", "c"], ["b"])[0].refusal
    assert of_sales(bootstrap) == []
    assert not sent_again(bootstrap, ["a", "b", "c"], ["b", "c"])[0].refusal
    assert of_sales(bootstrap) == [(0, "seven", "sales[0]@7")]


def test_a_letter_of_a_topic_that_no_stream_reads_is_forged_or_old(bootstrap: str) -> None:
    """Else whoever may write dead letters has the platform write anywhere, a mark for one."""
    put_aside(bootstrap, ("a", 0, 7, "seven"))
    (one,) = sent_again(bootstrap, [])
    assert (one.refusal, one.record) == ("no stream reads sales", None)
    assert of_sales(bootstrap) == []


def test_of_a_cut_letter_the_record_itself_is_sent_or_nothing(bootstrap: str) -> None:
    long = random.Random(0).randbytes(5000).hex()
    send(bootstrap, [Record(SALES.name, "k", long), Record(SALES.name, "k", "another")])
    put_aside(bootstrap, ("a", 0, 0, long), ("a", 0, 1, long), most=2000)
    assert all(one.truncated == "value" and len(one.value or b"") < 2000 for one in letters(bootstrap))
    first, second = sent_again(bootstrap)
    assert (first.refusal, second.refusal) == ("", "its copy is truncated, and the topic no longer has the record")
    assert of_sales(bootstrap) == [(0, long, "sales[0]@0")]


def test_letters_that_cannot_be_sent_leave_the_others_alone(bootstrap: str) -> None:
    """Of a partition and a topic that are gone, and of one that is too large for its topic with one more header."""
    create(bootstrap, Topic("tight", partitions=1, config={"max.message.bytes": "2000", "retention.ms": "-1"}))
    large = random.Random(0).randbytes(940).hex()
    send(bootstrap, [Record("tight", "k", large, 0), Record(SALES.name, "k", "zero")])
    put_aside(bootstrap, ("a", 7, 0, "no partition"), ("a", 0, 0, "zero"))
    for topic, value in (("tight", large), ("gone", "no topic")):
        producer = Producer({"bootstrap.servers": bootstrap})
        said = {"topic": topic, "partition": 0, "offset": 0, "stream": "a", "reason": "no: it"}
        producer.produce(DEAD.name, value.encode(), b"k", headers={f"penstock.{n}": str(t) for n, t in said.items()})
        assert producer.flush(30) == 0
    refusals = {str(one.letter.origin): one.refusal for one in sent_again(bootstrap)}
    assert refusals.pop("sales[0]@0") == ""
    assert "no partition 7 of topic sales" in refusals["sales[7]@0"]
    assert "no partition 0 of topic gone" in refusals["gone[0]@0"]
    assert "max.message.bytes" in refusals["tight[0]@0"]
    assert of_sales(bootstrap) == [(0, "zero", "sales[0]@0")]


def test_a_replay_that_is_killed_half_way_goes_on_behind_it(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_aside(bootstrap, *(("a", 0, n, f"record {n}") for n in range(5)))
    monkeypatch.setattr(replays, "RECORDS_PER_TRANSACTION", 2)
    commit, left = TransactionalWriter.commit, [None, None]

    def struck(self: TransactionalWriter, messages: Iterable[ProducerRecord], mark: bytes) -> int:
        if left:
            left.pop()
            return commit(self, messages, mark)
        self._producer.begin_transaction()
        for message in messages:
            self._send(message)
        self._producer.flush(10)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TransactionalWriter, "commit", struck)
        with pytest.raises(KeyboardInterrupt):
            sent_again(bootstrap)
    assert len(of_sales(bootstrap)) == 4
    assert sum(one.already_replayed for one in sent_again(bootstrap)) == 4
    assert sorted(value or "" for _, value, _ in of_sales(bootstrap)) == [f"record {n}" for n in range(5)]


def test_a_dry_run_of_a_replay_leaves_one_that_runs_alone(bootstrap: str) -> None:
    put_aside(bootstrap, ("a", 0, 1, "one"))
    found = letters(bootstrap)
    assert [bool(said.record) for said in replay(found, found, lambda _: ["a"], bootstrap, dry=True)] == [True]
    assert REPLAYS.name not in kafka_admin.partition_counts(admin(bootstrap), bootstrap)
    create(bootstrap, REPLAYS)
    with closing(replays.letter_replays(bootstrap)) as running:
        assert [bool(said.record) for said in replay(found, found, lambda _: ["a"], bootstrap, dry=True)] == [True]
        running.commit([ProducerRecord(REPLAYS.name, found[0].digest.encode(), b"{}")], b"{}")


def transform(sales: DataFrame) -> DataFrame:
    return sales


@pytest.mark.usefixtures("home")
def test_records_that_are_removed_while_a_range_is_read_hide_none_behind_them(bootstrap: str) -> None:
    send(bootstrap, [Record(SALES.name, None, str(n), 0) for n in range(10)])
    [done] = admin(bootstrap).delete_records([TopicPartition(SALES.name, 0, 6)]).values()
    done.result(30)
    with open_consumer(bootstrap) as reader:
        assert [m.offset() for m in read_range(reader, SALES.name, 0, 2, 9)] == [6, 7, 8]
        assert [m.offset() for m in read_range(reader, SALES.name, 0, 2, 5)] == []
        assert [m.offset() for m in read_range(reader, SALES.name, 0, 20, 30)] == []


def test_a_partition_without_a_leader_is_an_error(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = kafka_admin._offsets

    def without_first(client: AdminClient, partitions: Iterable[tuple[str, int]], *of: Any) -> dict[Any, int]:
        return {place: at for place, at in offsets(client, partitions, *of).items() if place[1]}

    monkeypatch.setattr(kafka_admin, "_offsets", without_first)
    with pytest.raises(BrokerError, match="partition 0 has no leader"):
        letters(bootstrap)
    with pytest.raises(BrokerError, match="partition 0 has no leader"):
        newest_records([SALES.name], 5, bootstrap)


def test_the_command_line_tells_sends_and_discards(
    bootstrap: str, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "connect", lambda: control)
    given = Input(SALES, schema="n BIGINT NOT NULL, timestamp TIMESTAMP NOT NULL")
    made = build([Stream("a", "tests", {"sales": given}, transform, TopicOutput(Topic("out"), value="n"), Stateless())])
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", bootstrap)
    settings.cache_clear()
    monkeypatch.setattr(dead_letters, "load", lambda: made)
    monkeypatch.setattr("penstock.catalog.partial_catalog", lambda: (made, []))

    def told(*command: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["dead-letters", *command])
        assert done.exit_code == code, done.output
        return done.output

    assert "There are no dead letters" in told("list")
    put_aside(bootstrap, ("a", 0, 3, "three\x1b[31m\nforged line"), ("gone", 0, 4, "four"))
    # Of more letters than are looked at for the newest ones none is passed over.
    monkeypatch.setattr(dead_letters, "MIN_SEARCHED", 1)
    (one, two) = json.loads(told("list", "--json"))
    assert (one["topic"], one["stream"], one["reason"], one["count"], one["open"]) == (DEAD.name, "a", "no", 1, 1)
    assert two["stream"] == "gone"
    text = told("show", "--stream", "a")
    assert "four" not in text
    assert text == told("show", DEAD.name, "--stream", "a")
    assert r"three\x1b[31m\nforged line" in text
    assert "sales[0]@3" in text
    assert "take one of: penstock.dead-letters, sales-dead-letter" in told("show", "nothing-like-it", code=2)
    for place in ("0:3", "sales[0]@3"):
        assert "1 records would be sent" in told("replay", DEAD.name, "--place", place, "--dry-run")
    nothing = told("replay", DEAD.name, "--place", "0:3", "--place", "0:7", code=1)
    assert "sales-dead-letter has no dead letter of this place; got: 0:7" in nothing
    assert control.actions(1) == []
    assert "1 records were sent" in told("replay", DEAD.name, "--place", "0:3", "--note", "fixed")
    [action] = control.actions(9)
    assert (action["verb"], action["target"]) == ("replay", DEAD.name)
    assert action["detail"] == "fixed; 1 dead letters; places 0:3"
    # The other one is of a stream that is no more: stream a has taken it.
    assert "sales[0]@4 is refused: it would be read twice by a" in told("replay", DEAD.name, code=1)
    assert [place for _, _, place in of_sales(bootstrap)] == ["sales[0]@3"]
    assert "no dead letters are chosen" in told("discard", DEAD.name, code=1)
    chosen = ("discard", DEAD.name, "--stream", "gone", "--reason", "no")
    assert "1 dead letters would be discarded" in told(*chosen, "--dry-run")
    assert "Aborted" in told(*chosen, code=1)
    assert [one["verb"] for one in control.actions(9)] == ["replay", "replay"]
    assert "1 dead letters were discarded; 0 were discarded and 0 replayed" in told(*chosen, "--yes", "--note", "test")
    action = control.actions(1)[0]
    assert (action["verb"], action["target"]) == ("discard", DEAD.name)
    assert action["detail"] == "test; 1 dead letters; of gone; reason no"
    assert "0 dead letters were discarded; 1 were discarded and 1 replayed" in told("discard", DEAD.name, "--all", "-y")
    assert len(control.actions(9)) == 3
    assert "0 records were sent; 1 were replayed before, 1 discarded." in told("replay", DEAD.name)
    assert [(one["count"], one["open"]) for one in json.loads(told("list", "--json"))] == [(1, 0), (1, 0)]
