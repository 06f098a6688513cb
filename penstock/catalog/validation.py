"""What must hold between declarations. A mistake names the file of what is wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from penstock.archive import stream as archiving
from penstock.catalog.catalog import Catalog
from penstock.errors import DeclarationError
from penstock.model.archive import Archive
from penstock.model.backfill import Backfill
from penstock.model.declaration import Declared
from penstock.model.output import TopicOutput
from penstock.model.panel import Panel
from penstock.model.stream import Stream
from penstock.model.topic import POSITIONS, Topic, topic_name
from penstock.model.view import View, views_instance
from penstock.sinks.core.stream import is_configured, sink_stream

if TYPE_CHECKING:
    from penstock.model.capture import Capture
    from penstock.model.sink import Sink

T = TypeVar("T", bound=Declared)
Declaration: TypeAlias = Stream | View | Panel | Archive | Backfill
Topics = dict[str, Topic]


def build(declared: Iterable[Declaration], captures: Iterable[Capture] = (), sinks: Iterable[Sink] = ()) -> Catalog:
    """A validated catalog of what is given, with the topics it names."""
    found, captured, sunk = list(declared), list(captures), list(sinks)
    everything: list[Declared] = [*found, *captured]
    _differently_named(everything)
    streams = [one for one in found if isinstance(one, Stream)]
    views = [one for one in found if isinstance(one, View)]
    panels = [one for one in found if isinstance(one, Panel)]
    archives = [one for one in found if isinstance(one, Archive)]
    backfills = [one for one in found if isinstance(one, Backfill)]
    topics: Topics = {}
    for stream in streams:
        for topic in stream.topics():
            _declare(topic, stream, topics)
    for capture in captured:
        for topic in (capture.topic, POSITIONS):
            _declare(topic, capture, topics, f"let the stream that reads it declare {topic!r}")
    kept: list[View | Archive] = [*views, *archives]
    for one in kept:
        if isinstance(one.topic, Topic):
            _declare(one.topic, one, topics)
    for backfill in backfills:
        target = backfill.target.topic if isinstance(backfill.target, TopicOutput) else backfill.target
        if isinstance(target, Topic):
            _declare(target, backfill, topics)
    made = [sink_stream(sink, topics) for sink in sunk]
    _differently_named([*everything, *made])
    for stream in made:
        # A topic that only sinks read is another's, and stays as it is.
        for topic in stream.topics():
            if topic.name in topics or not stream.reads_topic(topic.name):
                _declare(topic, stream, topics)
    _one_writer_each([*streams, *made], captured, archives)
    for view in views:
        topic = _topic(view.topic, view, topics)
        try:
            view.check_topic(topic)
        except DeclarationError as e:
            raise _wrong(view, e.what, e.got, e.hint) from e
    for panel in panels:
        _panel(panel, views)
    for archive in archives:
        _topic(archive.topic, archive, topics)
        if isinstance(archive.source, Stream):
            _stream(archive.source, archive, streams)
    for backfill in backfills:
        _backfill(backfill, archives, streams, topics)
    filed = [archiving.archive_stream(archive, topics) for archive in archives]
    for stream in filed:
        for topic in stream.topics():
            _declare(topic, stream, topics)
    _apps([*streams, *made, *filed], captured)
    idle = [stream for stream, sink in zip(made, sunk, strict=True) if not is_configured(sink)]
    idle += filed if filed and not archiving.is_configured() else []
    every = [*streams, *made, *filed]
    idle += [stream for stream in streams if not stream.enabled]
    run = [stream for stream in every if not any(stream is other for other in idle)]
    return Catalog(
        _by_name(run), topics, _by_name(captured), _by_name(views), _by_name(archives), _by_name(backfills),
        {sink.name: sink for sink in sunk}, _by_name(idle), _by_name(panels),
    )  # fmt: skip


def _by_name(found: Iterable[T]) -> dict[str, T]:
    return {one.name: one for one in found}


def _wrong(one: Declared, what: str, got: object = None, hint: str = "") -> DeclarationError:
    return DeclarationError(f"{one.location}: {what}", got=got, hint=hint)


def _differently_named(found: Iterable[Declared]) -> None:
    by_name: dict[str, Declared] = {}
    for one in found:
        other = by_name.setdefault(one.name, one)
        if other is not one:
            raise _wrong(
                one,
                f"this {one.kind} and the {other.kind} of {other.location} have one name",
                got=one.name,
                hint="rename one of them; a capture and a sink have their files' names",
            )


def _declare(topic: Topic, by: Declared, topics: Topics, hint: str = "declare it in one place and import it") -> None:
    known = topics.setdefault(topic.name, topic)
    # Who says nothing of a setting takes it as it is said elsewhere: readers need not know how large a row may be.
    both = {**topic.config, **known.config}
    agreed = replace(known, config=both)
    if agreed != replace(topic, config={**both, **topic.config}):
        raise _wrong(by, "one topic is declared twice, differently", got=topic.name, hint=hint)
    topics[topic.name] = agreed


def incomplete_shares(catalog: Catalog) -> Iterator[tuple[Sink, DeclarationError]]:
    """Sinks that share a topic where nobody takes the rest of it."""
    for (place, topic), shares in _shares(catalog.sinks.values()).items():
        sink, of = shares[0][0], shares[0][2]
        if sorted((n, of) for _, n, of in shares) != [(n, of) for n in range(1, of + 1)]:
            there = ", ".join(f"{n} OF {of} ({sink.name})" for sink, n, of in shares)
            what = f"{sink.at(f'SHARE {topic}')}: not all of topic {topic} goes to {place}, or some goes twice"
            hint = f"let one sink have each share, SHARE 1 OF {of} and so on"
            yield sink, DeclarationError(what, got=there, hint=hint)


def _shares(sinks: Iterable[Sink]) -> dict[tuple[str, str], list[tuple[Sink, int, int]]]:
    """By place and topic, the sinks that share it: which share of how many each has."""
    found: dict[tuple[str, str], list[tuple[Sink, int, int]]] = defaultdict(list)
    for sink in sinks:
        for read in sink.reads:
            if read.share != (1, 1):
                found[".".join((sink.store, *sink.target)), read.topic].append((sink, *read.share))
    return found


def _one_writer_each(streams: Sequence[Stream], captures: Sequence[Capture], archives: Sequence[Archive]) -> None:
    writers: dict[str, tuple[Declared, str]] = {}
    written: list[tuple[Declared, str, str]] = [
        (s, output.name, s.location) for s in streams for output in s.outputs.values()
    ]
    written += [(capture, capture.topic.name, capture.at("topic")) for capture in captures]
    written += [(archive, place.name, archive.location) for archive in archives for place in archive.writes]
    for one, name, where in written:
        other, there = writers.setdefault(name, (one, where))
        if other is not one and not (_takes_a_share(one) and _takes_a_share(other)):
            what = f"{one.kind} {one.name} and {other.kind} {other.name} of {there} write to one place"
            raise DeclarationError(f"{where}: {what}", got=name, hint="give each its own")
    for stream in streams:
        for name in stream.side_outputs.keys() & writers.keys():
            other, _ = writers[name]
            what = f"{stream.kind} {stream.name} puts aside where {other.kind} {other.name} writes its rows"
            raise _wrong(stream, what, got=name, hint="give the rows, or what is put aside, another topic")


def _takes_a_share(one: Declared) -> bool:
    """Whether it is a sink with only a share of each of its topics: others write the rest to the same place."""
    if not isinstance(one, Stream) or one.kind != "sink":
        return False
    return all(given.share != (1, 1) for given in one.sources.values())


def _apps(streams: Sequence[Stream], captures: Sequence[Capture]) -> None:
    for stream in streams:
        if stream.app in {capture.app for capture in captures}:
            raise _wrong(stream, "an app of streams has the name of the captures' app", got=stream.app)
        if views_instance(stream.app) is not None:
            raise _wrong(stream, "an app of streams has the name of an instance of the views", got=stream.app)


def _topic(topic: Topic | str, by: Declared, topics: Topics) -> Topic:
    """The topic as the project declares it."""
    name = topic_name(topic)
    if name not in topics:
        known = ", ".join(sorted(topics)) or "none"
        hint = f"declare the topic, or take one of: {known}"
        raise _wrong(by, f"{by.kind} {by.name} names a topic that nothing declares", got=name, hint=hint)
    if isinstance(topic, Topic):
        _declare(topic, by, topics)
    return topics[name]


def _stream(stream: Stream, by: Declared, streams: Sequence[Stream]) -> None:
    if not any(stream is other for other in streams):
        known = ", ".join(sorted(other.name for other in streams)) or "none"
        what = f"{by.kind} {by.name} names a stream that is not in the catalog"
        raise _wrong(by, what, got=stream.name, hint=f"take a STREAM of the project: {known}")


def _panel(panel: Panel, views: Sequence[View]) -> None:
    for used in panel.views:
        if not any(used is view for view in views):
            what = f"panel {panel.name} names a view that is not in the catalog"
            hint = "assign the view to a variable of a module under jobs/<system>/"
            raise _wrong(panel, what, got=used.name, hint=hint)


def _backfill(backfill: Backfill, archives: Sequence[Archive], streams: Sequence[Stream], topics: Topics) -> None:
    if isinstance(backfill.source, Archive) and not any(backfill.source is archive for archive in archives):
        what = f"backfill {backfill.name} reads an archive that is not in the catalog"
        hint = "let the archive stand in a module under jobs/<system>/ by a name of its own"
        raise _wrong(backfill, what, got=backfill.source.name, hint=hint)
    for stream in (*backfill.via, *([backfill.target] if isinstance(backfill.target, Stream) else [])):
        _stream(stream, backfill, streams)
    if not isinstance(backfill.target, Stream):
        _topic(backfill.target_topic, backfill, topics)
