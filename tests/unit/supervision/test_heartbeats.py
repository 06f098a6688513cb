"""Which beats go out and with which time, while a stream that feeds the topic is behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError

from penstock.catalog import HeartbeatReader, HeartbeatTopic, HeartbeatTopics, UpstreamWriter
from penstock.control import Actor, Control, ProgressRow
from penstock.errors import BrokerError
from penstock.model.output_mode import HeartbeatSchedule
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from penstock.supervision.event_clock import heartbeats
from penstock.supervision.event_clock.heartbeats import HeartbeatSender

DUE, GRACE = HeartbeatSchedule(timedelta(seconds=10), timedelta(seconds=4)), 4.0
FED, SOURCE = Topic("fed"), Topic("source")
WINDOWED: HeartbeatTopics = {
    "fed": HeartbeatTopic(FED, [HeartbeatReader(DUE)], GRACE, {"up": UpstreamWriter()}),
    "source": HeartbeatTopic(SOURCE, [HeartbeatReader(DUE, "up")], GRACE),
}
UP = Stream("up", "chain", {"given": Input(SOURCE)}, lambda given: given, TopicOutput(FED, value="value"), Stateless())


class Message(NamedTuple):
    of: int

    def partition(self) -> int:
        return self.of

    def offset(self) -> int:
        return 0


class Out:
    """Takes what is sent, in the place of a client of a broker. refused: the topics whose records do not arrive."""

    def __init__(self, _: Mapping[str, Any]) -> None:
        self.sent: list[tuple[str, int]] = []
        self.refused: set[str] = set()

    def produce(
        self, topic: str, *, value: bytes, timestamp: int, partition: int, on_delivery: Callable[..., None], **_: object
    ) -> None:
        assert json.loads(value)["heartbeat"] == timestamp
        if topic in self.refused:
            on_delivery(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), Message(partition))
        else:
            self.sent.append((topic, timestamp))
            on_delivery(None, Message(partition))

    def poll(self, _: float) -> int:
        return 0

    def purge(self) -> None:
        self.sent = []

    def close(self) -> None:
        assert not self.sent

    def taken(self) -> dict[str, int]:
        taken, self.sent = dict(self.sent), []
        return taken


class World:
    """A beater with a clock of its own, and what it is told of the stream `up`."""

    def __init__(self, control: Control, monkeypatch: pytest.MonkeyPatch, windowed: HeartbeatTopics = WINDOWED) -> None:
        self.now = control.now() // 10_000 * 10_000
        self.control = control
        monkeypatch.setattr(heartbeats, "Producer", Out)
        monkeypatch.setattr(heartbeats, "partition_counts", lambda *_: dict.fromkeys(windowed, 1))
        monkeypatch.setattr("penstock.supervision.event_clock.gating.LOOK_EVERY", 0.0)
        self.beater = HeartbeatSender(windowed, control, "nowhere:1", clock=lambda: self.now / 1000)
        self.out: Any = self.beater._producer

    def turn(self, behind: float, state: str = "idle") -> dict[str, int]:
        """Times by topic of the beats that go out, in ms after the beginning."""
        row = ProgressRow("up", "chain", "i", state=state, behind_ms=int(behind * 1000))
        self.control.report([row], keep=False)
        self.beater.run_once()
        return self.out.taken()  # type: ignore[no-any-return]


@pytest.fixture
def world(control: Control, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    from penstock import catalog

    control.sync(catalog.build([UP]))
    made = World(control, monkeypatch)
    with closing(made.beater):
        yield made


def test_a_chain_that_keeps_up_has_beats_by_the_clock(world: World) -> None:
    from penstock.airflow.triggers import HANDOVER

    assert world.turn(1) == {"fed": world.now, "source": world.now}
    world.now += 3_999
    assert world.turn(6) == {}
    world.now += 1
    assert world.turn(6) == {"fed": world.now, "source": world.now}
    assert world.control.heartbeat_holds() == {}
    assert world.beater.run_once() > HANDOVER, "there are moments at which another beater may take over"


def test_a_held_beat_goes_as_far_as_its_writer(world: World) -> None:
    start = world.now
    world.turn(0)
    world.now = start + 14_000
    assert world.turn(11, "failing") == {"source": world.now}, "the window is due, and its writer is 3 s behind it"
    hold = world.control.heartbeat_holds()["fed"]
    assert hold["why"] == "up is failing"
    assert abs(hold["at"] - (start + 3_000)) < 1_000
    world.now += 500
    assert world.turn(4, "failing") == {}, "it is looked at every second"
    world.now += 500
    assert start + 10_500 <= world.turn(4, "failing")["fed"] <= start + 11_000, "one window can close"
    world.now += 1_000
    assert world.turn(4, "failing") == {}, "no other can"
    world.now += 1_000
    assert world.turn(0) == {"fed": world.now}
    assert world.control.heartbeat_holds() == {}


def test_a_topic_whose_readers_are_stopped_has_no_beats(
    world: World, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything of it held; they go on with the clock when one is started."""
    control.set_desired(["up"], "off", Actor("test", "cli"))
    control.hold_heartbeats("source", 1, "held before")
    world = World(control, monkeypatch, {**WINDOWED, "fed": HeartbeatTopic(FED, [HeartbeatReader(DUE)], GRACE)})
    start = world.now
    assert world.turn(0) == {"fed": world.now}
    assert control.heartbeat_holds() == {}
    control.set_desired(["up"], "on", Actor("test", "cli"))
    world.now += 10_000
    assert world.turn(0) == {"fed": world.now, "source": world.now}
    world.now = start + 24_000
    assert world.turn(0)["source"] == world.now


