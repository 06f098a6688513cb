"""A table's folder: the newest of each key, whatever the order of writes, and whole after any crash."""

from __future__ import annotations

import random
import resource
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.tables import table_store
from penstock.tables.table_store import (
    DELETED,
    MANIFEST,
    TableCorrupt,
    TableFiles,
    TableManifest,
    TableScan,
    TableWriteError,
)

COLUMNS: dict[str, pa.DataType] = {"key": pa.string(), "n": pa.int64(), DELETED: pa.bool_()}
LAYOUT = pa.schema(COLUMNS)
PLACE: dict[str, pa.DataType] = {"value": pa.binary(), "partition": pa.int32(), "offset": pa.int64()}
DEAD = pa.schema(PLACE)


def rows(**of: int | None) -> pa.Table:
    return pa.Table.from_pylist([{"key": k, "n": n, DELETED: n is None} for k, n in of.items()], schema=LAYOUT)


def dead(*offsets: int) -> pa.Table:
    return pa.Table.from_pylist([{"value": b"x", "partition": 0, "offset": at} for at in offsets], schema=DEAD)


def found(folder: Path, number: int = 0, count: int = 2) -> dict[str, Any]:
    """What one of so many workers reads."""
    numbers = pa.RecordBatch.from_pydict({"id": [number]})
    every = [row for batch in TableScan(str(folder), count)(iter([numbers])) for row in batch.to_pylist()]
    assert len({row["key"] for row in every}) == len(every)
    return {row["key"]: row["n"] for row in every}


@pytest.fixture
def files(tmp_path: Path) -> TableFiles:
    made = TableFiles(tmp_path / "table")
    made.begin(TableManifest("s", "n BIGINT", "id", 0, {0: 0, 1: 0}))
    return made


def again(files: TableFiles) -> TableFiles:
    opened = TableFiles(files.folder)
    opened.open()
    return opened


def test_the_last_of_each_key_counts_and_a_removed_key_is_gone(files: TableFiles) -> None:
    files.append({0: rows(a=1, b=2), 1: rows(z=9)}, dead(), {0: 2, 1: 1})
    files.append({0: rows(a=3, c=4)}, dead(), {0: 4, 1: 1})
    files.append({0: rows(b=None, d=None)}, dead(), {0: 6, 1: 1})
    assert found(files.folder) == {"a": 3, "c": 4}
    assert found(files.folder, 0, 1) == {"a": 3, "c": 4, "z": 9}
    files.append({0: rows(b=5)}, dead(), {0: 7, 1: 1})
    assert found(files.folder) == {"a": 3, "b": 5, "c": 4}
    assert again(files).manifest.next_offsets == {0: 7, 1: 1}


def test_many_small_changes_leave_few_files_and_what_a_dict_would_hold(files: TableFiles) -> None:
    chance, wanted = random.Random(1), dict[str, int]()
    for n in range(120):
        change = {f"k{chance.randrange(200)}": chance.choice([n, n, None]) for _ in range(chance.randrange(1, 6))}
        files.append({0: rows(**change)}, dead(), {0: n, 1: 0})
        wanted = {k: v for k, v in {**wanted, **change}.items() if v is not None}
        if n % 30 == 0:
            assert found(files.folder) == wanted
    assert found(files.folder) == wanted
    assert len(files.manifest.files_by_partition[0]) < 10
    # nothing is left of the files that were put together
    assert {p.name for p in files.folder.iterdir()} == {*files.manifest.files, MANIFEST}


def test_a_crash_before_the_manifest_leaves_the_table_as_it_was(
    files: TableFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.append({0: rows(a=1)}, dead(), {0: 1, 1: 0})

    def struck(_: object) -> None:
        raise OSError("lightning")

    with monkeypatch.context() as patch:
        patch.setattr(TableFiles, "_replace_manifest", lambda _, to: struck(to))
        with pytest.raises(TableWriteError, match="lightning"):
            files.append({0: rows(a=2, b=3, c=4)}, dead(), {0: 4, 1: 0})
    reopened = again(files)
    assert (found(files.folder), reopened.manifest.next_offsets) == ({"a": 1}, {0: 1, 1: 0})
    assert {p.name for p in files.folder.iterdir()} == {*reopened.manifest.files, MANIFEST}


def test_dead_records_wait_in_parts_until_they_are_forgotten(files: TableFiles) -> None:
    files.append({}, dead(3, 5), {0: 6, 1: 0})
    files.append({0: rows(a=1)}, dead(), {0: 7, 1: 0})
    files.append({}, dead(7), {0: 8, 1: 0})
    held = [(table["offset"].to_pylist(), dict(following)) for table, following in again(files).bad_records()]
    assert held == [([3, 5], {0: 6, 1: 0}), ([7], {0: 8, 1: 0})]
    files.drop_bad_records(1)
    assert [table["offset"].to_pylist() for table, _ in again(files).bad_records()] == [[7]]
    files.drop_bad_records(1)
    assert list(again(files).bad_records()) == []
    assert found(files.folder) == {"a": 1}


def missing(folder: Path) -> None:
    next(folder.glob("0-*")).unlink()


def cut(folder: Path) -> None:
    path = next(folder.glob("0-*"))
    path.write_bytes(path.read_bytes()[:-10])


def changed(folder: Path) -> None:
    path = next(folder.glob("0-*"))
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)


