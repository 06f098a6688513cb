"""Collects what is declared under jobs/ and sql/ and validates it together. Imports neither Spark nor a client."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.declare.promises import Due
from penstock.declare.stream import Stream
from penstock.declare.topic import POSITIONS, Topic
from penstock.errors import DeclarationError
from penstock.settings import settings

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
    """Every declared stream, capture and topic of a project."""

    streams: dict[str, Stream]
    topics: dict[str, Topic]
    captures: dict[str, Capture] = field(default_factory=dict)

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


def build(streams: Iterable[Stream], captures: Iterable[Capture] = ()) -> Catalog:
    """A validated catalog of the given streams and captures, with the topics they name."""
    by_name: dict[str, Stream] = {}
    topics: dict[str, Topic] = {}
    for stream in streams:
        if stream.name in by_name:
            raise DeclarationError("two streams have one name", got=stream.name, fix="rename one of them")
        by_name[stream.name] = stream
        for topic in stream.topics():
            if topics.setdefault(topic.name, topic) != topic:
                raise DeclarationError(
                    "one topic is declared twice, differently",
                    got=topic.name,
                    fix="declare it in one place and import it",
                )
    writers: dict[str, str] = {}
    for stream in by_name.values():
        for output in stream.outputs.values():
            other = writers.setdefault(output.name, stream.name)
            if other != stream.name:
                raise DeclarationError(
                    f"streams {other} and {stream.name} write one topic", got=output.name, fix="give each its own"
                )
            if output.name in {given.source for given in stream.inputs.values()}:
                raise DeclarationError(f"stream {stream.name} reads its own output", got=output.name)
    return Catalog(by_name, topics, _captured(captures, by_name, topics, writers))


def _captured(
    captures: Iterable[Capture], streams: dict[str, Stream], topics: dict[str, Topic], writers: dict[str, str]
) -> dict[str, Capture]:
    """Captures by name, checked against the streams; their topics and writers are added to what is given."""
    found: dict[str, Capture] = {}
    for capture in captures:
        if capture.name in streams:
            fix = "rename the capture's file"
            raise DeclarationError("a stream and a capture have one name", got=capture.name, fix=fix)
        if any(stream.app == capture.app for stream in streams.values()):
            raise DeclarationError("an app of streams has the name of the captures' app", got=capture.app)
        found[capture.name] = capture
        for topic in (capture.topic, POSITIONS):
            if topics.setdefault(topic.name, topic) != topic:
                fix = f"let the stream that reads it declare {topic!r}"
                raise DeclarationError("one topic is declared twice, differently", got=topic.name, fix=fix)
        other = writers.setdefault(capture.topic.name, capture.name)
        if other != capture.name:
            raise DeclarationError(
                f"{other} and capture {capture.name} write one topic", got=capture.topic.name, fix="give each its own"
            )
    return found


def discover(project: Path) -> Iterator[Stream]:
    """The STREAM (or STREAMS) of every module under jobs/<system>/."""
    if str(project) not in sys.path:
        sys.path.insert(0, str(project))
    for path in sorted((project / "jobs").glob("*/*.py")):
        if path.name.startswith("_"):
            continue
        name = ".".join(path.relative_to(project).with_suffix("").parts)
        try:
            module = importlib.import_module(name)
        except DeclarationError as e:
            e.add_note(f"in {path}")
            raise
        except Exception as e:
            raise DeclarationError(f"{path} cannot be imported", got=f"{type(e).__name__}: {e}") from e
        yield from getattr(module, "STREAMS", [])
        if hasattr(module, "STREAM"):
            yield module.STREAM


@cache
def load(project: Path | None = None) -> Catalog:
    """The catalog of a project; by default of the one the settings name."""
    place = project or settings().project
    return build(discover(place), _declared_captures(place / "sql" / "captures"))


def _declared_captures(folder: Path) -> list[Capture]:
    if not folder.exists():
        return []
    # A SQL parser is more than most projects need to load.
    from penstock.declare import capture

    return list(capture.load(folder).values())
