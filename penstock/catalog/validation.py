"""Validates declarations against each other; errors have the location of the declaration."""

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
from penstock.model.mask import mask_text
from penstock.model.output import TopicOutput
from penstock.model.panel import Panel
from penstock.model.stream import Stream
from penstock.model.topic import POSITIONS, Topic, topic_name
from penstock.model.view import View, views_instance
from penstock.sinks.core.stream import is_configured, sink_stream, with_declared_schemas

if TYPE_CHECKING:
    from penstock.model.capture import Capture
    from penstock.model.sink import Sink
    from penstock.model.sql_stream import SqlStream

T = TypeVar("T", bound=Declared)
Declaration: TypeAlias = Stream | View | Panel | Archive | Backfill
Topics = dict[str, Topic]


def build(
    declared: Iterable[Declaration],
    captures: Iterable[Capture] = (),
    sinks: Iterable[Sink] = (),
    sql_streams: Iterable[SqlStream] = (),
    topics_of_modules: Iterable[tuple[str, Topic]] = (),
) -> Catalog:
    """Build a validated catalog of declarations, with their topics.

    Args:
        declared: What modules declare.
        captures: Those in SQL.
        sinks: Those in SQL.
        sql_streams: Those in SQL.
        topics_of_modules: Topics in variables, each with its file: what streams and sinks in SQL name is as there.

    Raises:
        DeclarationError: Declarations contradict each other.
    """
    declarations, all_captures, all_sinks = list(declared), list(captures), list(sinks)
    named: list[Declared] = [*declarations, *all_captures]
    _check_names_are_unique(named)
    streams = [declaration for declaration in declarations if isinstance(declaration, Stream)]
    views = [declaration for declaration in declarations if isinstance(declaration, View)]
    panels = [declaration for declaration in declarations if isinstance(declaration, Panel)]
    archives = [declaration for declaration in declarations if isinstance(declaration, Archive)]
    backfills = [declaration for declaration in declarations if isinstance(declaration, Backfill)]
    topics: Topics = {}
    for stream in streams:
        for topic in stream.topics():
            _declare(topic, stream, topics)
    for capture in all_captures:
        for topic in (capture.topic, POSITIONS):
            _declare(topic, capture, topics, f"let the stream that reads it declare {topic!r}")
    with_topic: list[View | Archive] = [*views, *archives]
    for declaration in with_topic:
        if isinstance(declaration.topic, Topic):
            _declare(declaration.topic, declaration, topics)
    for backfill in backfills:
        target = backfill.target.topic if isinstance(backfill.target, TopicOutput) else backfill.target
        if isinstance(target, Topic):
            _declare(target, backfill, topics)
    known = _known_topics(topics_of_modules, topics)
    in_sql = _sql_streams(list(sql_streams), topics, known)
    streams += in_sql
    named += in_sql
    known |= topics
    all_sinks = [with_declared_schemas(sink, known) for sink in all_sinks]
    sink_streams = [sink_stream(sink, known) for sink in all_sinks]
    _check_names_are_unique([*named, *sink_streams])
    for stream in sink_streams:
        # A topic that only sinks read belongs to another system and is not created.
        for topic in stream.topics():
            if topic.name in topics or not stream.reads_topic(topic.name):
                _declare(topic, stream, topics)
    _check_one_writer([*streams, *sink_streams], all_captures, archives)
    _check_folders(archives)
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
    archive_streams = [archiving.archive_stream(archive, topics) for archive in archives]
    for stream in archive_streams:
        for topic in stream.topics():
            _declare(topic, stream, topics)
    _apps([*streams, *sink_streams, *archive_streams], all_captures)
    not_run = [stream for stream, sink in zip(sink_streams, all_sinks, strict=True) if not is_configured(sink)]
    not_run += archive_streams if archive_streams and not archiving.is_configured() else []
    all_streams = [*streams, *sink_streams, *archive_streams]
    not_run += [stream for stream in streams if not stream.enabled]
    runnable = [stream for stream in all_streams if not any(stream is disabled for disabled in not_run)]
    return Catalog(
        _by_name(runnable), topics, _by_name(all_captures), _by_name(views), _by_name(archives), _by_name(backfills),
        {sink.name: sink for sink in all_sinks}, _by_name(not_run), _by_name(panels),
    )  # fmt: skip


