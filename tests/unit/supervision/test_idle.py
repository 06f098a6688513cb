"""When a topic is idle, how many heartbeats it then gets, and what ends that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, NamedTuple, cast

import pytest

from penstock.airflow.triggers import HANDOVER
from penstock.catalog import HeartbeatReader, HeartbeatTopic, HeartbeatTopics, UpstreamWriter
from penstock.control import Control, StreamProgress
from penstock.errors import BrokerError
from penstock.model.output_mode import HeartbeatSchedule
from penstock.streams import Topic
from penstock.supervision.event_clock import heartbeats
from penstock.supervision.event_clock.gating import EventTimeBound
from penstock.supervision.event_clock.heartbeats import WATCH_EVERY, HeartbeatSender
from penstock.supervision.event_clock.idle import LOOK_EVERY

EVERY_SECOND = HeartbeatSchedule(timedelta(seconds=1), timedelta(milliseconds=500))
EVERY_MINUTE = HeartbeatSchedule(timedelta(minutes=1))
CLICKS, VIEWS = Topic("clicks"), Topic("views")


def read(*streams: str, schedule: HeartbeatSchedule = EVERY_SECOND, topic: Topic = CLICKS) -> HeartbeatTopic:
    return HeartbeatTopic(topic, [HeartbeatReader(schedule, name) for name in streams])


class Message(NamedTuple):
    at: tuple[str, int, int]

    def topic(self) -> str:
        return self.at[0]

    def partition(self) -> int:
        return self.at[1]

    def offset(self) -> int:
        return self.at[2]


class Log:
    """The topics of a broker and its producer. beats: those sent since they were last taken."""

    def __init__(self) -> None:
        self.ends = {("clicks", 0): 0, ("clicks", 1): 7, ("views", 0): 0}
        self.beats: list[str] = []
        self.down = False

    def append(self, topic: str, partition: int = 0) -> int:
        self.ends[topic, partition] += 1
        return self.ends[topic, partition] - 1

    def produce(self, topic: str, *, partition: int, on_delivery: Callable[..., None], **_: object) -> None:
        if partition == 0:
            self.beats.append(topic)
        on_delivery(None, Message((topic, partition, self.append(topic, partition))))

    def end_offsets(self, _: object, partitions: list[tuple[str, int]], __: str) -> dict[tuple[str, int], int]:
        if self.down:
            raise BrokerError("it is down")
        return {one: self.ends[one] for one in partitions}

    def poll(self, _: float) -> int:
        return 0

    def purge(self) -> None: ...

    def close(self) -> None: ...


class Readers:
    """What a control database says of the streams.

    Attributes:
        state: Rows of state by stream.
        behind: Seconds since all inputs were read, by stream; None if that is unknown.
        off: Streams that are stopped.
    """

    def __init__(self, names: set[str]) -> None:
        self.state: dict[str, int | None] = dict.fromkeys(names, 0)
        self.behind: dict[str, float | None] = dict.fromkeys(names, 0.0)
        self.off: set[str] = set()
        self.time = 0

    def stream_progress(self) -> tuple[int, dict[str, StreamProgress]]:
        read = {name: None if s is None else self.time - int(s * 1000) for name, s in self.behind.items()}
        return self.time, {
            name: StreamProgress("off" if name in self.off else "on", "idle", self.time, read[name], rows)
            for name, rows in self.state.items()
        }

    def heartbeats(self) -> dict[str, object]:
        return {}

    heartbeat_holds = heartbeats

    def record_heartbeat(self, *_: object) -> None: ...

    def hold_heartbeats(self, *_: object) -> None: ...


class World:
    """A sender of heartbeats with a broker and a clock of its own, and what its readers report."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, windowed: HeartbeatTopics) -> None:
        self.control = Readers({reader.name for topic in windowed.values() for reader in topic.readers})
        self.log = Log()
        self.state, self.behind = self.control.state, self.control.behind
        self.now = 1_700_000_040_000
        monkeypatch.setattr(heartbeats, "Producer", lambda _: self.log)
        monkeypatch.setattr(heartbeats, "partition_counts", lambda *_: {"clicks": 2, "views": 1})
        monkeypatch.setattr(heartbeats, "log_end_offsets", self.log.end_offsets)
        monkeypatch.setattr("penstock.supervision.event_clock.gating.LOOK_EVERY", 0.0)
        self.sender = HeartbeatSender(windowed, cast(Control, self.control), "nowhere:1", clock=lambda: self.now / 1000)
        # The control database's clock moves with that of the test.
        self.sender._holds._database_now = lambda: self.now  # type: ignore[method-assign]
        self.sender._idle._clock = lambda: self.now / 1000

    def run(self, seconds: int) -> dict[str, int]:
        """The number of heartbeats of each topic in so many seconds."""
        for _ in range(seconds):
            self.now += 1_000
            self.control.time = self.now
            self.sender.run_once()
        beats, self.log.beats = self.log.beats, []
        return {topic: beats.count(topic) for topic in beats}


Begin = Callable[[HeartbeatTopics], World]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    worlds: list[World] = []

    def of(windowed: HeartbeatTopics) -> World:
        worlds.append(World(monkeypatch, windowed))
        return worlds[0]

    yield of
    worlds[0].sender.close()


def idle(world: World) -> frozenset[str]:
    return world.sender.idle_topics


def test_a_topic_becomes_idle_and_gets_few_heartbeats(begin: Begin) -> None:
    world = begin({"clicks": read("counts")})
    assert world.run(10)["clicks"] >= 3
    assert idle(world) == {"clicks"}
    assert world.run(120) == {"clicks": 4}


