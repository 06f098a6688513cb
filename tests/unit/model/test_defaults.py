"""Defaults of an input, a topic and an output mode, and when heartbeats are due."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from penstock.errors import DeclarationError
from penstock.model.output import CommitMarker
from penstock.model.output_mode import HeartbeatSchedule, OutputMode, millis
from penstock.streams import EmitChanges, EmitFinal, Input, Stateless, Stream, StreamJoin, Table, Timers, Topic
from tests.support.outputs import Heap

if TYPE_CHECKING:
    pass

MINUTE, TEN = timedelta(minutes=1), timedelta(seconds=10)
EVENTS = Topic("events")
WITH_SCHEMA = Input(EVENTS, schema="at TIMESTAMP", event_time="at")
RAW, PATTERN = Input(EVENTS), Input(pattern="e.*")
KEPT = "events-dead-letter"


@pytest.mark.parametrize(
    ("given", "stops", "dead"), [(WITH_SCHEMA, True, KEPT), (RAW, True, None), (PATTERN, False, None)]
)
def test_policies_that_are_not_declared(given: Input, stops: bool, dead: str | None) -> None:
    """The table of docs/streams.md."""
    assert given.late_records is None
    assert given.fails_on_data_loss is stops
    assert (given.dead_letter_topic.name if given.dead_letter_topic else None) == dead
    assert given.max_ahead == timedelta(minutes=5)


def test_policies_that_are_declared() -> None:
    assert Input(EVENTS, on_data_loss="continue").fails_on_data_loss is False
    assert Input(pattern="e.*", on_data_loss="fail").fails_on_data_loss is True
    assert Input(EVENTS, schema="at TIMESTAMP", event_time="at", dead_letters="count").dead_letter_topic is None
    assert Table(Topic("events", compacted=True), schema="n INT").dead_letter_topic.name == KEPT


@pytest.mark.parametrize(
    ("output_mode", "due"),
    [
        (EmitFinal(MINUTE, TEN), HeartbeatSchedule(MINUTE, TEN)),
        (EmitFinal(MINUTE, TEN, phase=TEN), HeartbeatSchedule(MINUTE, TEN + TEN)),
        (StreamJoin(within=MINUTE, grace=TEN), HeartbeatSchedule(timedelta(seconds=35))),
        (StreamJoin(within=timedelta(0), grace=timedelta(0)), HeartbeatSchedule(timedelta(seconds=1))),
        (Timers(tick=TEN, grace=MINUTE), HeartbeatSchedule(TEN)),
        (EmitChanges(MINUTE, TEN), None),
        (Stateless(), None),
    ],
)
def test_when_time_must_have_moved(output_mode: OutputMode, due: HeartbeatSchedule | None) -> None:
    assert output_mode.heartbeat_schedule == due


@pytest.mark.parametrize(
    ("after", "moment"), [(0, 10_000), (9_999, 10_000), (10_000, 70_000), (69_999, 70_000), (70_000, 130_000)]
)
def test_the_next_moment_is_a_windows_end_and_its_grace(after: int, moment: int) -> None:
    assert HeartbeatSchedule(MINUTE, TEN).next(after) == moment
    assert millis(TEN) == 10_000


def test_broker_settings_that_are_declared_overrule() -> None:
    assert Topic("t", config={"retention.ms": "5"}).settings()["retention.ms"] == "5"
    assert Topic("t", compacted=True).settings()["cleanup.policy"] == "compact"
    with pytest.raises(DeclarationError, match="topic t needs a partition"):
        Topic("t", partitions=0)


def test_a_mark_is_read_as_it_was_written() -> None:
    mark = CommitMarker("q", 3, {"events": {0: 5, 11: 7}}, {"events": "AAA"})
    assert CommitMarker.read(mark.value()) == mark


def test_a_store_that_is_written_again_needs_keys() -> None:
    with pytest.raises(DeclarationError, match="heap writes a batch again after a crash, so its rows need a key"):
        Stream("s", "a", {"events": WITH_SCHEMA}, lambda events: events, Heap(), Stateless())
