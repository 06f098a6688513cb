"""All that a project declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.declare.archive import Archive
from penstock.declare.backfill import Backfill
from penstock.declare.declared import Declared
from penstock.declare.promises import Due
from penstock.declare.stream import Stream
from penstock.declare.topic import ASIDE, Topic
from penstock.declare.view import View
from penstock.errors import DeclarationError

if TYPE_CHECKING:
    from penstock.declare.capture import Capture

T = TypeVar("T")

# By topic: itself, and the promises of the streams that read it.
Windowed = dict[str, tuple[Topic, list[Due]]]


class Supervised(Protocol):
    """What a driver runs: a stream or a capture."""

    @property
    def name(self) -> str: ...

    @property
    def app(self) -> str:
        """Those of one app share a driver."""


@dataclass(frozen=True)
class Catalog:
    """Every declared thing and topic of a project, by name. No two things have one name, of whatever kind."""

    streams: dict[str, Stream]
    topics: dict[str, Topic]
    captures: dict[str, Capture] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    archives: dict[str, Archive] = field(default_factory=dict)
    backfills: dict[str, Backfill] = field(default_factory=dict)

    @property
    def declared(self) -> dict[str, Declared]:
        """Everything but the topics."""
        return {**self.streams, **self.captures, **self.views, **self.archives, **self.backfills}

    @property
    def supervised(self) -> dict[str, Supervised]:
        """Streams and captures by name."""
        return {**self.streams, **self.captures}

    @property
    def apps(self) -> dict[str, list[Supervised]]:
        """Streams and captures by the driver they share, both in order of name."""
        apps: dict[str, list[Supervised]] = {}
        for one in sorted(self.supervised.values(), key=lambda s: (s.app, s.name)):
            apps.setdefault(one.app, []).append(one)
        return apps

    def stream(self, name: str) -> Stream:
        return _named("stream", name, self.streams)

    def one(self, name: str) -> Supervised:
        """A stream or a capture."""
        return _named("stream", name, self.supervised)

    def app(self, name: str) -> list[Supervised]:
        return _named("app", name, self.apps)

    @property
    def dead_letters(self) -> list[str]:
        """The topics that records are put aside in."""
        inputs = (given for stream in self.streams.values() for given in stream.inputs.values())
        return [*sorted({given.rejected.name for given in inputs if given.rejected}), ASIDE.name]

    def readers(self, topic: str) -> list[str]:
        """The streams that read a topic."""
        return sorted(name for name, stream in self.streams.items() if stream.takes(topic))

    def windowed(self) -> Windowed:
        """Topics that need heartbeats: those read by a stream whose promise waits for the clock."""
        found: Windowed = {}
        for stream in self.streams.values():
            if stream.promise.due:
                for topic in (given.topic for given in stream.sources.values() if given.topic):
                    found.setdefault(topic.name, (topic, []))[1].append(stream.promise.due)
        return found


def _named(kind: str, name: str, among: Mapping[str, T]) -> T:
    try:
        return among[name]
    except KeyError:
        known = ", ".join(sorted(among)) or "none"
        raise DeclarationError(f"no such {kind}", got=name, fix=f"take one of: {known}") from None
