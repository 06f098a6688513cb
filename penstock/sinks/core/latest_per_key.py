"""Which rows of a batch are written: of each id the newest version that the store takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.model.sink import Tombstones
from penstock.sinks.core.document import OFFSET_BITS, ORIGIN

# Topic, partition and offset of a record.
Place = tuple[str, int, int]
LOWER = 2**OFFSET_BITS - 1
LAST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """number: in the batch; at: µs since 1970, None if it has no time; place: of its record; tombstone, ahead: see
    `penstock.sinks.core.document`."""

    number: int
    id: str
    version: int
    deleted: bool
    at: int | None
    place: Place = ("", 0, 0)
    tombstone: bool = False
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Ahead:
    """An upsert whose version is of a later time than its record."""

    version: int
    place: Place


def newest(
    rows: pa.Table,
    refused: dict[int, str],
    *,
    id_bytes: int,
    tombstones: Tombstones,
    ahead: Callable[[Sequence[str]], Mapping[str, Ahead]] = lambda _: {},
) -> Iterator[list[Row]]:
    """Of each id the row of the greatest version, of equal ones the last; by row's number, why others are refused.

    Rows of one record that share an id are refused: which of them were to stay is not said. Where a row is refused by
    the time the next rows are asked for, they are those that it hid. id_bytes: the longest id that the store takes.
    ahead: of ids, the newest upsert that the store remembers as ahead. A tombstone is newer than those of them that lie
    before it in its partition.
    """
    columns = [rows[name].to_pylist() for name in ("id", "version", "deleted", "refused")]
    times = rows["at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    places: list[Place] = list(zip(*(rows[name].to_pylist() for name in ORIGIN), strict=True))
    marks = [rows[name].to_pylist() for name in ("tombstone", "ahead")] if "ahead" in rows.column_names else None
    of_record: dict[tuple[object, ...], list[Row]] = {}
    of_id: dict[str, list[Row]] = {}
    for number, (key, version, deleted, why, at) in enumerate(zip(*columns, times, strict=True)):
        if why is not None:
            refused[number] = why.decode(errors="replace")
            continue
        if deleted and tombstones == "ignore":
            continue
        try:
            told = [bool(mark[number]) for mark in marks] if marks else []
            row = Row(number, _id(key, id_bytes), _version(version), bool(deleted), at, places[number], *told)
        except ValueError as e:
            refused[number] = str(e)
            continue
        of_record.setdefault((*places[number], row.id), []).append(row)
    for twice in of_record.values():
        if len(twice) > 1:
            refused |= dict.fromkeys((row.number for row in twice), f"its record makes {len(twice)} rows of one id")
            continue
        of_id.setdefault(twice[0].id, []).append(twice[0])
    gone = [key for key, found in of_id.items() if any(row.tombstone for row in found)]
    known = ahead(gone) if gone else {}
    for key in gone:
        of_id[key] = following(of_id[key], known.get(key))
    for found in of_id.values():
        found.sort(key=lambda row: row.version)
    while of_id:
        best = sorted((found.pop() for found in of_id.values()), key=lambda row: row.number)
        yield best
        of_id = {row.id: of_id[row.id] for row in best if row.number in refused and of_id[row.id]}


def following(rows: Sequence[Row], known: Ahead | None) -> list[Row]:
    """Rows of one id, each tombstone newer than what is ahead and lies before it in its partition.

    known: an upsert that the store remembers.
    """
    early = [Ahead(row.version, row.place) for row in rows if row.ahead and not row.deleted]
    early += [known] if known else []
    return [_behind(row, early) if row.tombstone else row for row in rows]


def _behind(row: Row, early: Sequence[Ahead]) -> Row:
    topic, partition, offset = row.place
    before = [one.version for one in early if one.place[:2] == (topic, partition) and one.place[2] < offset]
    if (last := max(before, default=0)) <= row.version:
        return row
    # The time of the last of them, and its own offset, as all versions have.
    made = last & ~LOWER | offset & LOWER
    return replace(row, version=made if made > last else min(made + LOWER + 1, LAST))


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
