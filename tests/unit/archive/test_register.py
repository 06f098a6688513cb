"""A catalog that is lost, or an older copy: what lies in the folder of an archive is known again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from penstock.archive import catalog
from penstock.archive import register as registration
from penstock.archive.register import register
from penstock.errors import SinkError, Wait
from tests.support.s3_store import Calls
from tests.support.small_archive import (
    HOUR,
    archived_rows,
    batch,
    closer,
    hours,
    is_valid,
    local_store,
    once_before,
    open_writer,
    output,
    table_of,
    write_batch,
)

TO = output()


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[None]:
    with local_store(tmp_path):
        writer = open_writer(TO)
        write_batch(writer, TO, batch(0, 1))
        write_batch(writer, TO, batch(2))
        closer(writer, TO, 3).close_due_hours()
        yield


def lose() -> None:
    for name in (TO.table, f"{TO.table}_hours"):
        catalog.open_catalog().drop_table(name)


def test_a_lost_catalog_hides_no_records() -> None:
    before = table_of(TO).state
    lose()
    with pytest.raises(SinkError, match=r"the folder of archive kept has a table that the catalog does not know") as e:
        open_writer(TO)
    assert "penstock archives register kept" in str(e.value)
    assert [location.rpartition("/")[0] for location in register(TO)] == [
        "s3://lake/kept/metadata",
        "s3://lake/kept_hours/metadata",
    ]
    assert table_of(TO).state == before
    assert archived_rows(TO) == batch(0, 1, 2).to_pylist()
    assert hours(TO)[HOUR].is_closed
    assert is_valid(TO)
    assert write_batch(open_writer(TO), TO, batch(2, 3)) == 1
    register(TO)
    assert len(archived_rows(TO)) == 4


def test_an_older_copy_of_the_catalog_comes_to_the_newest_state(tmp_path: Path) -> None:
    old = (tmp_path / "catalog.db").read_bytes()
    writer = open_writer(TO)
    for n in range(3, 40):
        write_batch(writer, TO, batch(n))
    (tmp_path / "catalog.db").write_bytes(old)
    register(TO)
    assert len(archived_rows(TO)) == 40


def test_metadata_of_a_commit_that_was_refused_does_not_count(tmp_path: Path) -> None:
    """It has the same version as that of the commit which was accepted."""
    stale = open_writer(TO)
    new = open_writer(TO)
    write_batch(new, TO, batch(3, 4))
    accepted = table_of(TO)._table.metadata_location
    refused = json.loads((tmp_path / accepted.removeprefix("s3://")).read_text())
    state = json.loads(refused["properties"]["penstock.state"])
    state["claim"], state["positions"] = [stale.state.claim[0] - 1, "stale"], {"t": {"0": 1000}}
    refused["properties"]["penstock.state"] = json.dumps(state)
    version = accepted.rpartition("/")[2].partition("-")[0]
    other = f"kept/metadata/{version}-ffffffff-ffff-4fff-8fff-ffffffffffff.metadata.json"
    (tmp_path / "lake" / other).write_text(json.dumps(refused))
    lose()
    assert register(TO)[0] == accepted


def test_metadata_without_its_snapshot_does_not_count(tmp_path: Path) -> None:
    """A commit that was refused last leaves its metadata, and no manifests."""
    accepted = table_of(TO)._table.metadata_location
    refused = json.loads((tmp_path / accepted.replace("s3://", "")).read_text())
    state = json.loads(refused["properties"]["penstock.state"])
    refused["properties"]["penstock.state"] = json.dumps({**state, "positions": {"t": {"0": 1000}}})
    for one in refused["snapshots"]:
        one["manifest-list"] = "s3://lake/kept/metadata/snap-gone.avro"
    version = accepted.rpartition("/")[2].partition("-")[0]
    other = f"kept/metadata/{version}-ffffffff-ffff-4fff-8fff-ffffffffffff.metadata.json"
    (tmp_path / "lake" / other).write_text(json.dumps(refused))
    lose()
    assert register(TO)[0] == accepted
    assert archived_rows(TO) == batch(0, 1, 2).to_pylist()


def test_a_registration_that_is_cut_off_is_repeated(tmp_path: Path) -> None:
    lose()
    calls = Calls(3, "before")
    with local_store(tmp_path, calls), pytest.raises(Wait):
        register(TO)
    register(TO)
    assert archived_rows(TO) == batch(0, 1, 2).to_pylist()


def test_an_empty_folder_is_told() -> None:
    with pytest.raises(SinkError, match=r"there is no table of archive never; got: s3://lake/never/metadata"):
        register(output("never"))


def test_what_is_committed_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_writer(TO)
    once_before(monkeypatch, registration, "_is_whole", lambda: write_batch(writer, TO, batch(3)))
    register(TO)
    assert archived_rows(TO) == batch(0, 1, 2, 3).to_pylist()
    assert write_batch(writer, TO, batch(3, 4)) == 1
    assert archived_rows(TO) == batch(*range(5)).to_pylist()


@pytest.mark.parametrize("kind", ["control", "other"])
def test_an_older_catalog_that_is_written_meanwhile_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is changed as long as it names what it named; another kind of catalog is asked for less."""
    old = (tmp_path / "catalog.db").read_bytes()
    writer = open_writer(TO)
    write_batch(writer, TO, batch(3))
    newest = (tmp_path / "catalog.db").read_bytes()
    (tmp_path / "catalog.db").write_bytes(old)

    def restore_and_write() -> None:
        (tmp_path / "catalog.db").write_bytes(newest)
        write_batch(writer, TO, batch(4))

    once_before(
        monkeypatch,
        catalog.ControlCatalog,
        "replace_metadata" if kind == "control" else "drop_table",
        restore_and_write,
    )
    if kind == "other":
        monkeypatch.setattr(catalog, "ControlCatalog", type("Other", (), {}))
    register(TO)
    assert archived_rows(TO) == batch(*range(5)).to_pylist()
    assert write_batch(writer, TO, batch(4, 5)) == 1


def test_a_commit_that_is_under_way_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata is in the folder before the catalog names it; its snapshot goes if it is refused."""
    writer, real, is_written, may_go_on = open_writer(TO), catalog.ControlCatalog._write_metadata, Event(), Event()

    def write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        real(metadata, io, metadata_path)
        is_written.set()
        assert may_go_on.wait(30)

    monkeypatch.setattr(catalog.ControlCatalog, "_write_metadata", staticmethod(write_metadata))
    commit = Thread(target=write_batch, args=(writer, TO, batch(3)))

    def wait(_: float) -> None:
        may_go_on.set()
        commit.join(30)

    commit.start()
    assert is_written.wait(30)
    monkeypatch.setattr(registration, "time", SimpleNamespace(sleep=wait))
    assert register(TO)[0] == table_of(TO)._table.metadata_location
    assert archived_rows(TO) == batch(0, 1, 2, 3).to_pylist()
    assert write_batch(writer, TO, batch(3, 4)) == 1


def test_a_writer_does_not_go_on_from_an_older_state(tmp_path: Path) -> None:
    """It counts on what it has committed."""
    writer = open_writer(TO)
    old = (tmp_path / "catalog.db").read_bytes()
    write_batch(writer, TO, batch(3))
    (tmp_path / "catalog.db").write_bytes(old)
    for _ in range(2):
        with pytest.raises(SinkError, match="the catalog names an older state") as e:
            write_batch(writer, TO, batch(4))
        assert "penstock archives register kept" in str(e.value)
    register(TO)
    assert write_batch(writer, TO, batch(4)) == 1
    assert archived_rows(TO) == batch(*range(5)).to_pylist()
