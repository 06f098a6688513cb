"""`penstock archives`: what it shows of a table, and how others open it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.archive import file_io
from penstock.archive.stream import output_of
from penstock.cli import app
from penstock.object_store.bucket import Bucket
from penstock.object_store.endpoint import Endpoint
from penstock.streams import Archive, Topic
from tests.support.caches import clear_caches, unload_jobs
from tests.support.small_archive import batch, local_store, open_writer, write_batch

TO = output_of(Archive("kept", Topic("t"), bucket="lake", prefix="kept"))


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    system = tmp_path / "jobs" / "shop"
    system.mkdir(parents=True)
    (system / "kept.py").write_text(
        "from penstock.streams import Archive, Topic\n\n"
        "KEPT = Archive('kept', Topic('t'), bucket='lake', prefix='kept')\n"
    )
    monkeypatch.setenv("PENSTOCK_PROJECT", str(tmp_path))
    with local_store(tmp_path / "store"):
        clear_caches()
        unload_jobs()
        yield
    clear_caches()
    unload_jobs()


def asked(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["archives", *words])
    assert done.exit_code == code, done.output
    return done.output if code else done.stdout


def test_a_select_is_asked_over_the_records() -> None:
    assert asked("query", "kept", "SELECT count(*) AS n FROM records").split() == ["n", "0"]
    writer = open_writer(TO)
    write_batch(writer, TO, batch(*range(10)))
    write_batch(writer, TO, batch(10, 11, hour=11))
    sql = "SELECT decode(key) AS k, count(*) AS n, max(event_time) AS at FROM records GROUP BY 1 ORDER BY 1"
    rows = json.loads(asked("query", "kept", sql, "--json"))
    assert rows[0] == {"k": "k0", "n": 3, "at": "2026-01-01 11:05:00+00:00"}
    assert sum(row["n"] for row in rows) == 12
    late = asked("query", "kept", 'SELECT value, "offset" FROM records', "--from", "2026-01-01T11")
    assert [line.split() for line in late.splitlines()] == [["value", "offset"], ["v10", "10"], ["v11", "11"]]
    assert "keys and values are BLOB" in asked("query", "kept", "SELECT nothing FROM records", code=1)
    nested = json.loads(asked("query", "kept", 'SELECT headers FROM records WHERE "offset" = 11', "--json"))
    assert nested == [{"headers": [{"key": "h", "value": "11"}]}]
    assert json.loads(asked("query", "kept", "", "--json")) == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "shop" / "kept.py").write_text("import nothing_of_that_name\n")
    clear_caches()
    for kind in ("archives", "backfill"):
        done = CliRunner().invoke(app, [kind, "list"])
        assert done.exit_code == 0
        assert "shop/kept.py cannot be imported" in done.stderr
    assert "shop/kept.py cannot be imported" in asked("show", "kept", code=2)


def test_old_snapshots_are_counted() -> None:
    assert asked("maintain", "kept") == "Archive kept is empty.\n"
    write_batch(open_writer(TO), TO, batch(1))
    [row] = json.loads(asked("maintain", "kept", "--json"))
    assert row == {"table": "penstock.kept", "snapshots": 0, "objects": 0, "bytes": 0}


def test_others_open_the_table_without_the_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Endpoint("http://store:9000", "eu-west-1", "KEY", "a-secret")
    with monkeypatch.context() as patch:
        patch.setattr(file_io, "open_bucket", lambda bucket, prefix="": Bucket(endpoint, bucket, prefix))
        said = asked("connect", "kept")
    assert "from pyiceberg.catalog.sql import SqlCatalog" in said
    assert "catalog.load_table('penstock.kept')" in said
    assert "'s3.endpoint': 'http://store:9000'" in said
    assert "a-secret" not in said
    compile(said, "said", "exec")
