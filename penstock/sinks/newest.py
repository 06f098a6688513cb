"""Which rows of a batch are written: of each id the newest version that the store takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.declare.sink import Tombstones
from penstock.sinks.documents import ORIGIN


@dataclass(frozen=True, slots=True)
class Row:
    """number: in the batch; at: µs since 1970, None if it has no time."""

    number: int
    id: str
    version: int
    deleted: bool
    at: int | None


def newest(rows: pa.Table, refused: dict[int, str], *, id_bytes: int, tombstones: Tombstones) -> Iterator[list[Row]]:
    """Of each id the row of the greatest version, of equal ones the last; by row's number, why others are refused.

    Rows of one record that share an id are refused: which of them were to stay is not said. Where a row is refused by
    the time the next rows are asked for, they are those that it hid. id_bytes: the longest id that the store takes.
    """
    columns = [rows[name].to_pylist() for name in ("id", "version", "deleted", "refused")]
    times = rows["at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    places = list(zip(*(rows[name].to_pylist() for name in ORIGIN), strict=True))
    of_record: dict[tuple[object, ...], list[Row]] = {}
    of_id: dict[str, list[Row]] = {}
    for number, (key, version, deleted, why, at) in enumerate(zip(*columns, times, strict=True)):
        if why is not None:
            refused[number] = why.decode(errors="replace")
            continue
        if deleted and tombstones == "ignore":
            continue
        try:
            row = Row(number, _id(key, id_bytes), _version(version), bool(deleted), at)
        except ValueError as e:
            refused[number] = str(e)
            continue
        of_record.setdefault((*places[number], row.id), []).append(row)
    for twice in of_record.values():
        if len(twice) > 1:
            refused |= dict.fromkeys((row.number for row in twice), f"its record makes {len(twice)} rows of one id")
            continue
        of_id.setdefault(twice[0].id, []).append(twice[0])
    for found in of_id.values():
        found.sort(key=lambda row: row.version)
    while of_id:
        best = sorted((found.pop() for found in of_id.values()), key=lambda row: row.number)
        yield best
        of_id = {row.id: of_id[row.id] for row in best if row.number in refused and of_id[row.id]}


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
