"""Histories of keys whose upserts have times of their own and whose tombstones have the time of their record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

START, BITS = 1_700_000_000_000, 21


@dataclass(frozen=True)
class Event:
    """A record. ms: its version's time; own: its own."""

    key: str
    offset: int
    ms: int
    own: int
    tombstone: bool

    @property
    def version(self) -> int:
        return self.ms << BITS | self.offset

    @property
    def ahead(self) -> bool:
        return self.ms > self.own


def histories(chance: random.Random, keys: int, length: int) -> list[list[Event]]:
    """Of each step the records of all keys, which lie behind those of the step before."""
    steps = []
    for step in range(length):
        found = []
        for number in range(keys):
            own = START + step * 1000 + chance.randrange(100)
            tombstone = chance.random() < 0.4
            ms = own if tombstone else own + chance.choice([-1500, -50, 0, 500, 3000, 86_400_000])
            found.append(Event(f"k{number}", step * keys + number, ms, own, tombstone))
        steps.append(found)
    return steps


def left(steps: list[list[Event]]) -> dict[str, int]:
    """By key, the offset of the document that stays: a tombstone is newer than all that is ahead before it."""
    best: dict[str, tuple[int, int, bool]] = {}
    ahead: dict[str, int] = {}
    for one in (event for step in steps for event in step):
        ms = max(one.ms, ahead.get(one.key, 0)) if one.tombstone else one.ms
        if one.ahead:
            ahead[one.key] = max(ahead.get(one.key, 0), one.ms)
        best[one.key] = max(best.get(one.key, (0, 0, True)), (ms, one.offset, one.tombstone))
    return {key: offset for key, (_, offset, tombstone) in best.items() if not tombstone}


def readings(chance: random.Random, steps: list[list[Event]]) -> Iterator[list[Event]]:
    """Batches as they are read: of some steps each, from time to time from an earlier one on, to the end."""
    at = 0
    for _ in range(2 * len(steps)):
        size = chance.randint(1, 3)
        yield [event for step in steps[at : at + size] for event in step]
        at = min(at + size, len(steps)) if chance.random() < 0.7 else chance.randrange(at + 1)
        if at == len(steps):
            at = chance.randrange(len(steps))
    while at < len(steps):
        yield [event for step in steps[at : at + 2] for event in step]
        at += 2


def placed(table: pa.Table, events: list[Event]) -> pa.Table:
    """Rows of events with the columns that tell of their records."""
    table = table.set_column(table.column_names.index("offset"), "offset", pa.array([e.offset for e in events]))
    return table.append_column("tombstone", pa.array([e.tombstone for e in events])).append_column(
        "future", pa.array([e.ahead for e in events])
    )
