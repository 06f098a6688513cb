"""Rows of one id: refused if they are of one record; of several records the latest version that the store takes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from penstock.sinks.core.latest_per_key import FutureUpsert, VersionedRow, latest_per_key
from tests.support.tombstone_histories import Event, histories, left, placed, readings


def batch(*given: tuple[str, int, int]) -> pa.Table:
    """Rows of an id and a version, made of the record at an offset."""
    size = len(given)
    return pa.table(
        {
            "id": pa.array([key.encode() for key, _, _ in given], pa.binary()),
            "version": pa.array([version for _, version, _ in given], pa.int64()),
            "deleted": pa.array([False] * size),
            "at": pa.nulls(size, pa.timestamp("us", "UTC")),
            "refused": pa.nulls(size, pa.binary()),
            "topic": pa.array(["t"] * size),
            "partition": pa.array([0] * size, pa.int32()),
            "offset": pa.array([offset for _, _, offset in given], pa.int64()),
        }
    )


def test_rows_of_one_record_with_one_id_are_refused() -> None:
    rows = batch(("a", 1, 0), ("b", 2, 1), ("b", 2, 1), ("b", 1, 0), ("a", 2, 1))
    refused: dict[int, str] = {}
    [kept] = latest_per_key(rows, refused, id_bytes=100, tombstones="delete")
    assert [(row.number, row.id) for row in kept] == [(3, "b"), (4, "a")]
    assert refused == dict.fromkeys((1, 2), "its record makes 2 rows of one id")


def test_what_is_refused_meanwhile_hides_nothing_older() -> None:
    rows = batch(("a", 3, 0), ("a", 1, 1), ("b", 1, 2), ("a", 2, 3), ("a", 2, 4), ("c", 1, 5))
    refused: dict[int, str] = {}
    found = []
    for chosen in latest_per_key(rows, refused, id_bytes=100, tombstones="delete"):
        found.append([row.number for row in chosen])
        refused |= {number: "too long" for number in (0, 2, 4) if number in found[-1]}
    assert found == [[0, 2, 5], [4], [3]]


class MemoryStore:
    """A store in memory. tombstones: also future upserts, with their position."""

    def __init__(self) -> None:
        self.documents: dict[str, VersionedRow] = {}
        self.tombstones: dict[str, VersionedRow] = {}

    def write(self, events: Sequence[Event]) -> None:
        given = batch(*((e.key, e.version, e.offset) for e in events))
        given = given.set_column(2, "deleted", pa.array([e.tombstone for e in events]))
        table = placed(given, list(events))
        [rows] = latest_per_key(table, {}, id_bytes=100, tombstones="delete", future_upserts=self.future_upserts)
        for row in rows:
            there, tombstone = self.documents.get(row.id), self.tombstones.get(row.id)
            if row.deleted:
                self._remember(row)
                if there and there.version <= row.version:
                    del self.documents[row.id]
            elif not any(one and one.version > row.version for one in (there, tombstone)):
                self.documents[row.id] = row
            if row.future:
                self._remember(row)

    def future_upserts(self, ids: Sequence[str]) -> dict[str, FutureUpsert]:
        found = {key: self.tombstones[key] for key in ids if key in self.tombstones}
        return {key: FutureUpsert(row.version, row.position) for key, row in found.items() if not row.deleted}

    def _remember(self, row: VersionedRow) -> None:
        if row.id not in self.tombstones or self.tombstones[row.id].version <= row.version:
            self.tombstones[row.id] = row


@pytest.mark.parametrize("seed", range(20))
def test_a_tombstone_follows_what_lies_before_it_however_records_are_read(seed: int) -> None:
    """Also where the time that an upsert names is ahead of that of the tombstone behind it."""
    chance = random.Random(seed)
    steps, store = histories(chance, 30, 6), MemoryStore()
    for events in readings(chance, steps):
        store.write(events)
    assert {key: row.position[2] for key, row in store.documents.items()} == left(steps)


def test_a_version_stays_within_64_bits() -> None:
    """A tombstone whose offset has lower bits than those of what it follows takes the next millisecond."""
    last = 2**63 - 1
    events = [Event("a", 2**21 - 1, 2**42 - 1, 0, tombstone=False), Event("a", 2**21, 0, 0, tombstone=True)]
    given = placed(batch(("a", last, 2**21 - 1), ("a", 0, 2**21)), events)
    given = given.set_column(2, "deleted", pa.array([False, True]))
    [[row]] = latest_per_key(given, {}, id_bytes=100, tombstones="delete")
    assert (row.deleted, row.version) == (True, last)
