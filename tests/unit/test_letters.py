"""What the page makes of the headers of a record that was put aside: anybody may have written them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.dead_letters import unambiguous
from penstock.errors import PenstockError
from penstock.kafka.letters import Letter
from penstock.kafka.replay import _planned
from penstock.observe.letters import _replay, topics


def test_letters_lie_beside_the_topics_that_were_read() -> None:
    assert topics("dead", "bundles", ["receipts"]) == ["receipts-dead-letter", "bundles-dead-letter", "penstock.aside"]
    assert topics("late", "bundles", ["receipts"]) == ["bundles-late"]
    assert topics("dead", "search", ["orders"], ["unfit"]) == ["orders-dead-letter", "unfit", "penstock.aside"]


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
    unambiguous([here, there], ["a[0]@7"])
    with pytest.raises(PenstockError, match=r"(?s)0:7.*a\[0\]@7 or b\[0\]@7"):
        unambiguous([here, there], ["0:7"])


def test_what_a_store_refused_is_sent_to_that_store_alone() -> None:
    """To send it to its topic would give it to all who read that."""
    said = {"topic": "orders", "partition": "0", "offset": "7", "stream": "search", "output": "elasticsearch:orders"}
    nobody: Any = None
    found = _planned(Letter("search-dead-letter", 0, 0, None, b"{}", said), [], nobody)
    assert (found.record, found.refused.endswith("penstock sinks replay search")) == (None, True)
    headers = {f"penstock.{name}": text for name, text in said.items()}
    assert _replay("anywhere", headers) == "penstock sinks replay search --place 0:7"
    for forged in ("", "--help", "search; reboot", "a b", "se\u0430rch"):
        assert _replay("anywhere", headers | {"penstock.stream": forged}) == ""
