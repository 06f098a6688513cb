"""`penstock topics`: compare declared topics with the broker's; send and read records."""

from __future__ import annotations

import sys
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.text import Text

from penstock.catalog import partial_catalog
from penstock.cli.arguments import AsJson, as_utc, time_option, valid_catalog
from penstock.cli.output import clear_errors, console, count, echo, emit, table
from penstock.control import connect
from penstock.errors import ControlError, PenstockError
from penstock.kafka.admin import TopicState, describe_topics, ensure_topics
from penstock.logs import printable_json
from penstock.model.topic import Topic
from penstock.monitoring.humanize import duration
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.catalog import Catalog
    from penstock.kafka.console import OutgoingRecord, Start
    from penstock.kafka.record_lookup import TopicRecord

Heartbeats = dict[str, Mapping[str, Any]]

# Seconds until every broker has a change; before that a new topic would be shown as missing.
SETTLE = 10.0
# Records that are shown by default, and records of standard input that are checked and written together.
DEFAULT_COUNT, WRITE_BATCH = 10, 1000
TopicName = Annotated[str, typer.Argument(help="The topic's name.", show_default=False)]


app = typer.Typer(help="Compare declared topics with the broker's; send and read records.")


@app.callback(invoke_without_command=True)
def topics(
    ctx: typer.Context,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Create topics, add partitions and set configs as declared. Nothing is deleted."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List declared topics: partitions, end offsets, last heartbeat, and differences from the declaration."""
    if ctx.invoked_subcommand:
        return
    with clear_errors():
        catalog, wrong = partial_catalog()
        declared = list(catalog.topics.values())
        done = ensure_topics(declared, settings().bootstrap) if apply else []
        states = _described(declared, SETTLE if done else 0)
    beats, holds, now, away = _beats()
    if as_json:
        rows = [(s, beats.get(s.declared.name), holds.get(s.declared.name)) for s in states]
        emit({"done": done, "topics": [_data(*one, now) for one in rows]})
    else:
        out = console()
        for line in done:
            out.print(line)
        lines = table(
            ["topic", "partitions", "end offsets", "last heartbeat", "as declared"], right=["partitions", "end offsets"]
        )
        for s in states:
            beat = beats.get(s.declared.name)
            age = "-" if beat is None else f"{duration(max(0, now - beat['at']))} ago"
            lines.add_row(s.declared.name, str(s.partitions), count(sum(s.end_offsets.values())), age, _differences(s))
        out.print(lines)
        for name in sorted(holds.keys() & {s.declared.name for s in states}):
            out.print(Text(f"heartbeats of {name} are {_held(holds[name])}", style="yellow"))
        if any(not s.as_declared for s in states):
            out.print(Text("`penstock topics --apply` changes them to the declaration.", style="yellow"))
    if away:
        echo(f"heartbeats are unknown: {away}", err=True)
    for mistake in wrong:
        echo(f"error: {mistake}", err=True)
    if wrong:
        echo("the topics of these files are missing above", err=True)
        raise typer.Exit(1)


def _described(declared: list[Topic], timeout: float) -> list[TopicState]:
    """The topics at the broker, described again until they are as declared or the time is over."""
    end = time.monotonic() + timeout
    while True:
        states = describe_topics(declared, settings().bootstrap)
        if all(s.as_declared for s in states) or time.monotonic() >= end:
            return states
        time.sleep(0.2)


def _beats() -> tuple[Heartbeats, Heartbeats, int, str]:
    """Heartbeats and holds by topic, the database's clock, and the error if the database does not answer."""
    try:
        control = connect()
        return control.heartbeats(), control.heartbeat_holds(), control.now(), ""
    except ControlError as e:  # topics are the broker's: they are shown without the database too
        return {}, {}, 0, str(e)


def _held(hold: Mapping[str, Any]) -> str:
    at = "" if hold["at"] is None else f" at {datetime.fromtimestamp(hold['at'] / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return f"held{at}: {hold['why']}"


def _differences(state: TopicState) -> Text:
    if not state.partitions:
        return Text("missing", style="red")
    wrong = []
    if state.partitions < state.declared.partitions:
        wrong.append(f"{state.declared.partitions} partitions declared")
    wrong += [f"{key} is {real or 'unset'}, declared {declared}" for key, (declared, real) in state.drift.items()]
    return Text("; ".join(wrong), style="yellow") if wrong else Text("yes", style="green")


@app.command()
def send(
    topic: TopicName,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE...]", help="The value of each record; default: the lines of standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of all records.")] = None,
    keyed: Annotated[
        bool, typer.Option("--keyed", help="Each line is a key, a tab and a value; without a tab it is a tombstone.")
    ] = False,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", help="Send one record with --key and without a value.")
    ] = False,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    at: Annotated[datetime | None, time_option("--at", "The timestamp of the records; default: now")] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Refuse values that would become dead letters of a stream.")
    ] = True,
) -> None:
    """Write records to a topic. Values are checked against the schemas of the streams that read it."""
    from penstock.kafka.console import send as send_records

    with clear_errors():
        if tombstone and (key is None or values):
            raise PenstockError("a tombstone is a key without a value", hint="use --key without a value")
        timestamp = int(at.replace(tzinfo=UTC).timestamp() * 1000) if at else 0
        lines = iter([None] if tombstone else values or _lines(sys.stdin.buffer))
        catalog = valid_catalog() if check and not tombstone else None
        headers = tuple(map(_header, header or ()))
        total = 0
        while batch := [_record(line, key, keyed, headers, timestamp) for line in islice(lines, WRITE_BATCH)]:
            if catalog:
                _check(catalog, topic, batch, total)
            places = send_records(topic, batch, settings().bootstrap)
            total += len(batch)
            if total <= DEFAULT_COUNT:
                for place in places:
                    echo(f"{place}")
        echo(f"sent {total:,} record{'' if total == 1 else 's'} to {topic}", err=True)


