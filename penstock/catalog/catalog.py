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
from penstock.model.panel import Panel
from penstock.model.stream import Stream
from penstock.model.topic import DEAD_LETTERS, Topic
from penstock.model.view import ServedView, View
from penstock.registry.registration import SubjectSchema
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.model.capture import Capture
    from penstock.model.sink import Sink

T = TypeVar("T")


class UpstreamWriter(NamedTuple):
    """A stream or a capture whose rows reach a topic, directly or by way of others.

    Attributes:
        every: seconds between its batches or polls.
        feeds: the streams that write what it reads.
        clocks: the topics whose heartbeats close its windows.
    """

    every: float = 0.0
    feeds: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()


class HeartbeatReader(NamedTuple):
    """A stream that needs heartbeats, and when. Without a name it is one that always runs."""

    schedule: HeartbeatSchedule
    name: str = ""


class HeartbeatTopic(NamedTuple):
    """A topic that needs heartbeats.

    Attributes:
        topic: as declared.
        readers: its streams that need heartbeats.
        grace: the least of theirs, seconds.
        writers: the streams and captures that feed it, in any number of steps, by name.
    """

    topic: Topic
    readers: list[HeartbeatReader]
    grace: float = 0.0
    writers: Mapping[str, UpstreamWriter] = MappingProxyType({})


# By topic.
HeartbeatTopics = dict[str, HeartbeatTopic]


class Supervised(Protocol):
    """What a driver runs: a stream, a capture, or a view as an instance serves it."""

    @property
    def name(self) -> str: ...

    @property
    def app(self) -> str:
        """Those of one app share a driver."""


@dataclass(frozen=True)
class Catalog:
    """Every declaration and topic of a project, by name. Names are unique over all kinds.

    Attributes:
        streams: all that run, also the streams made of sinks and archives, under their names.
        topics: all that are declared.
        captures: as their files declare them.
        views: as declared.
        panels: as declared.
        archives: as declared.
        backfills: as declared.
        sinks: as their files declare them.
        disabled: streams that do not run, as they are declared so, or no address of their store is configured.
    """

    streams: dict[str, Stream]
    topics: dict[str, Topic]
    captures: dict[str, Capture] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    archives: dict[str, Archive] = field(default_factory=dict)
    backfills: dict[str, Backfill] = field(default_factory=dict)
    sinks: dict[str, Sink] = field(default_factory=dict)
    disabled: dict[str, Stream] = field(default_factory=dict)
    panels: dict[str, Panel] = field(default_factory=dict)

    @property
    def declared(self) -> dict[str, Declared]:
        """Everything but the topics."""
        return {
            **self.streams, **self.disabled, **self.captures, **self.views, **self.panels, **self.archives,
            **self.backfills,
        }  # fmt: skip

    @property
    def served_views(self) -> dict[str, ServedView]:
        """Views, by their name in each instance."""
        instances = range(1, settings().views_instances + 1)
        return {one.name: one for one in (ServedView(view, n) for view in self.views.values() for n in instances)}

    @property
    def supervised(self) -> dict[str, Supervised]:
        """Streams, captures and served views by name."""
        return {**self.streams, **self.captures, **self.served_views}

    @property
    def apps(self) -> dict[str, list[Supervised]]:
        """What each app runs, sorted by name."""
        apps: dict[str, list[Supervised]] = {}
        for one in sorted(self.supervised.values(), key=lambda s: (s.app, s.name)):
            apps.setdefault(one.app, []).append(one)
        return apps

    def stream(self, name: str) -> Stream:
        return _look_up("stream", name, self.streams)

    def supervised_named(self, name: str) -> Supervised:
        """A stream, a capture or a served view."""
        return _look_up("stream", name, self.supervised)

    def app(self, name: str) -> list[Supervised]:
        return _look_up("app", name, self.apps)

    @property
    def dead_letter_topics(self) -> list[str]:
        names = {name for stream in self.streams.values() for name in stream.side_outputs if name != stream.late_topic}
        return [*sorted(names), DEAD_LETTERS.name]

    def written_schemas(self, app: str) -> list[SubjectSchema]:
        """The schemas that a registry must have before an app writes: of the topics of its streams and captures."""
        writers: list[Stream | Capture] = [*self.streams.values(), *self.captures.values()]
        written = {node.name for one in writers if one.app == app for node in one.writes if node.kind == "topic"}
        declared = ((name, self.topics[name].registry_schema) for name in sorted(written) if name in self.topics)
        return [SubjectSchema(schema.subject_of(name), schema.text, schema.kind) for name, schema in declared if schema]

    def topics_of(self, app: str) -> list[Topic]:
        """The declared topics that the streams of an app read and write."""
        names = {topic.name for stream in self.streams.values() if stream.app == app for topic in stream.topics()}
        return [topic for name, topic in sorted(self.topics.items()) if name in names]

    def readers(self, topic: str) -> list[str]:
        """The streams that read a topic."""
        return sorted(name for name, stream in self.streams.items() if stream.reads_topic(topic))

    def upstream_streams(self, stream: Stream) -> tuple[str, ...]:
        """The streams that write what a stream reads."""
        return tuple(n for n in self._written_by(stream.has_input_topic) if n in self.streams and n != stream.name)

    def heartbeat_topics(self) -> HeartbeatTopics:
        """Topics that need heartbeats: those read by a stream whose output mode waits for the clock."""
        topics: HeartbeatTopics = {}
        for stream in self.streams.values():
            if schedule := stream.output_mode.heartbeat_schedule:
                grace = stream.output_mode.watermark_delay.total_seconds()
                for topic in (input_.topic for input_ in stream.sources.values() if input_.topic):
                    existing = topics.get(topic.name) or HeartbeatTopic(topic, [], grace, self._writers(topic.name))
                    topics[topic.name] = existing._replace(
                        readers=[*existing.readers, HeartbeatReader(schedule, stream.name)],
                        grace=min(existing.grace, grace),
                    )
        return topics

    def _writers(self, topic: str) -> dict[str, UpstreamWriter]:
        writers: dict[str, UpstreamWriter] = {}
        waiting = self._written_by(lambda name: name == topic)
        while waiting:
            if (name := waiting.pop()) not in writers:
                if name in self.captures:
                    writers[name] = UpstreamWriter(self.captures[name].every.total_seconds())
                    continue
                stream = self.streams[name]
                feeds = self._written_by(stream.has_input_topic)
                writers[name] = UpstreamWriter(stream.every, tuple(feeds), _clocks(stream))
                waiting += feeds
        return writers

    def _written_by(self, matches: Callable[[str], bool]) -> list[str]:
        """The streams and captures that write a topic that matches."""
        declared: dict[str, Declared] = {**self.streams, **self.captures}
        return sorted(
            name
            for name, one in declared.items()
            if any(node.kind == "topic" and matches(node.name) for node in one.writes)
        )


def _clocks(stream: Stream) -> tuple[str, ...]:
    return (
        tuple(i.topic.name for i in stream.sources.values() if i.topic) if stream.output_mode.heartbeat_schedule else ()
    )


def _look_up(kind: str, name: str, among: Mapping[str, T]) -> T:
    try:
        return among[name]
    except KeyError:
        existing = ", ".join(sorted(among)) or "none"
        raise DeclarationError(f"no such {kind}", got=name, hint=f"take one of: {existing}") from None
