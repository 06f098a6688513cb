"""What the stores must hold of what the topics hold, by the sinks' documentation and by nothing of the platform."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.chaos.long.topics import Seen

# Of a version: milliseconds above, the offset's lower bits below.
OFFSET_BITS = 21
LAST_MS = 2**42 - 1
# Bytes of a term of Elasticsearch.
TERM = 32_766
POINTS_FROM = 1_700_000_000_000_000
HOURS_FROM = 1_700_000_000

Document = dict[str, Any]
Place = tuple[str, int, int]
# A document that the store never takes.
UNTAKEN: Document = {}
# Key, version and document; None for one that goes.
Change = tuple[Hashable, int, Document | None]


@dataclass
class Wanted:
    """Of one sink. documents: by key, without fields that are NULL; none: places of records that are none of the
    schema; refused: of those that the store never takes; perhaps: likewise, but there is something newer of their key,
    and where the two met in a batch nobody asked the store."""

    documents: dict[Hashable, Document] = field(default_factory=dict)
    none: set[Place] = field(default_factory=set)
    refused: set[Place] = field(default_factory=set)
    perhaps: set[Place] = field(default_factory=set)


Rule = Callable[[Document, int], Iterator[Change]]


def wanted(items: Sequence[Seen], events: Sequence[Seen]) -> dict[str, Wanted]:
    """By the name of the sink."""
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


def of_items(records: Sequence[Seen], rule: Rule) -> Wanted:
    found = Wanted()
    changes: list[tuple[Place, Change]] = []
    for record in records:
        place = ("items", record.partition, record.offset)
        if record.value is None:
            value: Document | None = {**json.loads(record.key or b""), "at": record.at, "tombstone": True}
        else:
            value = parsed(record.value, ("id", "born", "at"))
        if value is None:
            found.none.add(place)
        elif not 0 <= value["at"] <= LAST_MS:
            found.refused.add(place)
        else:
            changes += [(place, change) for change in rule(value, versioned(value, record))]
    return settled(found, changes)


def of_events(records: Sequence[Seen], rule: Rule) -> Wanted:
    found = Wanted()
    changes: list[tuple[Place, Change]] = []
    for record in records:
        place = ("events", record.partition, record.offset)
        if (value := parsed(record.value, ("n", "at"))) is None:
            found.none.add(place)
        else:
            changes += [(place, change) for change in rule(value, versioned(value, record))]
    return settled(found, changes)


def versioned(value: Document, record: Seen) -> int:
    version: int = value["at"] << OFFSET_BITS | record.offset & 2**OFFSET_BITS - 1
    return version


def settled(found: Wanted, changes: Sequence[tuple[Place, Change]]) -> Wanted:
    """With the state of each key of the greatest version that the store takes."""
    greatest: dict[Hashable, int] = {}
    best: dict[Hashable, tuple[int, Document | None]] = {}
    for _, (key, version, document) in changes:
        greatest[key] = max(version, greatest.get(key, version))
        if document is not UNTAKEN and (key not in best or best[key][0] < version):
            best[key] = version, document
    for place, (key, version, document) in changes:
        if document is UNTAKEN:
            (found.perhaps if version < greatest[key] else found.refused).add(place)
    found.documents = {key: whole(document) for key, (_, document) in best.items() if document is not None}
    return found


def parsed(value: bytes | None, needed: Sequence[str]) -> Document | None:
    """The columns of a value; None if it is no record of the schema."""
    try:
        found: Document = json.loads(value or b"")
    except ValueError:
        return None
    return found if all(found.get(name) is not None for name in needed) else None


def whole(document: Document) -> Document:
    """Without fields that are NULL."""
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
    yield key_text(value), version, document if len(value["state"]) <= TERM else UNTAKEN


def search_latest(value: Document, version: int) -> Iterator[Change]:  # noqa: ARG001
    key = json.dumps([value["sensor"], value["kind"]], separators=(",", ":"))
    document = {**columns(value, "sensor", "kind", "seq", "n", "last"), "_version": value["seq"]}
    yield key, value["seq"], None if value["last"] else document


def search_log(value: Document, version: int) -> Iterator[Change]:
    if value["kind"] == "noise":
        return
    kind = "first" if value["kind"] == "a" else value["kind"]
    document = {**columns(value, "at", "n", "sensor", "note"), "kind": kind, "_version": version}
    yield value["n"], 0, document if len(value["note"] or "") <= TERM else UNTAKEN


def documents_now(value: Document, version: int) -> Iterator[Change]:
    key = json.dumps([value["id"], value["born"]], separators=(",", ":"))
    if dead(value):
        yield key, version, None
        return
    document = {**columns(value, "id", "born", "name", "level", "n", "gone"), "labels": labels(value), "_v": version}
    yield key, version, UNTAKEN if operator(value) else document


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
        yield (value["n"], part), 0, UNTAKEN if operator(value) else document


def labels(value: Document) -> Document:
    return {value["label"]: value["n"]}


def operator(value: Document) -> bool:
    """Whether MongoDB takes its label for one."""
    return bool(value["label"].startswith("$"))


def points_now(value: Document, version: int) -> Iterator[Change]:
    key = str(value["id"]), value["born"] * 1000
    if dead(value):
        yield key, version, None
        return
    document = {"level": number(value), "name": value["name"] or "", "n": value["n"]}
    point = {**document, **{f"_version.{name}": version for name in document}}
    yield key, version, UNTAKEN if document["level"] is None else point


def points_log(value: Document, version: int) -> Iterator[Change]:  # noqa: ARG001
    key = value["sensor"], value["kind"], POINTS_FROM + value["n"]
    level = number(value)
    yield key, 0, UNTAKEN if level is None else {"level": level, "n": value["n"]}


def number(value: Document) -> int | None:
    """What a field of whole numbers takes."""
    try:
        return int(value["level"])
    except ValueError:
        return None
