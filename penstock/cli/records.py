"""`penstock topics send` and `penstock topics read`: records of a topic by hand."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from penstock.cli.output import clear_errors, echo
from penstock.errors import PenstockError
from penstock.logs import printable_json
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.catalog import Catalog
    from penstock.kafka.console import OutgoingRecord, Start
    from penstock.kafka.record_lookup import TopicRecord

# Records that are shown where nothing is said of how many.
NEWEST = 10
# Records of standard input that are checked and written together.
TOGETHER = 1000
TIMES = "%Y-%m-%dT%H:%M:%S"

TopicName = Annotated[str, typer.Argument(help="The topic's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `penstock topics`."""
    app.command("send")(send)
    app.command("read")(read)


def send(
    topic: TopicName,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE...]", help="Values, a record each; without one, the lines of standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    keyed: Annotated[
        bool, typer.Option("--keyed", help="Each line is a key, a tab and a value; without a tab a tombstone.")
    ] = False,
    tombstone: Annotated[bool, typer.Option("--tombstone", help="One record with --key and no value.")] = False,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    at: Annotated[
        datetime | None, typer.Option("--at", formats=[TIMES], help="The records' timestamp, UTC; else now.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Refuse values that a stream would put aside as dead letters.")
    ] = True,
) -> None:
    """Write records to a topic. Values are checked against the schemas of the streams that read it."""
    from penstock.kafka.console import send as written

    with clear_errors():
        if tombstone and (key is None or values):
            raise PenstockError("a tombstone is a key without a value", hint="give --key, and no value")
        stamp = int(at.replace(tzinfo=UTC).timestamp() * 1000) if at else 0
        given = iter([None] if tombstone else values or _lines(sys.stdin.buffer))
        catalog = _catalog() if check and not tombstone else None
        headers = tuple(map(_header, header or ()))
        total = 0
        while batch := [_record(one, key, keyed, headers, stamp) for one in islice(given, TOGETHER)]:
            if catalog:
                _check(catalog, topic, batch, total)
            places = written(topic, batch, settings().bootstrap)
            total += len(batch)
            if total <= NEWEST:
                for place in places:
                    echo(f"{place}")
        echo(f"sent {total:,} record{'' if total == 1 else 's'} to {topic}", err=True)


def read(
    topic: TopicName,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="beginning|end|TIME",
            help=f"Where to begin: a time as 2026-01-31T12:00:00 (UTC) too; else the newest {NEWEST}, or with "
            "--follow the end.",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many records.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only records with this key.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new records, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each record, one a line.")] = False,
    heartbeats: Annotated[bool, typer.Option("--heartbeats", help="Include Penstock's own heartbeats.")] = False,
) -> None:
    """Print the committed records of a topic: time (UTC), partition, offset, key, value."""
    from penstock.kafka.console import read as records
    from penstock.kafka.console import read_newest

    wanted = None if key is None else key.encode()
    shown = _json if as_json else _line
    found: Iterator[TopicRecord]
    with clear_errors():
        if start is None and not follow:
            found = iter(read_newest(topic, settings().bootstrap, count or NEWEST, key=wanted, heartbeats=heartbeats))
        else:
            found = records(
                topic, settings().bootstrap, _start(start or "end"), key=wanted, count=count, follow=follow,
                heartbeats=heartbeats,
            )  # fmt: skip
        printed = 0
        try:
            for printed, record in enumerate(found, 1):  # noqa: B007
                sys.stdout.write(f"{shown(record)}\n")
                sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        if not printed:
            echo(f"topic {topic} has no such record" if key or start else f"topic {topic} has no record", err=True)


def _catalog() -> Catalog:
    """What is declared in files that can be read; whatever is wrong with others is said."""
    from penstock.catalog import partial_catalog

    catalog, wrong = partial_catalog()
    for mistake in wrong:
        echo(f"warning: {mistake}", err=True)
    return catalog


def _check(catalog: Catalog, topic: str, batch: Sequence[OutgoingRecord], before: int) -> None:
    """Raises PenstockError if a stream that reads the topic would not take a record of the batch."""
    from penstock.codec.acceptance import rejections

    for name in catalog.readers(topic):
        for given in catalog.streams[name].sources.values():
            if not given.schema or not given.reads_topic(topic):
                continue
            for number, why in enumerate(rejections(given, [(one.key, one.value) for one in batch])):
                tombstone = batch[number].value is None
                if why and not tombstone:
                    raise PenstockError(
                        f"stream {name} would put record {before + number + 1} aside as a dead letter",
                        got=why,
                        hint=f"send values of the schema {given.schema!r}, or say --no-check; "
                        f"{before:,} records were sent",
                    )


def _record(
    given: str | None, key: str | None, keyed: bool, headers: tuple[tuple[str, bytes], ...], stamp: int
) -> OutgoingRecord:
    from penstock.kafka.console import OutgoingRecord

    if given is None or not keyed:
        value = None if given is None else given.encode("utf-8", "surrogateescape")
        return OutgoingRecord(None if key is None else key.encode(), value, headers, stamp)
    if key is not None:
        raise PenstockError("--key and --keyed both give keys", hint="use one of them")
    own, tab, rest = given.partition("\t")
    encoded = rest.encode("utf-8", "surrogateescape") if tab else None
    return OutgoingRecord(own.encode("utf-8", "surrogateescape"), encoded, headers, stamp)


def _lines(source: Any) -> Iterator[str]:
    """Lines of standard input; bytes that are no UTF-8 stay as they are."""
    for line in source:
        yield line.removesuffix(b"\n").decode("utf-8", "surrogateescape")


def _header(given: str) -> tuple[str, bytes]:
    name, sign, value = given.partition("=")
    if not sign:
        raise PenstockError("this is no NAME=VALUE", got=given, hint="e.g. --header source=test")
    return name, value.encode()


def _start(given: str) -> Start:
    if given in ("beginning", "end"):
        return "beginning" if given == "beginning" else "end"
    try:
        at = datetime.fromisoformat(given)
    except ValueError as e:
        raise PenstockError(
            "this is no place to begin at", got=given, hint="beginning, end, or a time as 2026-01-31T12:00:00"
        ) from e
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _line(record: TopicRecord) -> str:
    from penstock.kafka.dead_letters import printable

    try:
        at = datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        # A producer may stamp what it likes, microseconds too: beyond the calendar it is a number.
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
    """JSON as it was written, each digit of its numbers; anything else as a text."""
    if data is None:
        return None
    try:
        plain = orjson.loads(data)
    except orjson.JSONDecodeError:
        return _text(data)
    return plain if b"\n" in data else orjson.Fragment(data)


def _text(data: bytes | None) -> Any:
    """A text; bytes that are no UTF-8 as {"base64": ...}."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data or b"").decode()}
