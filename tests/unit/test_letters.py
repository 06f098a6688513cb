"""What the page makes of the headers of a record that was put aside: anybody may have written them."""

from __future__ import annotations

import pytest

from penstock.cli.dead_letters import _unambiguous
from penstock.errors import PenstockError
from penstock.kafka.letters import Letter
from penstock.observe.letters import _replay, topics


def test_letters_lie_beside_the_topics_that_were_read() -> None:
    assert topics("dead", "bundles", ["receipts"]) == ["receipts-dead-letter", "penstock.aside"]
    assert topics("late", "bundles", ["receipts"]) == ["bundles-late"]


def test_a_letter_that_says_no_place_has_no_origin() -> None:
    for topic in ("\ufffd\ufffd", "a b", ""):
        assert Letter("dead", 0, 0, None, None, {"topic": topic, "partition": "0", "offset": "7"}).origin is None
    for offset, origin in {"7": ("t", 0, 7), "seven": None, "": None}.items():
        assert Letter("dead", 0, 0, None, None, {"topic": "t", "partition": "0", "offset": offset}).origin == origin


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "command"),
    [
        ("receipts-dead-letter", "3", "17", "penstock dead-letters replay receipts-dead-letter --place 3:17"),
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
    assert _replay(topic, {"penstock.partition": partition, "penstock.offset": offset}) == command


def test_a_place_of_two_topics_is_none() -> None:
    """In `penstock.aside` lie records of every topic."""
    here, there = (Letter("aside", 0, 0, None, None, {"topic": t, "partition": "0", "offset": "7"}) for t in "ab")
    _unambiguous([here, there], ["a[0]@7"])
    with pytest.raises(PenstockError, match=r"(?s)0:7.*a\[0\]@7 or b\[0\]@7"):
        _unambiguous([here, there], ["0:7"])
