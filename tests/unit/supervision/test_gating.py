"""How far beats of a topic may go, by what is known of the streams that feed it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from penstock import catalog
from penstock.catalog import HeartbeatReader, HeartbeatTopic, HeartbeatTopics, UpstreamWriter
from penstock.control import Control, ProgressRow, StreamProgress
from penstock.errors import ControlError
from penstock.model import capture
from penstock.model.output_mode import HeartbeatSchedule
from penstock.streams import EmitChanges, EmitFinal, Input, Stateless, Stream, Table, Topic, TopicOutput
from penstock.supervision.event_clock.gating import DATABASE_AWAY, HeartbeatGate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The database's clock, and the beater's, which is fast.
NOW, FAST = 1_700_000_000_000, 40_000
GRACE = 10.0
MINUTE = timedelta(minutes=1)


@dataclass
class Told:
    """What the control database says, and the time that passes. age: seconds since the streams' reports."""

    rows: dict[str, StreamProgress] = field(default_factory=dict)
    passed: float = 0.0
    away: bool = False
    asked: int = 0

    def stream_progress(self) -> tuple[int, dict[str, StreamProgress]]:
        self.asked += 1
        if self.away:
            raise ControlError("away")
        return self.at(), self.rows

    def now(self) -> int:
        return self.at()

    def at(self) -> int:
        return NOW + int(self.passed * 1000)

    def clock(self) -> float:
        return self.passed

    def set(self, name: str, behind: float | None, *, state: str = "idle", desired: str = "on", age: float = 1) -> None:
        """A stream that was so many seconds behind when it reported."""
        at = self.at() - int(age * 1000)
        through = None if behind is None else at - int(behind * 1000)
        self.rows[name] = StreamProgress("on" if desired == "on" else "off", state, at, through)


def beaten(**writers: UpstreamWriter) -> HeartbeatTopics:
    return {
        "t": HeartbeatTopic(Topic("t"), [HeartbeatReader(HeartbeatSchedule(MINUTE))], GRACE, writers),
        "source": HeartbeatTopic(Topic("source"), [HeartbeatReader(HeartbeatSchedule(MINUTE))]),
    }


def held(told: Told, holds: HeartbeatGate, topic: str = "t") -> tuple[float | None, str]:
    """Seconds that beats are behind the clock, None if none may go; and why."""
    holds.look()
    now = told.at() + FAST
    at, why = holds.bound(topic, now)
    return None if at is None else (now - at) / 1000, why


def made(told: Told, **writers: UpstreamWriter) -> HeartbeatGate:
    return HeartbeatGate(beaten(**(writers or {"up": UpstreamWriter()})), cast(Control, told), clock=told.clock)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"behind": 0}, (0, "")),
        ({"behind": 6, "state": "running"}, (0, "")),
        ({"behind": 7, "state": "running"}, (8, "up is behind")),
        ({"behind": 2, "age": 4.9}, (0, "")),
        ({"behind": 3, "age": 5.1}, (8.1, "up is down")),
        ({"behind": 0, "age": 4.9, "state": "failing"}, (0, "")),
        ({"behind": 5, "state": "failing"}, (6, "up is failing")),
        ({"behind": 60, "state": "blocked"}, (61, "up is blocked")),
        ({"behind": 60, "state": "loading"}, (61, "up is loading")),
        ({"behind": 60, "state": "starting"}, (61, "up is starting")),
        ({"behind": 60, "state": "stopped"}, (61, "up is starting")),
        ({"behind": 60, "state": "stopped", "desired": "off"}, (61, "up is stopped")),
        ({"behind": None, "state": "running"}, (None, "up was not through its inputs yet")),
        ({"behind": None, "state": "stopped", "desired": "off"}, (0, "")),
    ],
)
def test_one_stream(given: dict[str, float], found: tuple[float | None, str]) -> None:
    told = Told()
    told.set("up", **given)  # type: ignore[arg-type]
    assert held(told, made(told)) == found


def test_a_stream_that_was_removed_or_is_not_known_yet_holds_nothing() -> None:
    told = Told()
    assert held(told, made(told)) == (0, "")