@app.command()
def read(
    topic: TopicName,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="beginning|end|TIME",
            help="Where to start; TIME is UTC, such as 2026-01-31T12:00:00. "
            f"Default: the newest {DEFAULT_COUNT} records, or the end with --follow.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Exit after this number of records.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only records with this key.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new records as they are written, until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as a JSON object in one line.")] = False,
    heartbeats: Annotated[bool, typer.Option("--heartbeats", help="Include heartbeats of Penstock.")] = False,
) -> None:
    """Print the committed records of a topic: time (UTC), partition, offset, key, value."""
    from penstock.codec.formats import readable
    from penstock.kafka.console import read as records
    from penstock.kafka.console import read_newest
    from penstock.registry import endpoint

    wanted = None if key is None else key.encode()
    line = _json if as_json else _line
    newest: Iterator[TopicRecord]
    with clear_errors():
        if start is None and not follow:
            newest = iter(
                read_newest(topic, settings().bootstrap, count or DEFAULT_COUNT, key=wanted, heartbeats=heartbeats)
            )
        else:
            newest = records(
                topic, settings().bootstrap, _start(start or "end"), key=wanted, count=count, follow=follow,
                heartbeats=heartbeats,
            )  # fmt: skip
        printed = 0
        try:
            has_registry = endpoint.is_configured()
            for printed, record in enumerate(newest, 1):  # noqa: B007
                if has_registry:
                    record = replace(record, value=readable(record.value))  # noqa: PLW2901
                sys.stdout.write(f"{line(record)}\n")
                sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        if not printed:
            echo(f"topic {topic} has no such record" if key or start else f"topic {topic} has no record", err=True)


