"""Chooses the rows of a batch that are written: the newest version of each id that the store takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.model.sink import Tombstones
from penstock.sinks.core.document import OFFSET_BITS, POSITION

# Topic, partition and offset of a record.
Position = tuple[str, int, int]
OFFSET_MASK = 2**OFFSET_BITS - 1
LAST_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class VersionedRow:
    """A row of a batch.

    Attributes:
        number: in the batch.
        at: µs since 1970; None if it has no time.
        position: of its record.
        tombstone: whether its record has no value.
        future: whether the version's time is later than the record's.
    """

    number: int
    id: str
    version: int
    deleted: bool
    at: int | None
    position: Position = ("", 0, 0)
    tombstone: bool = False
    future: bool = False


@dataclass(frozen=True, slots=True)
class FutureUpsert:
    """An upsert whose version has a later time than its record."""

    version: int
    position: Position


def latest_per_key(
    rows: pa.Table,
    refused: dict[int, str],
    *,
    id_bytes: int,
    tombstones: Tombstones,
    future_upserts: Callable[[Sequence[str]], Mapping[str, FutureUpsert]] = lambda _: {},
) -> Iterator[list[VersionedRow]]:
    """The row of the greatest version of each id; of equal versions the last row.

    If a row is refused by the time the next rows are asked for, those are the ones that it hid. Rows of one record that
    share an id are refused, as nothing says which of them should stay.

    Args:
        rows: the columns of `DocumentOutput.columns`.
        refused: gets the reasons of refused rows, by number.
        id_bytes: bytes of the longest id that the store takes.
        tombstones: what a record without a value does.
        future_upserts: of ids, the newest future upsert that the store remembers. A tombstone is newer than those that
            precede it in its partition.
    """
    of_id = _rows_by_id(rows, refused, id_bytes, tombstones)
    deleted = [key for key, versions in of_id.items() if any(row.tombstone for row in versions)]
    remembered = future_upserts(deleted) if deleted else {}
    for key in deleted:
        of_id[key] = raise_tombstones(of_id[key], remembered.get(key))
    for versions in of_id.values():
        versions.sort(key=lambda row: row.version)
    while of_id:
        best = sorted((versions.pop() for versions in of_id.values()), key=lambda row: row.number)
        yield best
        of_id = {row.id: of_id[row.id] for row in best if row.number in refused and of_id[row.id]}


def _rows_by_id(
    rows: pa.Table, refused: dict[int, str], id_bytes: int, tombstones: Tombstones
) -> dict[str, list[VersionedRow]]:
    columns = [rows[name].to_pylist() for name in ("id", "version", "deleted", "refused")]
    times = rows["at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    positions: list[Position] = list(zip(*(rows[name].to_pylist() for name in POSITION), strict=True))
    flags = [rows[name].to_pylist() for name in ("tombstone", "future")] if "future" in rows.column_names else []
    of_record: dict[tuple[object, ...], list[VersionedRow]] = {}
    for number, (key, version, deleted, reason, at) in enumerate(zip(*columns, times, strict=True)):
        if reason is not None:
            refused[number] = reason.decode(errors="replace")
            continue
        if deleted and tombstones == "ignore":
            continue
        try:
            row = VersionedRow(
                number, _id(key, id_bytes), _version(version), bool(deleted), at, positions[number],
                *(bool(flag[number]) for flag in flags),
            )  # fmt: skip
        except ValueError as e:
            refused[number] = str(e)
            continue
        of_record.setdefault((*row.position, row.id), []).append(row)
    of_id: dict[str, list[VersionedRow]] = {}
    for same in of_record.values():
        if len(same) > 1:
            refused |= dict.fromkeys((row.number for row in same), f"its record makes {len(same)} rows of one id")
        else:
            of_id.setdefault(same[0].id, []).append(same[0])
    return of_id


def raise_tombstones(rows: Sequence[VersionedRow], remembered: FutureUpsert | None) -> list[VersionedRow]:
    """Rows of one id; each tombstone is made newer than the future upserts that precede it in its partition.

    Args:
        rows: of a batch.
        remembered: a future upsert of an earlier batch.
    """
    upserts = [FutureUpsert(row.version, row.position) for row in rows if row.future and not row.deleted]
    upserts += [remembered] if remembered else []
    return [_raise_tombstone(row, upserts) if row.tombstone else row for row in rows]


def _raise_tombstone(row: VersionedRow, upserts: Sequence[FutureUpsert]) -> VersionedRow:
    topic, partition, offset = row.position
    before = [one.version for one in upserts if one.position[:2] == (topic, partition) and one.position[2] < offset]
    if (last := max(before, default=0)) <= row.version:
        return row
    # The time of the last of them with the tombstone's own offset, as all versions have it.
    version = last & ~OFFSET_MASK | offset & OFFSET_MASK
    return replace(row, version=version if version > last else min(version + OFFSET_MASK + 1, LAST_VERSION))


def _id(key: bytes | None, limit: int) -> str:
    if not key:
        raise ValueError("its id is NULL or empty")
    if len(key) > limit:
        raise ValueError(f"its id has {len(key)} bytes, the store takes {limit}")
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ValueError("its id is not UTF-8") from None


def _version(version: int | None) -> int:
    if version is None or version < 0:
        raise ValueError(f"its version is {'NULL' if version is None else version}")
    return version