def _known_topics(of_modules: Iterable[tuple[str, Topic]], topics: Topics) -> Topics:
    """Topics in variables of modules, and those that declarations have, by name."""
    known: Topics = {}
    for path, topic in of_modules:
        # A variable without a schema may be of anything; SQL takes what the declaration says.
        declared = topics.get(topic.name)
        if topic.schema not in ("", declared.schema) if declared else known.setdefault(topic.name, topic) != topic:
            what = f"{path}: one topic is declared twice, differently"
            raise DeclarationError(what, got=topic.name, hint="declare it in one place and import it")
    return known | topics


def _sql_streams(declared: Sequence[SqlStream], topics: Topics, known: Topics) -> list[Stream]:
    """Streams in SQL, which name topics that are known; adds their own topics."""
    if not declared:
        return []
    # Most projects need no SQL parser.
    from penstock.model.sql.stream_query import sql_stream

    all_topics = {one.target.name: one.target for one in declared} | known
    streams = [sql_stream(one, all_topics) for one in declared]
    for stream in streams:
        for topic in stream.topics():
            _declare(known.get(topic.name, topic), stream, topics)
            _declare(topic, stream, topics)
    return streams


def _by_name(declarations: Iterable[T]) -> dict[str, T]:
    return {declaration.name: declaration for declaration in declarations}


def _wrong(declaration: Declared, what: str, got: object = None, hint: str = "") -> DeclarationError:
    return DeclarationError(f"{declaration.location}: {what}", got=got, hint=hint)


def _check_names_are_unique(declarations: Iterable[Declared]) -> None:
    by_name: dict[str, Declared] = {}
    for declaration in declarations:
        first = by_name.setdefault(declaration.name, declaration)
        if first is not declaration:
            raise _wrong(
                declaration,
                f"this {declaration.kind} and the {first.kind} of {first.location} have one name",
                got=declaration.name,
                hint="rename one of them; what is declared in SQL has its file's name",
            )


def _declare(topic: Topic, by: Declared, topics: Topics, hint: str = "declare it in one place and import it") -> None:
    declared = topics.setdefault(topic.name, topic)
    # A declaration without a setting takes that of another one: readers need not repeat the size of rows.
    config = {**topic.config, **declared.config}
    agreed = replace(declared, config=config)
    if agreed != replace(topic, config={**config, **topic.config}):
        raise _wrong(by, "one topic is declared twice, differently", got=topic.name, hint=hint)
    topics[topic.name] = agreed


def incomplete_shares(catalog: Catalog) -> Iterator[tuple[Sink, DeclarationError]]:
    """Yields sinks that share a topic without sinks for all other shares."""
    for (target, topic), shares in _shares(catalog.sinks.values()).items():
        sink, total = shares[0][0], shares[0][2]
        if sorted((n, total) for _, n, total in shares) != [(n, total) for n in range(1, total + 1)]:
            present = ", ".join(f"{n} OF {total} ({sink.name})" for sink, n, total in shares)
            what = f"{sink.at(f'SHARE {topic}')}: not all of topic {topic} goes to {target}, or some goes twice"
            hint = f"let one sink have each share, SHARE 1 OF {total} and so on"
            yield sink, DeclarationError(what, got=present, hint=hint)


def _shares(sinks: Iterable[Sink]) -> dict[tuple[str, str], list[tuple[Sink, int, int]]]:
    """The sinks that share a topic, with their shares, by target and topic."""
    shares: dict[tuple[str, str], list[tuple[Sink, int, int]]] = defaultdict(list)
    for sink in sinks:
        for read in sink.reads:
            if read.share != (1, 1):
                shares[".".join((sink.store, *sink.target)), read.topic].append((sink, *read.share))
    return shares