@pytest.mark.parametrize(
    ("grace", "every", "behind", "is_held"),
    [
        (60.0, 10.0, 40, False), (60.0, 5.0, 40, True), (60.0, 0.0, 28, False),
        # Its unread records would be late, though it keeps up by its own measure.
        (10.0, 0.0, 13, True), (10.0, 10.0, 13, True), (20.0, 0.0, 13, False), (20.0, 10.0, 15, True),
        # As old as a report may be.
        (10.0, 0.0, 6, False), (0.0, 0.0, 6, False),
    ],
)  # fmt: skip
def test_a_stream_that_runs_may_be_behind_by_less_than_the_grace(
    grace: float, every: float, behind: float, *, is_held: bool
) -> None:
    told, topics = Told(), beaten(up=UpstreamWriter(every=every))
    told.set("up", behind, state="running")
    gate = HeartbeatGate({**topics, "t": topics["t"]._replace(grace=grace)}, cast(Control, told), clock=told.clock)
    assert held(told, gate)[1] == ("up is behind" if is_held else "")


def test_of_two_streams_the_slower_one_counts() -> None:
    told = Told()
    told.set("one", 30, state="failing")
    told.set("two", 90, state="failing")
    assert held(told, made(told, one=UpstreamWriter(), two=UpstreamWriter())) == (91, "two is failing")


def test_without_the_database_what_was_known_last_counts() -> None:
    told = Told()
    told.set("up", 2)
    holds = made(told)
    assert held(told, holds) == (0, "")
    told.away, told.passed = True, 3.0
    assert held(told, holds) == (0, "")
    told.passed = 60.0
    assert held(told, holds) == (63, DATABASE_AWAY)
    assert held(told, holds, "source") == (0, ""), "nothing feeds it"


def test_a_database_that_never_answered() -> None:
    told = Told(away=True)
    holds = made(told)
    assert held(told, holds) == (None, DATABASE_AWAY)
    assert held(told, holds, "source") == (0, "")


def test_one_query_a_second_and_none_where_no_stream_feeds_a_topic() -> None:
    told = Told()
    holds = made(told)
    for _ in range(5):
        held(told, holds)
    assert told.asked == 1
    alone = HeartbeatGate({"source": beaten()["source"]}, cast(Control, told), clock=told.clock)
    assert not alone.watches
    held(told, alone, "source")
    assert told.asked == 1


CHAIN = {"first": UpstreamWriter(), "second": UpstreamWriter(feeds=("first",))}


def test_what_a_stream_catches_up_with_has_to_come_through_those_behind_it() -> None:
    told = Told()
    holds = made(told, **CHAIN)
    told.set("first", 1)
    told.set("second", 1)
    assert held(told, holds) == (0, "")
    told.passed = 100.0
    told.set("second", 1)
    assert held(told, holds) == (102, "first is down"), "the second alone is well"
    told.passed = 110.0
    told.set("first", 1)
    told.set("second", 1)
    assert held(told, holds) == (112, "second has not read yet what first caught up with")
    told.passed = 114.0
    told.set("first", 1)
    told.set("second", 1)
    assert held(told, holds) == (0, "")


def test_streams_that_feed_each_other() -> None:
    told = Told()
    holds = made(told, one=UpstreamWriter(feeds=("two",)), two=UpstreamWriter(feeds=("one",)))
    told.set("one", 1)
    told.set("two", 1)
    assert held(told, holds) == (0, "")
    told.set("two", 60, state="failing")
    told.passed = 2.0
    assert held(told, holds) == (63, "two is failing")
    told.passed = 20.0
    for _ in range(3):
        told.passed += 5.0
        told.set("one", 1)
        told.set("two", 1)
        found = held(told, holds)
    assert found == (0, "")


def test_windows_that_stayed_open_while_no_beats_were_sent() -> None:
    """A stream that waits for the clock closes them after the next beat, and is through only then."""
    told = Told()
    holds = made(told, up=UpstreamWriter(clocks=("source",)))
    told.set("up", 1)
    holds.look({"source": 600_000})
    why = "up has windows open that were due while no beats were sent"
    assert held(told, holds) == (600, why)
    assert held(told, holds, "source") == (0, "")
    holds.sent("source")
    told.passed = 2.0
    told.set("up", 1.5)
    assert held(told, holds) == (602, why), "it was not measured since"
    told.passed = 5.0
    told.set("up", 1)
    assert held(told, holds) == (0, "")


def test_beats_that_fail_are_seen_at_once() -> None:
    told = Told()
    holds = made(told, up=UpstreamWriter(clocks=("source",)))
    told.set("up", 1)
    assert held(told, holds) == (0, "")
    holds.look({"source": 90_000})
    assert holds.bound("t", NOW).at == NOW - 90_000


