"""Expected contents of the stores, computed from topics as documented, without code of the platform."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.chaos.long.topics import CommittedRecord

# A version has the milliseconds in its upper bits, and these lower bits of the offset.
OFFSET_BITS = 21
LAST_MS = 2**42 - 1
# Longest term of Elasticsearch, bytes.
TERM = 32_766
POINTS_FROM = 1_700_000_000_000_000
HOURS_FROM = 1_700_000_000

Document = dict[str, Any]
Position = tuple[str, int, int]
# Stands for a document that the store never accepts.
NEVER_ACCEPTED: Document = {}
# Key, version and document; None for a delete.
Change = tuple[Hashable, int, Document | None]


@dataclass
class ExpectedStore:
    """Expected results of one sink.

    documents: by key, without fields that are NULL. invalid: positions of records not of the schema. refused:
    positions of records that the store never accepts. maybe_refused: likewise, but with a newer record of their key: if
    both were in one batch, the older was not sent to the store."""

    documents: dict[Hashable, Document] = field(default_factory=dict)
    invalid: set[Position] = field(default_factory=set)
    refused: set[Position] = field(default_factory=set)
    maybe_refused: set[Position] = field(default_factory=set)


Rule = Callable[[Document, int], Iterator[Change]]


def expected_stores(items: Sequence[CommittedRecord], events: Sequence[CommittedRecord]) -> dict[str, ExpectedStore]:
    """Expected results by name of the sink."""
    return {
        "search-now": of_items(items, search_now),
        "search-latest": of_events(events, search_latest),
        "search-log": of_events(events, search_log),
        "documents-now": of_items(items, documents_now),
        "documents-marked": of_items(items, documents_marked),
        "documents-log": of_events(events, documents_log),
        "points-now": of_items(items, points_now),
        "points-log": of_events(events, points_log),
    }


def of_items(records: Sequence[CommittedRecord], rule: Rule) -> ExpectedStore:
    expected = ExpectedStore()
    changes: list[tuple[Position, Change]] = []
    for record in records:
        place = ("items", record.partition, record.offset)
        if record.value is None:
            value: Document | None = {**json.loads(record.key or b""), "at": record.at, "tombstone": True}
        else:
            value = parsed(record.value, ("id", "born", "at"))
        if value is None:
            expected.invalid.add(place)
        elif not 0 <= value["at"] <= LAST_MS:
            expected.refused.add(place)
        else:
            changes += [(place, change) for change in rule(value, versioned(value, record))]
    return latest_accepted(expected, changes)


def of_events(records: Sequence[CommittedRecord], rule: Rule) -> ExpectedStore:
    expected = ExpectedStore()
    changes: list[tuple[Position, Change]] = []
    for record in records:
        place = ("events", record.partition, record.offset)
        if (value := parsed(record.value, ("n", "at"))) is None:
            expected.invalid.add(place)
        else:
            changes += [(place, change) for change in rule(value, versioned(value, record))]
    return latest_accepted(expected, changes)


def versioned(value: Document, record: CommittedRecord) -> int:
    version: int = value["at"] << OFFSET_BITS | record.offset & 2**OFFSET_BITS - 1
    return version


def latest_accepted(expected: ExpectedStore, changes: Sequence[tuple[Position, Change]]) -> ExpectedStore:
    """The document of each key with the greatest version that the store accepts."""
    greatest: dict[Hashable, int] = {}
    best: dict[Hashable, tuple[int, Document | None]] = {}
    for _, (key, version, document) in changes:
        greatest[key] = max(version, greatest.get(key, version))
        if document is not NEVER_ACCEPTED and (key not in best or best[key][0] < version):
            best[key] = version, document
    for place, (key, version, document) in changes:
        if document is NEVER_ACCEPTED:
            (expected.maybe_refused if version < greatest[key] else expected.refused).add(place)
    expected.documents = {key: without_nulls(document) for key, (_, document) in best.items() if document is not None}
    return expected


def parsed(value: bytes | None, needed: Sequence[str]) -> Document | None:
    """The columns of a value; None if the record does not match the schema."""
    try:
        expected: Document = json.loads(value or b"")
    except ValueError:
        return None
    return expected if all(expected.get(name) is not None for name in needed) else None


def without_nulls(document: Document) -> Document:
    """A document without fields that are NULL."""
    return {name: value for name, value in document.items() if value is not None}


def dead(value: Document) -> bool:
    return bool(value.get("tombstone") or value.get("gone"))


def columns(value: Document, *names: str) -> Document:
    return {name: value.get(name) for name in names}


def key_text(value: Document) -> str:
    return json.dumps(columns(value, "id", "born"), separators=(",", ":"))


# A rule for each sink: the changes that a record makes


def search_now(value: Document, version: int) -> Iterator[Change]:
    if dead(value):
        yield key_text(value), version, None
        return
    document = {**columns(value, "id", "name", "state", "level", "n", "gone"), "_version": version}
    yield key_text(value), version, document if len(value["state"]) <= TERM else NEVER_ACCEPTED


def search_latest(value: Document, version: int) -> Iterator[Change]:  # noqa: ARG001
    key = json.dumps([value["sensor"], value["kind"]], separators=(",", ":"))
    document = {**columns(value, "sensor", "kind", "seq", "n", "last"), "_version": value["seq"]}
    yield key, value["seq"], None if value["last"] else document


def search_log(value: Document, version: int) -> Iterator[Change]:
    if value["kind"] == "noise":
        return
    kind = "first" if value["kind"] == "a" else value["kind"]
    document = {**columns(value, "at", "n", "sensor", "note"), "kind": kind, "_version": version}
    yield value["n"], 0, document if len(value["note"] or "") <= TERM else NEVER_ACCEPTED


def documents_now(value: Document, version: int) -> Iterator[Change]:
    key = json.dumps([value["id"], value["born"]], separators=(",", ":"))
    if dead(value):
        yield key, version, None
        return
    document = {**columns(value, "id", "born", "name", "level", "n", "gone"), "labels": labels(value), "_v": version}
    yield key, version, NEVER_ACCEPTED if operator(value) else document


def documents_marked(value: Document, version: int) -> Iterator[Change]:
    document: Document = {"_v": version}
    if not value.get("tombstone"):
        document |= columns(value, "id", "name", "n", "gone")
    yield key_text(value), version, document | ({"deleted": True} if dead(value) else {})


def documents_log(value: Document, version: int) -> Iterator[Change]:
    hour = datetime.fromtimestamp(HOURS_FROM + value["n"] // 300 * 3600, UTC)
    for part in value["parts"]:
        document = {**columns(value, "n", "sensor"), "part": part, "labels": labels(value), "_v": version}
        document |= {"hour": hour, "collection": f"events-{hour:%Y.%m.%d.%H}"}
        yield (value["n"], part), 0, NEVER_ACCEPTED if operator(value) else document


def labels(value: Document) -> Document:
    return {value["label"]: value["n"]}


def operator(value: Document) -> bool:
    """Whether MongoDB would read a label of the value as an operator."""
    return bool(value["label"].startswith("$"))


def points_now(value: Document, version: int) -> Iterator[Change]:
    key = str(value["id"]), value["born"] * 1000
    if dead(value):
        yield key, version, None
        return
    document = {"level": number(value), "name": value["name"] or "", "n": value["n"]}
    point = {**document, **{f"_version.{name}": version for name in document}}
    yield key, version, NEVER_ACCEPTED if document["level"] is None else point


def points_log(value: Document, version: int) -> Iterator[Change]:  # noqa: ARG001
    key = value["sensor"], value["kind"], POINTS_FROM + value["n"]
    level = number(value)
    yield key, 0, NEVER_ACCEPTED if level is None else {"level": level, "n": value["n"]}


def number(value: Document) -> int | None:
    """A value as an integer field of InfluxDB stores it."""
    try:
        return int(value["level"])
    except ValueError:
        return None
