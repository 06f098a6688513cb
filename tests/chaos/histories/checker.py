"""Compares the topics of histories with their tables, key by key, without code of the platform.

Forms are those of the table of types in docs/captures.md, computed from the text that the database returns.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.chaos.histories.servers import Server
from tests.chaos.histories.tables import History, Out

Rows = dict[tuple[Any, ...], dict[str, Any]]
# So many of one kind are told.
TOLD = 5


# What a type becomes


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _moment(value: Any) -> str:
    day, _, time = _text(value).partition(" ")
    return f"{day}T{_clock(time)}"


def _clock(value: Any) -> str:
    whole, _, fraction = _text(value).partition(".")
    return f"{whole}.{fraction:0<6}"


def _zoned(value: Any) -> str:
    moment, sign, _ = _text(value).partition("+00")
    assert sign, f"not in UTC: {value}"
    return f"{_moment(moment)}Z"


def _real(value: Any) -> float | str:
    number = float(_text(value))
    return number if math.isfinite(number) else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(number), "NaN")


def _base64(value: Any) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _array(value: Any) -> list[int | None]:
    inside = _text(value).strip("{}")
    return [None if one == "NULL" else int(one) for one in inside.split(",")] if inside else []


FORMS: dict[str, Callable[[Any], Any]] = {
    "text": _text,
    "whole": lambda value: int(_text(value)),
    "real": _real,
    # A number of four bytes is shown by the shortest text that those four bytes come from.
    "single": _real,
    "truth": lambda value: _text(value) in ("t", "true"),
    "moment": _moment,
    "zoned": _zoned,
    "clock": _clock,
    "base64": _base64,
    "bytea": lambda value: _base64(bytes.fromhex(_text(value).removeprefix("\\x"))),
    "array": _array,
    "given": lambda value: value,
}


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in JSON too: 1, 1.0 and true are not."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


# The table


def outs(history: History, server: Server) -> list[Out]:
    """The columns of the records; those added during the history are read from the database."""
    if not history.star or "alter" not in history.features or server.engine == "sqlite":
        return history.out
    place = "table_schema = DATABASE()" if server.engine != "postgres" else "table_schema = 'public'"
    added = server.rows(
        f"SELECT column_name FROM information_schema.columns WHERE {place} AND table_name = '{history.name}' "
        "AND column_name LIKE 'added%' ORDER BY ordinal_position"
    )
    return [*history.out, *(Out(_text(name), _text(name), "whole") for (name,) in added)]


def expected(history: History, server: Server) -> tuple[Rows, set[tuple[Any, ...]]]:
    """The rows that the topic should have, by key, and the keys that should have tombstones."""
    columns = outs(history, server)
    selected = [o.sql for o in columns]
    if server.engine == "postgres":
        # By the type's own output: a cast to text may show it otherwise.
        selected = [f"CASE WHEN ({sql}) IS NULL THEN NULL ELSE format('%s', {sql}) END" for sql in selected]
    gone = f"CASE WHEN {history.deleted or '1 = 0'} THEN 1 ELSE 0 END"
    rows: Rows = {}
    deleted = set()
    for row in server.rows(f"SELECT {', '.join(selected)}, {gone} {history.source()}"):
        record = {o.name: None if v is None else FORMS[o.form](v) for o, v in zip(columns, row[:-1], strict=True)}
        key = tuple(record[name] for name in history.key_out)
        if int(row[-1]):
            deleted.add(key)
        else:
            rows[key] = record
    return rows, deleted


# The topic


@dataclass
class Topic:
    """Contents of a topic. last: value by key; records: their number; mistakes: found in the topic alone."""

    last: dict[bytes, bytes | None] = field(default_factory=dict)
    records: int = 0
    mistakes: list[str] = field(default_factory=list)
    _newest: dict[bytes, int] = field(default_factory=dict)
    _place: dict[bytes, int] = field(default_factory=dict)

    def take(self, key: bytes, value: bytes | None, partition: int, version: str) -> None:
        self.records += 1
        self.last[key] = value
        if self._place.setdefault(key, partition) != partition:
            self.mistakes.append(f"{key!r} is in two partitions")
        if value is not None:
            number = json.loads(value)[version]
            if number < self._newest.get(key, 0):
                self.mistakes.append(f"{key!r} went back from {self._newest[key]} to {number}")
            self._newest[key] = max(number, self._newest.get(key, 0))


def topics(bootstrap: str, histories: Iterable[History]) -> dict[str, Topic]:
    """All committed records, from the beginning to the present end."""
    by_name = {h.name: Topic() for h in histories}
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "histories", "isolation.level": "read_committed",
         "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 2}
    )  # fmt: skip
    try:
        known = consumer.list_topics(timeout=30).topics
        wanted = [TopicPartition(n, p, 0) for n in by_name if n in known for p in known[n].partitions]
        ends = {(p.topic, p.partition): consumer.get_watermark_offsets(p, timeout=30)[1] for p in wanted}
        left = {place for place, end in ends.items() if end}
        consumer.assign([p for p in wanted if (p.topic, p.partition) in left])
        while left:
            message = consumer.poll(30.0)
            if message is None:
                raise AssertionError(f"the topics could not be read: {sorted(left)[:3]}")
            topic, partition = message.topic() or "", message.partition() or 0
            if message.error():
                left.discard((topic, partition))
            else:
                by_name[topic].take(message.key() or b"", message.value(), partition, "version")
    finally:
        consumer.close()
    return by_name


def compared(history: History, topic: Topic, rows: Rows, deleted: set[tuple[Any, ...]], *, exact: bool) -> list[str]:
    """The differences. exact: after a reconcile all must be equal; before, changes that no poll can see are ignored."""
    mistakes = [f"{m}" for m in topic.mistakes[:TOLD]]
    values: dict[tuple[Any, ...], bytes | None] = {}
    for sent, value in topic.last.items():
        key = json.loads(sent)
        if list(key) != history.key_out:
            mistakes.append(f"a key of other columns: {sent!r}")
        if tuple(key.values()) in values:
            mistakes.append(f"a key that is written in two ways: {sent!r}")
        values[tuple(key.values())] = value
    wrong: dict[str, list[str]] = {"missing": [], "differs": [], "extra": [], "not deleted": []}
    for key, row in rows.items():
        value = values.get(key)
        if value is None:
            wrong["missing"].append(f"{key}: {row}")
        elif exact or not history.stale:
            sent = json.loads(value)
            if list(sent) != list(row) or not all(same(sent[name], row[name]) for name in row):
                names = [name for name in {**sent, **row} if not same(sent.get(name), row.get(name))]
                differ = {name: (sent.get(name), row.get(name)) for name in names} or "the order of its columns"
                wrong["differs"].append(f"{key}: (topic, table) {differ}")
    for key, value in values.items():
        if value is None or key in rows:
            continue
        if key in deleted:
            wrong["not deleted"].append(f"{key}: {value[:200]!r}")
        elif exact or not history.removes:
            wrong["extra"].append(f"{key}: {value[:200]!r}")
    for what, keys in wrong.items():
        if keys:
            mistakes.append(f"{len(keys)} of {len(rows)} {what}: " + "; ".join(text[:300] for text in keys[:TOLD]))
    return mistakes
