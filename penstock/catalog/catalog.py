"""All that a project declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from penstock.errors import DeclarationError
from penstock.model.archive import Archive
from penstock.model.backfill import Backfill
from penstock.model.declaration import Declared
from penstock.model.output_mode import HeartbeatSchedule
from penstock.model.stream import Stream
from penstock.model.topic import DEAD_LETTERS, Topic
from penstock.model.view import Served, View
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.model.capture import Capture
    from penstock.model.sink import Sink

T = TypeVar("T")


class Writer(NamedTuple):
    """A stream or a capture whose rows get into a topic, be it by way of others.

    feeds: the streams that write what it reads. clocks: the topics whose beats close its windows.
    """

    every: float = 0.0
    feeds: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()


class Reader(NamedTuple):
    """A stream that waits for the clock: when it needs heartbeats. Without a name it is one that always runs."""

    due: HeartbeatSchedule
    name: str = ""


class HeartbeatTopic(NamedTuple):
    """A topic that needs heartbeats.

    readers: those of its streams that wait for the clock. grace: seconds, the least of theirs. writers: the streams and
    captures that feed it, in any number of steps, by name.
    """

    topic: Topic
    readers: list[Reader]
    grace: float = 0.0
    writers: Mapping[str, Writer] = MappingProxyType({})


# By topic.
Windowed = dict[str, HeartbeatTopic]


class Supervised(Protocol):
    """What a driver runs: a stream, a capture, or a view as an instance serves it."""

    @property
    def name(self) -> str: ...

    @property
    def app(self) -> str:
        """Those of one app share a driver."""


@dataclass(frozen=True)
class Catalog:
    """Every declared thing and topic of a project, by name. No two things have one name, of whatever kind.

    sinks: as their files declare them. A stream is made of each, and of each archive under its name, and stands among
    the streams. In `idle` are those that do not run: nobody has said where their store is, or they say so.
    """

    streams: dict[str, Stream]
    topics: dict[str, Topic]
    captures: dict[str, Capture] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    archives: dict[str, Archive] = field(default_factory=dict)
    backfills: dict[str, Backfill] = field(default_factory=dict)
    sinks: dict[str, Sink] = field(default_factory=dict)
    idle: dict[str, Stream] = field(default_factory=dict)

    @property
    def declared(self) -> dict[str, Declared]:
        """Everything but the topics."""
        return {**self.streams, **self.idle, **self.captures, **self.views, **self.archives, **self.backfills}

    @property
    def served(self) -> dict[str, Served]:
        """Views, by the names that they have in each instance."""
        instances = range(1, settings().views_instances + 1)
        return {one.name: one for one in (Served(view, n) for view in self.views.values() for n in instances)}

    @property
    def supervised(self) -> dict[str, Supervised]:
        """Streams, captures and served views by name."""
        return {**self.streams, **self.captures, **self.served}

    @property
    def apps(self) -> dict[str, list[Supervised]]:
        """What is supervised by the driver it shares, both in order of name."""
        apps: dict[str, list[Supervised]] = {}
        for one in sorted(self.supervised.values(), key=lambda s: (s.app, s.name)):
            apps.setdefault(one.app, []).append(one)
        return apps

    def stream(self, name: str) -> Stream:
        return _named("stream", name, self.streams)

    def one(self, name: str) -> Supervised:
        """A stream, a capture or a served view."""
        return _named("stream", name, self.supervised)

    def app(self, name: str) -> list[Supervised]:
        return _named("app", name, self.apps)

    @property
    def dead_letters(self) -> list[str]:
        """The topics that records are put aside in."""
        found = {name for stream in self.streams.values() for name in stream.side_outputs if name != stream.late_topic}
        return [*sorted(found), DEAD_LETTERS.name]

    def readers(self, topic: str) -> list[str]:
        """The streams that read a topic."""
        return sorted(name for name, stream in self.streams.items() if stream.reads_topic(topic))

    def fed_by(self, stream: Stream) -> tuple[str, ...]:
        """The streams that write what a stream reads."""
        return tuple(n for n in self._written_by(stream.has_input_topic) if n in self.streams and n != stream.name)

    def windowed(self) -> Windowed:
        """Topics that need heartbeats: those read by a stream whose output mode waits for the clock."""
        found: Windowed = {}
        for stream in self.streams.values():
            if due := stream.output_mode.heartbeat_schedule:
                grace = stream.output_mode.watermark_delay.total_seconds()
                for topic in (given.topic for given in stream.sources.values() if given.topic):
                    known = found.get(topic.name) or HeartbeatTopic(topic, [], grace, self._writers(topic.name))
                    found[topic.name] = known._replace(
                        readers=[*known.readers, Reader(due, stream.name)], grace=min(known.grace, grace)
                    )
        return found

    def _writers(self, topic: str) -> dict[str, Writer]:
        found: dict[str, Writer] = {}
        waiting = self._written_by(lambda name: name == topic)
        while waiting:
            if (name := waiting.pop()) not in found:
                if name in self.captures:
                    found[name] = Writer(self.captures[name].every.total_seconds())
                    continue
                stream = self.streams[name]
                feeds = self._written_by(stream.has_input_topic)
                found[name] = Writer(stream.every, tuple(feeds), _clocks(stream))
                waiting += feeds
        return found

    def _written_by(self, takes: Callable[[str], bool]) -> list[str]:
        """The streams and captures that write one of some topics."""
        writing: dict[str, Declared] = {**self.streams, **self.captures}
        return sorted(
            name
            for name, one in writing.items()
            if any(place.kind == "topic" and takes(place.name) for place in one.writes)
        )


def _clocks(stream: Stream) -> tuple[str, ...]:
    return (
        tuple(i.topic.name for i in stream.sources.values() if i.topic) if stream.output_mode.heartbeat_schedule else ()
    )


def _named(kind: str, name: str, among: Mapping[str, T]) -> T:
    try:
        return among[name]
    except KeyError:
        known = ", ".join(sorted(among)) or "none"
        raise DeclarationError(f"no such {kind}", got=name, hint=f"take one of: {known}") from None
