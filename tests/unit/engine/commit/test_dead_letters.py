"""What the page makes of the headers of a record that was put aside: anybody may have written them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.cli.dead_letters import check_places
from penstock.engine.commit import dead_letter_index
from penstock.engine.operations.reset import Reset
from penstock.errors import PenstockError
from penstock.kafka.dead_letters import DeadLetter
from penstock.kafka.limits import record_digest
from penstock.kafka.replay import REPLAY_KEY, Replay, _plan
from penstock.monitoring.dashboard.dead_letters import _replay, topics


def test_letters_lie_beside_the_topics_that_were_read() -> None:
    assert topics("dead", "bundles", ["receipts"]) == [
        "receipts-dead-letter",
        "bundles-dead-letter",
        "penstock.dead-letters",
    ]
    assert topics("late", "bundles", ["receipts"]) == ["bundles-late"]
    assert topics("dead", "search", ["orders"], ["unfit"]) == ["orders-dead-letter", "unfit", "penstock.dead-letters"]


def test_no_two_records_have_one_digest() -> None:
    records = [(b"k", None), (b"k", b""), (None, b"k"), (b"", b"k"), (b"ab", b""), (b"a", b"b"), (None, None)]
    assert len({record_digest(*one) for one in records}) == len(records)


def test_records_of_two_topics_of_one_name_are_two_records() -> None:
    said = {"topic": "t", "partition": "0", "offset": "7"}
    old, new, unknown = (
        DeadLetter("dead", 0, 0, b"k", b"v", {**said, **({"topic-id": topic} if topic else {})})
        for topic in ("1", "2", "")
    )
    assert len({Replay(one).key for one in (old, new, unknown)}) == 3
    found = [REPLAY_KEY.fullmatch(Replay(one).key) for one in (old, new, unknown)]
    assert [(m["offset"], m["id"]) for m in found if m] == [(b"7", b"1"), (b"7", b"2"), (b"7", None)]


@pytest.mark.parametrize(
    ("reset_of", "letter_of", "has"), [("2", "2", True), ("2", "", True), ("2", "1", False), ("1", "2", False)]
)
def test_what_lies_beside_of_an_earlier_topic_of_the_name_is_another_record(
    monkeypatch: pytest.MonkeyPatch, reset_of: str, letter_of: str, *, has: bool
) -> None:
    said = {"topic": "t", "partition": "0", "offset": "7", "stream": "s", "topic-id": letter_of}
    monkeypatch.setattr(
        "penstock.kafka.dead_letters.read_dead_letters", lambda *_: [DeadLetter("dead", 0, 0, b"k", b"v", said)]
    )
    monkeypatch.setattr(dead_letter_index, "partition_counts", lambda *_: {})
    stream: Any = SimpleNamespace(name="s", side_outputs={"dead": None})
    reset = Reset({}, ids={"t": reset_of}, processed={"t": {0: 10}}).of({"t": "2"})
    one = dead_letter_index.DeadLetterIndex(stream, "nowhere", reset)
    one.topic_ids = {"t": "2"}
    assert one.contains({"topic": "t", "partition": 0, "offset": 7}, "dead") is has


def test_a_letter_that_says_no_place_has_no_origin() -> None:
    for topic in ("\ufffd\ufffd", "a b", ""):
        assert DeadLetter("dead", 0, 0, None, None, {"topic": topic, "partition": "0", "offset": "7"}).origin is None
    for offset, origin in {"7": ("t", 0, 7), "seven": None, "": None}.items():
        assert DeadLetter("dead", 0, 0, None, None, {"topic": "t", "partition": "0", "offset": offset}).origin == origin


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "command"),
    [
        (
            "receipts-dead-letter",
            "3",
            "17",
            "penstock dead-letters replay receipts-dead-letter --place 'receipts[3]@17'",
        ),
        ("receipts-dead-letter", "3; rm -rf ~ #", "17", ""),
        ("receipts-dead-letter", "3", "17\nreboot", ""),
        ("receipts-dead-letter", "٣", "17", ""),
        ("receipts-dead-letter", "", "17", ""),
        ("bundles-late", "3", "17", ""),
    ],
)
def test_only_numbers_reach_the_command_that_somebody_copies(
    topic: str, partition: str, offset: str, command: str
) -> None:
    headers = {"topic": "receipts", "partition": partition, "offset": offset}
    replay = _replay(DeadLetter(topic, 0, 0, None, None, headers))
    assert (replay.command if replay else "") == command


def test_a_place_of_two_topics_is_none() -> None:
    """In `penstock.dead-letters` lie records of every topic."""
    here, there = (DeadLetter("aside", 0, 0, None, None, {"topic": t, "partition": "0", "offset": "7"}) for t in "ab")
    check_places([here, there], ["a[0]@7"], "sink s", "dead")
    with pytest.raises(PenstockError, match=r"(?s)0:7.*a\[0\]@7 or b\[0\]@7"):
        check_places([here, there], ["0:7"], "sink s", "dead")


def test_what_a_store_refused_is_sent_to_that_store_alone() -> None:
    """To send it to its topic would give it to all who read that."""
    said = {"topic": "orders", "partition": "0", "offset": "7", "stream": "search", "output": "elasticsearch:orders"}
    nobody: Any = None
    found = _plan(DeadLetter("search-dead-letter", 0, 0, None, b"{}", said), [], nobody, {})
    assert (found.record, found.refusal.endswith("penstock sinks replay search")) == (None, True)
    replay = _replay(DeadLetter("anywhere", 0, 0, None, b"{}", said))
    assert replay == ("sink", "search", "orders[0]@7")
    assert replay.command == "penstock sinks replay search --place 'orders[0]@7'"
    for forged in ("", "--help", "search; reboot", "a b", "se\u0430rch"):
        assert _replay(DeadLetter("anywhere", 0, 0, None, b"{}", said | {"stream": forged})) is None
    assert _replay(DeadLetter("anywhere", 0, 0, None, b"{}", said | {"topic": "orders'; reboot"})) is None


def test_what_came_too_late_is_not_sent_again() -> None:
    said = {"topic": "rows", "partition": "0", "offset": "7", "stream": "second", "late-ms": "480000", "reason": "late"}
    found = _plan(DeadLetter("penstock.dead-letters", 0, 0, None, b"{}", said), [], cast(Any, None), {})
    assert (found.record, found.refusal) == (None, "it is late and would be late again: recompute its windows")