def _check_one_writer(streams: Sequence[Stream], captures: Sequence[Capture], archives: Sequence[Archive]) -> None:
    writers: dict[str, tuple[Declared, str]] = {}
    written: list[tuple[Declared, str, str]] = [
        (s, output.name, s.location) for s in streams for output in s.outputs.values()
    ]
    written += [(capture, capture.topic.name, capture.at("topic")) for capture in captures]
    written += [(archive, node.name, archive.location) for archive in archives for node in archive.writes]
    for declaration, name, location in written:
        first, first_location = writers.setdefault(name, (declaration, location))
        if first is not declaration and not (_takes_a_share(declaration) and _takes_a_share(first)):
            message = (
                f"{declaration.kind} {declaration.name} and {first.kind} {first.name} of {first_location} "
                "write to one place"
            )
            raise DeclarationError(f"{location}: {message}", got=name, hint="give each its own")
    for stream in streams:
        for name in stream.side_outputs.keys() & writers.keys():
            first, _ = writers[name]
            message = f"{stream.kind} {stream.name} writes dead letters where {first.kind} {first.name} writes its rows"
            raise _wrong(stream, message, got=name, hint="use different topics for rows and dead letters")


def _check_folders(archives: Sequence[Archive]) -> None:
    """No archive is in the folder of another one, whose maintenance deletes what its tables do not need."""
    folders = [(archive, f"{archive.bucket}/{archive.prefix}{end}/") for archive in archives for end in ("", "_hours")]
    for archive, folder in folders:
        for other, inner in folders:
            if archive is not other and inner.startswith(folder):
                raise DeclarationError(
                    f"{other.location}: archive {other.name} is in the folder of archive {archive.name}",
                    got=f"s3://{inner} in s3://{folder}",
                    hint="give each a prefix of its own, none inside of another one or of its `_hours`",
                )


def _takes_a_share(declaration: Declared) -> bool:
    """Whether it is a sink that reads only a share of each topic, so others may write to the same target."""
    if not isinstance(declaration, Stream) or declaration.kind != "sink":
        return False
    return all(input_.share != (1, 1) for input_ in declaration.sources.values())


def _apps(streams: Sequence[Stream], captures: Sequence[Capture]) -> None:
    for stream in streams:
        if stream.app in {capture.app for capture in captures}:
            raise _wrong(stream, "an app of streams has the name of the captures' app", got=stream.app)
        if views_instance(stream.app) is not None:
            raise _wrong(stream, "an app of streams has the name of an instance of the views", got=stream.app)


def _topic(topic: Topic | str, by: Declared, topics: Topics) -> Topic:
    """The declared topic of a name; DeclarationError if there is none."""
    name = topic_name(topic)
    if name not in topics:
        names = ", ".join(sorted(topics)) or "none"
        hint = f"declare the topic, or take one of: {names}"
        raise _wrong(by, f"{by.kind} {by.name} names a topic that nothing declares", got=name, hint=hint)
    if isinstance(topic, Topic):
        _declare(topic, by, topics)
    return topics[name]


def _stream(stream: Stream, by: Declared, streams: Sequence[Stream]) -> None:
    if not any(stream is other for other in streams):
        names = ", ".join(sorted(other.name for other in streams)) or "none"
        what = f"{by.kind} {by.name} names a stream that is not in the catalog"
        raise _wrong(by, what, got=stream.name, hint=f"take a STREAM of the project: {names}")


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
    named = backfill.source.topic if isinstance(backfill.source, Archive) else None
    if backfill.rows and isinstance(named, str) and named in topics and topics[named].registry_schema:
        what = f"backfill {backfill.name} reads values of a schema registry, and its archive names the topic only"
        raise _wrong(backfill, what, got=named, hint="give the topic itself to the archive: source=Topic(...)")
    for stream in (*backfill.via, *([backfill.target] if isinstance(backfill.target, Stream) else [])):
        _stream(stream, backfill, streams)
    if not isinstance(backfill.target, Stream):
        _check_backfill_masks(backfill, streams)
        _topic(backfill.target_topic, backfill, topics)


def _check_backfill_masks(backfill: Backfill, streams: Sequence[Stream]) -> None:
    """DeclarationError if rows that are not masked would go where a stream writes masked ones."""
    for stream in streams:
        for output in stream.outputs.values():
            if output.mask and output.name == backfill.target_topic:
                raise _wrong(
                    backfill,
                    f"backfill {backfill.name} does not mask what it writes, and stream {stream.name} does",
                    got=f"{output.name}: {mask_text(output.mask)}",
                    hint="take the stream as target",
                )