def _data(
    state: TopicState, beat: Mapping[str, Any] | None, hold: Mapping[str, Any] | None, now: int
) -> dict[str, Any]:
    return {
        "name": state.declared.name,
        "exists": state.partitions > 0,
        "as_declared": state.as_declared,
        "partitions": state.partitions,
        "declared_partitions": state.declared.partitions,
        "differences": {key: {"declared": want, "real": real} for key, (want, real) in state.drift.items()},
        "end_offsets": {str(partition): offset for partition, offset in state.end_offsets.items()},
        "alive_at": None if beat is None else beat["at"],
        "heartbeat_age_ms": None if beat is None else max(0, now - beat["at"]),
        "held": "" if hold is None else hold["why"],
        "held_at": None if hold is None else hold["at"],
    }


def _check(catalog: Catalog, topic: str, batch: Sequence[OutgoingRecord], before: int) -> None:
    """Raises PenstockError if a record of the batch would become a dead letter of a stream."""
    from penstock.codec.acceptance import rejections

    for name in catalog.readers(topic):
        for source in catalog.streams[name].sources.values():
            if not source.schema or not source.reads_topic(topic):
                continue
            for number, why in enumerate(rejections(source, [(one.key, one.value) for one in batch])):
                tombstone = batch[number].value is None
                if why and not tombstone:
                    raise PenstockError(
                        f"stream {name} would write record {before + number + 1} as a dead letter",
                        got=why,
                        hint=f"send values of the schema {source.schema!r}, or use --no-check; "
                        f"{before:,} records were sent",
                    )


def _record(
    line: str | None, key: str | None, keyed: bool, headers: tuple[tuple[str, bytes], ...], timestamp: int
) -> OutgoingRecord:
    from penstock.kafka.console import OutgoingRecord

    if line is None or not keyed:
        value = None if line is None else line.encode("utf-8", "surrogateescape")
        return OutgoingRecord(None if key is None else key.encode(), value, headers, timestamp)
    if key is not None:
        raise PenstockError("--key and --keyed both give keys", hint="use one of them")
    own, tab, rest = line.partition("\t")
    encoded = rest.encode("utf-8", "surrogateescape") if tab else None
    return OutgoingRecord(own.encode("utf-8", "surrogateescape"), encoded, headers, timestamp)


def _lines(source: Any) -> Iterator[str]:
    """Lines of standard input; bytes that are no UTF-8 stay as they are."""
    for line in source:
        yield line.removesuffix(b"\n").decode("utf-8", "surrogateescape")


def _header(text: str) -> tuple[str, bytes]:
    name, sign, value = text.partition("=")
    if not sign:
        raise PenstockError("this is no NAME=VALUE", got=text, hint="e.g. --header source=test")
    return name, value.encode()


def _start(text: str) -> Start:
    if text in ("beginning", "end"):
        return "beginning" if text == "beginning" else "end"
    try:
        at = datetime.fromisoformat(text)
    except ValueError as e:
        raise PenstockError(
            "this is no place to start at", got=text, hint="beginning, end, or a time such as 2026-01-31T12:00:00"
        ) from e
    return as_utc(at) or at


def _line(record: TopicRecord) -> str:
    from penstock.kafka.dead_letters import printable

    try:
        at = datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        # A producer may write any timestamp, such as microseconds: outside the calendar it is printed as a number.
        at = str(record.timestamp)
    place = f"{record.location.partition}@{record.location.offset}"
    key, value = (printable(data, 100_000) for data in (record.key, record.value))
    return f"{at.removesuffix('+00:00')}  {place}  {key}  {value}"


def _json(record: TopicRecord) -> str:
    data = {
        "topic": record.location.topic,
        "partition": record.location.partition,
        "offset": record.location.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _value(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }
    return printable_json(orjson.dumps(data).decode())


def _value(data: bytes | None) -> Any:
    """JSON as it was written, with all digits of its numbers; anything else as text."""
    if data is None:
        return None
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return _text(data)
    # JSON has line breaks only between its tokens.
    return orjson.Fragment(data.replace(b"\n", b" "))


def _text(data: bytes | None) -> Any:
    """A text; bytes that are no UTF-8 as {"base64": ...}."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data or b"").decode()}