def test_rows_of_the_database(control: Control) -> None:
    made = catalog.build([stream("up", SOURCE, BUNDLES)])
    control.sync(made)
    now, rows = control.stream_progress()
    assert abs(now - control.now()) < 60_000
    assert rows == {"up": StreamProgress("on", "", 0, None)}
    control.report([ProgressRow("up", "chain", "i", state="idle", behind_ms=2500, state_rows=4)], keep=False)
    row = control.stream_progress()[1]["up"]
    assert row.caught_up_at == row.reported_at - 2500
    assert replace(row, reported_at=0, caught_up_at=0) == StreamProgress("on", "idle", 0, 0, 4)
    control.report([ProgressRow("up", "chain", "i", state="idle")], keep=False)
    assert control.stream_progress()[1]["up"].caught_up_at is None


def test_what_is_declared_no_longer_leaves_no_row_behind(control: Control) -> None:
    """Its driver reports it until a release takes it away."""
    control.sync(catalog.build([stream("up", SOURCE, BUNDLES)]))
    given = [ProgressRow(name, "chain", "i") for name in ("up", "gone")]
    control.report(given, keep=True)
    assert set(control.progress()) == {"up"}
    assert {row["name"] for row in control.history(0)} == {"up"}


def test_holds_are_noted_and_forgotten(control: Control) -> None:
    control.hold_heartbeats("t", 5, "up is down")
    control.hold_heartbeats("t", None, "up is failing")
    assert control.heartbeat_holds() == {"t": {"name": "t", "at": None, "why": "up is failing"}}
    control.hold_heartbeats("t", None, "")
    assert control.heartbeat_holds() == {}


SOURCE, BUNDLES, TABLE = Topic("source"), Topic("bundles"), Topic("names", compacted=True)
SHOPS = Table(TABLE, schema="town STRING NOT NULL")


def names(given: DataFrame, shops: DataFrame) -> DataFrame:
    return given.join(shops, "key")


def stream(name: str, source: Topic, target: Topic, *, final: bool = False, every: float = 0.0) -> Stream:
    output_mode = EmitFinal(MINUTE, timedelta(seconds=10)) if final else Stateless()
    output = TopicOutput(target, key="key", value="value")
    return Stream(name, "chain", {"given": Input(source)}, lambda given: given, output, output_mode, every=every)


def test_the_catalog_knows_who_feeds_a_topic() -> None:
    middle, pairs = Topic("middle"), Topic("pairs")
    streams = [
        stream("one", SOURCE, middle, every=2.0),
        Stream(
            "two", "chain", {"given": Input(pattern="mid.*"), "shops": SHOPS}, names,
            TopicOutput(BUNDLES, key="key", value="value"), EmitChanges(MINUTE, MINUTE),
        ),
        stream("names", SOURCE, TABLE),
        stream("windows", BUNDLES, pairs, final=True),
        stream("more", SOURCE, Topic("others"), final=True),
    ]  # fmt: skip
    windowed = catalog.build(streams).heartbeat_topics()
    assert windowed["bundles"].writers == {"two": UpstreamWriter(0.0, ("one",)), "one": UpstreamWriter(2.0)}
    assert windowed["bundles"].grace == 10.0
    assert windowed["source"].writers == {}
    last = catalog.build([*streams, stream("last", pairs, Topic("end"), final=True)]).heartbeat_topics()
    assert last["pairs"].writers["windows"] == UpstreamWriter(0.0, ("two",), ("bundles",))


def test_a_capture_feeds_its_topic() -> None:
    text = "CAPTURE INTO shops FROM mysql till KEY (id) CURSOR at EVERY 3 SECONDS AS SELECT id, at FROM shops"
    captured = capture.parse(text, Path("sql/captures/tills.sql"))
    windowed = catalog.build(
        [stream("windows", captured.topic, Topic("end"), final=True)], [captured]
    ).heartbeat_topics()
    assert windowed["shops"].writers == {"tills": UpstreamWriter(3.0)}
    told = Told()
    told.set("tills", 60, state="failing")
    holds = HeartbeatGate(windowed, cast(Control, told), clock=told.clock)
    assert held(told, holds, "shops") == (61, "tills is failing")
    told.set("tills", 2)
    told.passed += 2
    assert held(told, holds, "shops") == (0, "")
