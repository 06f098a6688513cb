"""Rows of one id: of one record they are no choice that a writer may make, of several the newest that is taken."""

from __future__ import annotations

import pyarrow as pa

from penstock.sinks.newest import newest


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
    [kept] = newest(rows, refused, id_bytes=100, tombstones="delete")
    assert [(row.number, row.id) for row in kept] == [(3, "b"), (4, "a")]
    assert refused == dict.fromkeys((1, 2), "its record makes 2 rows of one id")


def test_what_is_refused_meanwhile_hides_nothing_older() -> None:
    rows = batch(("a", 3, 0), ("a", 1, 1), ("b", 1, 2), ("a", 2, 3), ("a", 2, 4), ("c", 1, 5))
    refused: dict[int, str] = {}
    found = []
    for chosen in newest(rows, refused, id_bytes=100, tombstones="delete"):
        found.append([row.number for row in chosen])
        refused |= {number: "too long" for number in (0, 2, 4) if number in found[-1]}
    assert found == [[0, 2, 5], [4], [3]]