def test_a_clock_that_is_set_back_stops_no_heartbeats(
    world: World, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those of the sender that saw it, nor of one that begins after another sent by a fast clock."""
    world.turn(1)
    world.now -= 3_600_000
    world.turn(1)
    world.now += 4_000
    assert world.turn(1) == {"fed": world.now, "source": world.now}
    for topic in WINDOWED:
        control.record_heartbeat(topic, world.now + 3_600_000, 1, "earlier")
    again = World(control, monkeypatch)
    start = again.now
    with closing(again.beater):
        assert again.turn(3, "failing").keys() == {"source"}
        again.now = start + 14_000
        assert "fed" in again.turn(4, "failing"), "a held one goes as far as its writer"


def test_a_broker_that_was_away(world: World) -> None:
    start = world.now
    world.turn(0)
    world.now = start + 14_000
    world.out.refused = {"fed", "source"}
    with pytest.raises(BrokerError, match="did not arrive"):
        world.turn(0)
    world.out.refused = set()
    assert world.turn(0) == {"fed": world.now, "source": world.now}


def test_a_topic_that_refuses_heartbeats_stops_no_others(
    control: Control, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from penstock import catalog

    control.sync(catalog.build([UP]))
    with_clocks = WINDOWED["fed"]._replace(writers={"up": UpstreamWriter(clocks=("source",))})
    bad = HeartbeatTopic(Topic("bad"), [HeartbeatReader(DUE)], GRACE)
    world = World(control, monkeypatch, {**WINDOWED, "fed": with_clocks, "bad": bad})
    with closing(world.beater):
        world.turn(0)
        world.out.refused = {"bad"}
        for seconds in (4, 10, 10, 10):
            world.now += seconds * 1_000
            assert world.turn(0) == {"fed": world.now, "source": world.now}
        assert control.heartbeat_holds() == {}
        assert world.beater.failing.keys() == {"bad"}
        assert control.heartbeats()["bad"]["at"] == world.now - 34_000, "what did not arrive does not count"
        assert [message for record in caplog.records if "bad" in (message := record.getMessage())] == [
            "heartbeats of bad do not arrive, those of other topics do: partition 0: Broker: Topic authorization failed"
        ]
        world.out.refused = set()
        for _ in range(2):
            world.now += 2_000
            sent = world.turn(0)
        assert sent["bad"] == world.now
        assert not world.beater.failing


def test_a_topic_that_does_not_answer_delays_no_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition without a leader takes the whole timeout, and is waited for the first time only."""
    unanswered: list[Callable[[], None]] = []
    produce = world.out.produce

    def no_leader(topic: str, *, on_delivery: Callable[..., None], **given: Any) -> None:
        def answer(*told: object) -> None:
            unanswered.append(lambda: on_delivery(*told))

        produce(topic, on_delivery=answer if topic == "fed" else on_delivery, **given)

    world.turn(0)
    monkeypatch.setattr(heartbeats, "DELIVERY_TIMEOUT", -0.8)
    monkeypatch.setattr(world.out, "produce", no_leader)
    world.now += 10_000
    world.turn(0)
    assert world.beater.failing == {"fed": "partition 0: no answer"}
    polls: list[float] = []
    monkeypatch.setattr(world.out, "poll", polls.append)
    world.now += 10_000
    assert world.turn(0) == {"fed": world.now, "source": world.now}
    world.now += 10_000
    assert world.turn(0) == {"source": world.now}, "what has no answer yet is not sent again"
    assert not any(polls)
    unanswered[-1]()
    monkeypatch.setattr(world.out, "produce", produce)
    assert world.turn(0) == {"fed": world.now}
    assert not world.beater.failing


def test_a_beater_that_was_away_lets_windows_close_first(
    world: World, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the stream's own windows hold is older than the beats that went out of the topic it writes."""
    waits = {**WINDOWED, "fed": WINDOWED["fed"]._replace(writers={"up": UpstreamWriter(clocks=("source",))})}
    for topic in waits:
        control.record_heartbeat(topic, world.now - 60_000, 1, "earlier")
    again = World(control, monkeypatch, waits)
    with closing(again.beater):
        assert again.turn(0.5) == {"source": again.now}
        again.now += 1_000
        assert again.turn(0) == {"fed": again.now}


def test_heartbeats_are_sent_without_a_control_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "Producer", Out)
    monkeypatch.setattr(heartbeats, "partition_counts", lambda *_: {"fed": 1, "source": 1})
    with closing(HeartbeatSender(WINDOWED, None, "nowhere:1")) as beater:
        beater.run_once()
        out: Any = beater._producer
        assert out.taken().keys() == {"fed", "source"}
