"""A table's folder: the newest of each key, whatever the order of writes, and whole after any crash."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine import tablefiles
from penstock.engine.tablefiles import GONE, MANIFEST, Damaged, Manifest, Rows, TableFiles

COLUMNS: dict[str, pa.DataType] = {"key": pa.string(), "n": pa.int64(), GONE: pa.bool_()}
LAYOUT = pa.schema(COLUMNS)
PLACE: dict[str, pa.DataType] = {"value": pa.binary(), "partition": pa.int32(), "offset": pa.int64()}
DEAD = pa.schema(PLACE)


def rows(**of: int | None) -> pa.Table:
    return pa.Table.from_pylist([{"key": k, "n": n, GONE: n is None} for k, n in of.items()], schema=LAYOUT)


def dead(*offsets: int) -> pa.Table:
    return pa.Table.from_pylist([{"value": b"x", "partition": 0, "offset": at} for at in offsets], schema=DEAD)


def found(folder: Path, *partitions: int) -> dict[str, Any]:
    numbers = pa.RecordBatch.from_pydict({"id": list(partitions or (0,))})
    every = [row for batch in Rows(str(folder))(iter([numbers])) for row in batch.to_pylist()]
    assert len({row["key"] for row in every}) == len(every)
    return {row["key"]: row["n"] for row in every}


@pytest.fixture
def files(tmp_path: Path) -> TableFiles:
    made = TableFiles(tmp_path / "table")
    made.begin("n BIGINT", "id", {0: 0, 1: 0})
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
    assert again(files).manifest.next == {0: 7, 1: 1}


def test_many_small_changes_leave_few_files_and_what_a_dict_would_hold(files: TableFiles) -> None:
    chance, wanted = random.Random(1), dict[str, int]()
    for n in range(120):
        change = {f"k{chance.randrange(200)}": chance.choice([n, n, None]) for _ in range(chance.randrange(1, 6))}
        files.append({0: rows(**change)}, dead(), {0: n, 1: 0})
        wanted = {k: v for k, v in {**wanted, **change}.items() if v is not None}
        if n % 30 == 0:
            assert found(files.folder) == wanted
    assert found(files.folder) == wanted
    assert len(files.manifest.parts[0]) < 10
    # nothing is left of the files that were put together
    assert {p.name for p in files.folder.iterdir()} == {*files.manifest.files, MANIFEST}


def test_a_crash_before_the_manifest_leaves_the_table_as_it_was(
    files: TableFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.append({0: rows(a=1)}, dead(), {0: 1, 1: 0})

    def struck(_: object) -> None:
        raise OSError("lightning")

    with monkeypatch.context() as patch:
        patch.setattr(TableFiles, "_flip", lambda _, to: struck(to))
        with pytest.raises(OSError, match="lightning"):
            files.append({0: rows(a=2, b=3, c=4)}, dead(), {0: 4, 1: 0})
    reopened = again(files)
    assert (found(files.folder), reopened.manifest.next) == ({"a": 1}, {0: 1, 1: 0})
    assert {p.name for p in files.folder.iterdir()} == {*reopened.manifest.files, MANIFEST}


def test_dead_records_wait_in_parts_until_they_are_forgotten(files: TableFiles) -> None:
    files.append({}, dead(3, 5), {0: 6, 1: 0})
    files.append({0: rows(a=1)}, dead(), {0: 7, 1: 0})
    files.append({}, dead(7), {0: 8, 1: 0})
    held = [(table["offset"].to_pylist(), dict(following)) for table, following in again(files).dead()]
    assert held == [([3, 5], {0: 6, 1: 0}), ([7], {0: 8, 1: 0})]
    files.without_dead(1)
    assert [table["offset"].to_pylist() for table, _ in again(files).dead()] == [[7]]
    files.without_dead(1)
    assert list(again(files).dead()) == []
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
    (folder / MANIFEST).write_text(text.replace(f'"layout": {tablefiles.LAYOUT}', '"layout": 0'))


@pytest.mark.parametrize("harm", [missing, cut, changed, no_manifest, half_a_manifest, another_layout])
def test_damage_is_noticed(files: TableFiles, harm: Any) -> None:
    files.append({0: rows(a=1)}, dead(), {0: 1, 1: 0})
    again(files)
    harm(files.folder)
    with pytest.raises(Damaged):
        again(files)
    files.begin("n BIGINT", "id", {0: 0})
    assert again(files).manifest == Manifest("n BIGINT", "id", {0: 0})


def test_a_driver_that_wakes_up_takes_no_file_from_its_heir(files: TableFiles) -> None:
    files.append({0: rows(a=1, b=1, c=1)}, dead(), {0: 3, 1: 0})
    heir = again(files)
    heir.append({0: rows(d=1)}, dead(), {0: 4, 1: 0})
    files.append({0: rows(e=1)}, dead(), {0: 4, 1: 0})
    assert found(files.folder) == {"a": 1, "b": 1, "c": 1, "e": 1}
    heir.append({0: rows(f=1)}, dead(), {0: 5, 1: 0})
    assert found(files.folder) == {"a": 1, "b": 1, "c": 1, "d": 1, "f": 1}