def no_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def half_a_manifest(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text[: len(text) // 2])


def another_layout(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace(f'"layout": {table_store.FORMAT_VERSION}', '"layout": 0'))


def unreadable(folder: Path) -> None:
    path = next(folder.glob("0-*"))
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [unreadable, missing, cut, changed, no_manifest, half_a_manifest, another_layout])
def test_damage_is_noticed(files: TableFiles, harm: Any) -> None:
    files.append({0: rows(a=1)}, dead(), {0: 1, 1: 0})
    again(files)
    harm(files.folder)
    with pytest.raises(TableCorrupt):
        again(files)
    anew = TableManifest("s", "n BIGINT", "id", 0, {0: 0})
    files.begin(anew)
    assert again(files).manifest == anew


def test_a_driver_that_wakes_up_takes_no_file_from_its_heir(files: TableFiles) -> None:
    files.append({0: rows(a=1, b=1, c=1)}, dead(), {0: 3, 1: 0})
    successor = again(files)
    successor.append({0: rows(d=1)}, dead(), {0: 4, 1: 0})
    files.append({0: rows(e=1)}, dead(), {0: 4, 1: 0})
    assert found(files.folder) == {"a": 1, "b": 1, "c": 1, "e": 1}
    successor.append({0: rows(f=1)}, dead(), {0: 5, 1: 0})
    assert found(files.folder) == {"a": 1, "b": 1, "c": 1, "d": 1, "f": 1}


def test_every_bit_of_a_manifest_counts(files: TableFiles) -> None:
    """One digit of an offset, and records would be left out."""
    files.append({0: rows(a=1)}, dead(3), {0: 120, 1: 0})
    path = files.folder / MANIFEST
    held = path.read_bytes()
    for place in range(len(held) - 1):
        path.write_bytes(held[:place] + bytes([held[place] ^ 1]) + held[place + 1 :])
        with pytest.raises(TableCorrupt):
            TableManifest.read(files.folder)
    path.write_bytes(held)
    assert TableManifest.read(files.folder) == files.manifest


def test_damage_gets_no_checksum_of_its_own_when_files_are_put_together(files: TableFiles) -> None:
    files.append({0: rows(a=1)}, dead(), {0: 1, 1: 0})
    changed(files.folder)
    with pytest.raises(TableCorrupt):
        files.append({0: rows(b=1)}, dead(), {0: 2, 1: 0})


def test_what_is_not_ones_own_in_the_folder_stays(files: TableFiles) -> None:
    (files.folder / "lost+found").mkdir()
    (files.folder / f"{MANIFEST}.new").write_text("{")
    (files.folder / "0-left.arrow").write_bytes(b"half")
    again(files)
    assert {p.name for p in files.folder.iterdir()} == {MANIFEST, "lost+found"}


def test_a_full_disk_is_an_error_and_leaves_the_table_unchanged(files: TableFiles) -> None:
    files.append({0: rows(a=1)}, dead(), {0: 1, 1: 0})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(TableWriteError, match="check that the folder is writable and its disk has space"):
            files.append({0: rows(**{f"k{n}": n for n in range(10_000)})}, dead(), {0: 10_001, 1: 0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert again(files).manifest.next_offsets == {0: 1, 1: 0}
    assert found(files.folder) == {"a": 1}


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "naming.tables").write_text("")
    made = TableFiles(tmp_path / "naming.tables" / "shops")
    with pytest.raises(TableCorrupt):
        made.open()
    with pytest.raises(TableWriteError, match=r"naming\.tables/shops"):
        made.begin(TableManifest("s", "n BIGINT", "id", 0, {0: 0}))
