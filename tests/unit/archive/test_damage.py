"""Files of a table that are cut off or damaged: each read says so as an error of Penstock, or is right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, TimestamptzType

from penstock.archive import maintenance, register
from penstock.errors import PenstockError
from tests.support.iceberg_tables import created, job, orders, read, tables
from tests.support.small_archive import archived_rows, is_valid, local_store, output, write_archive

ORDERS = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestamptzType()))


def damaged(data: bytes, rng: random.Random) -> Iterator[bytes]:
    yield b""
    yield data[: len(data) // 2]
    yield b"<html>a login page</html>"
    for count in (1, 4, 20):
        flipped = bytearray(data)
        for _ in range(count):
            flipped[rng.randrange(len(data))] = rng.randrange(256)
        yield bytes(flipped)


def refusals(folder: Path, kind: str, read_all: Callable[[], object], newest: int = 0) -> int:
    """How often one of the newest files, all for 0, is refused. Any other exception than ours fails the test."""
    rng, count = random.Random(kind), 0
    for path in sorted(folder.rglob(f"*.{kind}"), key=lambda path: path.stat().st_mtime_ns)[-newest:]:
        data = path.read_bytes()
        for damage in damaged(data, rng):
            path.write_bytes(damage)
            try:
                read_all()
            except PenstockError:
                count += 1
        path.write_bytes(data)
    read_all()
    return count


@pytest.mark.parametrize("kind", ["avro", "json", "parquet"])
def test_of_a_table_of_another_program(tmp_path: Path, kind: str) -> None:
    with tables(tmp_path / "lake") as catalog:
        created(catalog, ORDERS).append(orders(1, 2, 3))
        assert refusals(tmp_path / "lake", kind, lambda: read(job(), tmp_path / "job")) >= 3


@pytest.mark.parametrize("newest", [2, pytest.param(0, marks=pytest.mark.long)], ids=["some", "all"])
@pytest.mark.parametrize("kind", ["avro", "json", "parquet"])
def test_of_an_archive(tmp_path: Path, kind: str, newest: int) -> None:
    to = output()

    def read_all() -> None:
        archived_rows(to)
        is_valid(to)
        maintenance.maintain(to)

    with local_store(tmp_path / "lake"):
        write_archive(to)
        assert refusals(tmp_path / "lake", kind, read_all, newest) >= 3


def test_metadata_that_are_damaged_are_registered_anew(tmp_path: Path) -> None:
    """`penstock archives register` takes the newest metadata that are whole."""
    to = output()
    with local_store(tmp_path / "lake"):
        write_archive(to)
        rows = archived_rows(to)
        newest = max((tmp_path / "lake").rglob("kept/metadata/*.metadata.json"))
        newest.write_bytes(newest.read_bytes()[:100])
        with pytest.raises(PenstockError, match=r"table penstock\.kept cannot be read"):
            archived_rows(to)
        register.register(to)
        found = archived_rows(to)
        assert found
        assert all(row in rows for row in found)