def test_a_record_ends_it_at_once(begin: Begin) -> None:
    world = begin({"clicks": read("counts")})
    world.run(10)
    world.log.append("clicks", 1)
    assert world.run(1) == {"clicks": 1}, "a heartbeat was due since the last one"
    world.state["counts"] = 1
    assert world.run(60)["clicks"] == 60
    world.state["counts"] = 0
    world.run(10)
    assert idle(world) == {"clicks"}


def test_a_record_just_before_an_idle_heartbeat_is_seen(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of the topic are those of the heartbeat that follows the record."""
    world = begin({"clicks": read("counts")})
    world.run(10)
    world.log.append("clicks")
    ends = {**world.log.ends, ("clicks", 0): world.log.ends["clicks", 0] - 1}
    with monkeypatch.context() as patched:
        patched.setattr(world.log, "ends", ends)
        world.sender._idle.look()
    assert idle(world) == {"clicks"}
    world.sender._next["clicks"] = 0
    world.sender._idle._look_at = float("inf")
    assert world.run(1) == {"clicks": 1}
    world.sender._idle._look_at = 0
    assert world.run(1) == {"clicks": 1}
    assert not idle(world)


@pytest.mark.parametrize(
    ("what", "value"),
    [("state", 3), ("state", None), ("behind", None), ("behind", 600.0)],
)
def test_a_reader_that_may_hold_records_needs_all_heartbeats(begin: Begin, what: str, value: Any) -> None:
    world = begin({"clicks": read("counts", "sums")})
    getattr(world, what)["sums"] = value
    world.run(3)
    assert world.run(30)["clicks"] == 30
    getattr(world, what)["sums"] = 0
    world.run(10)
    assert idle(world) == {"clicks"}
    getattr(world, what)["sums"] = value if value != 600.0 else 3_600.0
    assert world.run(10)["clicks"] >= 9


def test_topics_of_one_reader_are_idle_together(begin: Begin) -> None:
    world = begin({"clicks": read("joined", "counts"), "views": read("joined", topic=VIEWS)})
    world.run(10)
    assert idle(world) == {"clicks", "views"}
    world.log.append("views")
    assert world.run(3) == {"clicks": 3, "views": 3}, "the reader's time is that of its slowest input"


def test_long_windows_have_their_heartbeats_as_ever(begin: Begin) -> None:
    world = begin({"clicks": read("counts", schedule=EVERY_MINUTE)})
    world.run(10)
    assert world.run(180) == {"clicks": 3}
    assert idle(world) == {"clicks"}


@pytest.mark.parametrize(("schedule", "looks"), [(EVERY_SECOND, LOOK_EVERY), (EVERY_MINUTE, WATCH_EVERY)])
def test_another_sender_may_take_over_while_a_topic_is_idle(
    begin: Begin, schedule: HeartbeatSchedule, looks: float
) -> None:
    """No heartbeat is due, and records are looked for only where one would be due earlier."""
    world = begin({"clicks": read("counts", schedule=schedule)})
    world.run(70)
    assert idle(world) == {"clicks"}
    assert world.sender.run_once() == looks
    assert world.sender.seconds_to_next() > HANDOVER


def chain(schedule: HeartbeatSchedule = EVERY_SECOND) -> HeartbeatTopics:
    writer = UpstreamWriter(clocks=("clicks",))
    return {
        "clicks": read("counts"),
        "views": read("sums", schedule=schedule, topic=VIEWS)._replace(writers={"counts": writer}),
    }


def test_a_topic_needs_heartbeats_while_its_readers_rows_are_waited_for(begin: Begin) -> None:
    world = begin(chain())
    world.state["sums"] = 1
    assert world.run(20)["clicks"] == 20
    world.state["sums"] = 0
    world.run(10)
    assert idle(world) == {"clicks", "views"}


@pytest.mark.parametrize("schedule", [EVERY_SECOND, EVERY_MINUTE])
def test_a_topic_is_no_further_than_the_one_that_its_rows_come_from(begin: Begin, schedule: HeartbeatSchedule) -> None:
    """Else a record that the first stream accepts, as its time stood still, would be late for the second."""
    world = begin(chain(schedule))
    world.run(10)
    assert idle(world) == {"clicks", "views"}
    for _ in range(120):
        if "views" in (beats := world.run(1)):
            assert "clicks" in beats


def test_a_held_topic_brings_no_heartbeats_to_the_one_before_it(begin: Begin) -> None:
    world = begin(chain())
    world.run(10)

    def bound(name: str, now_ms: int) -> EventTimeBound:
        return EventTimeBound(now_ms - 40_000, "counts is behind") if name == "views" else EventTimeBound(now_ms)

    world.sender._holds.bound = bound  # type: ignore[method-assign]
    assert world.run(30)["clicks"] <= 2


def test_a_stream_that_is_stopped_keeps_no_topic_from_being_idle(begin: Begin) -> None:
    world = begin(chain())
    world.control.off.add("sums")
    world.run(10)
    assert idle(world) == {"clicks"}


def test_a_declared_interval_that_is_shorter_is_kept(begin: Begin) -> None:
    world = begin({"clicks": read("counts", topic=Topic("clicks", heartbeat_every=10.0))})
    world.run(10)
    assert idle(world) == {"clicks"}
    assert world.run(60) == {"clicks": 6}


def test_a_broker_that_does_not_say_what_was_written(begin: Begin) -> None:
    world = begin({"clicks": read("counts")})
    world.run(10)
    world.log.down = True
    assert world.run(10)["clicks"] == 10


def test_without_a_control_database_no_topic_is_idle(begin: Begin) -> None:
    world = begin({"clicks": read("counts")})
    with closing(HeartbeatSender({"clicks": read("counts")}, None, "nowhere:1")) as sender:
        sender.run_once()
        sender._idle._look_at = 0.0
        sender.run_once()
        assert not sender.idle_topics
    assert world.log.beats
