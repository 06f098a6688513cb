"""Archives that somebody else changed: each change is reported, with the object and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.archive import layout, parquet, reader, state_log
from penstock.archive.verify import HourVerification, verify_archive
from penstock.archive.writer import ArchiveWriter
from penstock.errors import SinkError
from penstock.object_store.bucket import Bucket
from tests.support.s3_store import LocalBucket
from tests.support.small_archive import (
    HOUR,
    batch,
    closer,
    cut,
    edit_manifest,
    files,
    of_another_hour,
    output,
    strange,
    twice,
    write_batch,
)  # fmt: skip

FOLDER = layout.hour_folder(HOUR)


@pytest.fixture
def store(tmp_path: Path) -> Bucket:
    """An hour that is closed, of two files that were not joined, and one that is open."""
    made = LocalBucket(tmp_path, "test")
    to = output(made, target=1)
    writer = ArchiveWriter(to, made)
    write_batch(writer, to, batch(0, 1, 2), 0)
    write_batch(writer, to, batch(3, 4), 1)
    closer(writer, to, 5).close_due_hours()
    write_batch(writer, to, batch(5, hour=11), 2)
    assert all(one.ok for one in verify_archive(made))
    return made


def changed(store: Bucket) -> None:
    rows = batch(0, 1, 2).to_pylist()
    rows[1]["value"] = b"other"
    store.put(files(store)[0], parquet.to_parquet(pa.Table.from_pylist(rows, parquet.SCHEMA)))


def fewer(store: Bucket) -> None:
    store.put(files(store)[1], parquet.to_parquet(batch(3)))


def gone(store: Bucket) -> None:
    store.delete(files(store)[1])


def less_than_it_names(store: Bucket) -> None:
    edit_manifest(store, lambda said: replace(said, files=said.files[:1]))


def no_manifest(store: Bucket) -> None:
    store.put(state_log.latest_state(store).closed[HOUR].key, b"{}")


def manifest_gone(store: Bucket) -> None:
    store.delete(state_log.latest_state(store).closed[HOUR].key)


def foreign(store: Bucket) -> None:
    store.put(f"{FOLDER}/part-00000.parquet", b"PAR1")


CHANGES: dict[Callable[[Bucket], None], list[str]] = {
    cut: ["cannot be read: s3://lake/", "bytes were written"],
    strange: ["the columns are not those of an archive: n"],
    changed: ["holds other records than were written", "3 records, offsets 0 to 2, sum"],
    fewer: ["holds other records than were written", "t/0: 1 records, offsets 3 to 3"],
    gone: ["a file of the archive is missing: s3://lake/"],
    twice: ["is listed more than once, so its records would count more than once", "differ from those of its files"],
    less_than_it_names: ["differ from those of its files: t/0: 3 records", "expected 5 records"],
    of_another_hour: ["is not that of hour 2026-01-01T10; got: hour 2026-01-01T09"],
    no_manifest: ["is no valid object of an archive"],
    manifest_gone: ["an object does not exist; got: s3://lake/"],
    foreign: ["part-00000.parquet is no file of this archive"],
}


@pytest.mark.parametrize("damage", CHANGES, ids=lambda one: one.__name__)
def test_each_change_is_reported_with_object_and_hint(store: Bucket, damage: Callable[[Bucket], None]) -> None:
    damage(store)
    found: dict[str, HourVerification] = {one.hour: one for one in verify_archive(store)}
    assert not found[HOUR].ok
    assert found["2026-01-01T11"].ok, "the other hour is as it was"
    said = " ".join(f"{one.what}; hint: {one.hint}" for one in found[HOUR].findings)
    for text in CHANGES[damage]:
        if text == "bytes were written":
            assert "bytes, and" in said
        else:
            assert text in said
    assert "s3://lake/" in said
    assert all(one.hint for one in found[HOUR].findings)


@pytest.mark.parametrize("damage", [one for one in CHANGES if one is not foreign])
def test_a_reader_refuses_a_changed_archive(store: Bucket, damage: Callable[[Bucket], None]) -> None:
    damage(store)
    with pytest.raises(SinkError, match="s3://lake/"):
        list(reader.read_interval(store, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)))


def test_an_invalid_state_object_is_reported(store: Bucket) -> None:
    store.put(f"{layout.STATES}/99999999-00000000-000000001.json.gz", b"nothing")
    with pytest.raises(SinkError, match=r"99999999-00000000-000000001.json.gz is no valid object of an archive"):
        list(verify_archive(store))


def test_an_interval_selects_its_hours(store: Bucket) -> None:
    first, second = datetime(2026, 1, 1, 10, tzinfo=UTC), datetime(2026, 1, 1, 11, tzinfo=UTC)
    assert [hour for hour, _ in reader.read_interval(store, first, second)] == [HOUR, HOUR]
    assert [hour for hour, _ in reader.read_interval(store, second, second.replace(minute=1))] == ["2026-01-01T11"]
    assert not list(reader.read_interval(store, datetime(2025, 1, 1, tzinfo=UTC), first))
