"""Archives whose tables are in a real REST catalog: written, fenced, cut off, maintained and registered."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from typer.testing import CliRunner

from penstock.archive import catalog, maintenance, rest_catalog
from penstock.archive import register as registration
from penstock.archive.maintenance import maintain
from penstock.archive.register import register
from penstock.archive.stream import output_of
from penstock.cli import app
from penstock.devstack.servers.s3 import S3Server
from penstock.errors import HostError, LeaseLost, SinkError, Wait
from penstock.host.ports import free_port
from penstock.settings import settings
from penstock.streams import Archive, Topic
from tests.support.caches import clear_caches, unload_jobs
from tests.support.http_faults import Fault, Proxy
from tests.support.rest_catalog import RestCatalogServer
from tests.support.s3_store import endpoint_of, use_store
from tests.support.small_archive import (
    ALL_ROWS,
    HOUR,
    NEXT_HOUR,
    archived_rows,
    batch,
    hours,
    is_valid,
    open_writer,
    output,
    table_of,
    write_archive,
    write_batch,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(object_store: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    """A real REST catalog; the tests are skipped where none can be had."""
    part = RestCatalogServer(tmp_path_factory.mktemp("rest Büro"), free_port(), endpoint_of(object_store))
    try:
        part.command()
    except HostError as e:
        pytest.skip(str(e))
    with part:
        yield part


@pytest.fixture(autouse=True)
def rest(
    server: RestCatalogServer, object_store: S3Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> RestCatalogServer:
    """The REST catalog, which the settings name."""
    assert home.exists()
    monkeypatch.setenv("PENSTOCK_ICEBERG_CATALOG", server.url)
    use_store(monkeypatch, endpoint_of(object_store))
    return server


def offsets(name: str) -> list[object]:
    return [row["offset"] for row in archived_rows(output(name))]


def test_an_archive_is_written_read_maintained_and_registered(
    object_store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs" / "shop").mkdir(parents=True)
    (tmp_path / "jobs" / "shop" / "kept.py").write_text(
        "from penstock.streams import Archive, Topic\n\n"
        "KEPT = Archive('by-rest', Topic('t'), bucket='lake', prefix='by-rest')\n"
    )
    monkeypatch.setenv("PENSTOCK_PROJECT", str(tmp_path))
    monkeypatch.setattr(registration, "COMMIT_TIME", 0.1)
    clear_caches()
    unload_jobs()
    archive = Archive("by-rest", Topic("t"), bucket="lake", prefix="by-rest")
    to = replace(output_of(archive), snapshot_interval=timedelta(0))
    write_archive(to)
    then = datetime.now(UTC)
    write_archive(to)
    # Of some batches of one interval, a snapshot is kept.
    write_batch(open_writer(output_of(archive)), to, batch(19, 20), 3)
    assert archived_rows(to)[:19] == ALL_ROWS
    assert all(hours(to)[hour].closed for hour in (HOUR, NEXT_HOUR))
    assert sum(file.rows for file in table_of(to).as_of(then).files()) == 19

    asked = CliRunner().invoke(app, ["archives", "query", to.archive, "SELECT count(*) AS n FROM records", "--json"])
    assert json.loads(asked.stdout) == [{"n": 21}]
    assert CliRunner().invoke(app, ["archives", "verify", to.archive]).exit_code == 0
    code = CliRunner().invoke(app, ["archives", "connect", to.archive]).stdout
    found: dict[str, Any] = {}
    exec(code.replace("'...'", repr(object_store.secret_key)), found)
    assert len(found["rows"]) == 10

    table_of(to).bucket.put("data/left-behind", b"1")
    time.sleep(1)
    monkeypatch.setattr(maintenance, "ORPHAN_AGE", timedelta(0))
    kept, _ = maintain(replace(to, keep_snapshots=timedelta(0)))
    assert kept.snapshots > 5
    assert kept.objects > kept.snapshots, "each snapshot had a list, and something was left behind"
    assert len(archived_rows(to)) == 21
    assert is_valid(to)

    tables = catalog.open_catalog()
    for name in (to.table, f"{to.table}_hours"):
        tables.drop_table(name)
    with pytest.raises(SinkError, match="has a table that the catalog does not know"):
        open_writer(to)
    register(to)
    newest = table_of(to)._table.metadata_location
    tables.drop_table(to.table)
    register(to)
    writer = open_writer(to)
    write_batch(writer, to, batch(20, 21, hour=11))
    table_of(to).bucket.delete(table_of(to)._table.metadata_location.removeprefix(f"{to.location}/"))
    with pytest.raises(Wait):
        open_writer(to)
    assert register(to)[0] >= newest
    write_batch(open_writer(to), to, batch(21, hour=11))
    assert [row["offset"] for row in archived_rows(to)] == [*range(22)]
    clear_caches()
    unload_jobs()


def test_the_server_refuses_commits_on_a_branch_that_has_moved() -> None:
    to = output("fenced")
    old = open_writer(to)
    write_batch(old, to, batch(0))
    one, other = table_of(to)._table, table_of(to)._table
    arrow = one.schema().as_arrow()
    one.append(batch(1).cast(arrow))
    with pytest.raises(CommitFailedException, match="branch main has changed"):
        other.append(batch(2).cast(arrow))
    with pytest.raises(Wait, match="another program has changed table"):
        write_batch(old, to, batch(2))
    assert write_batch(old, to, batch(2)) == 1
    new = open_writer(to)
    with pytest.raises(LeaseLost, match="has a newer writer"):
        write_batch(old, to, batch(3, 4))
    assert offsets("fenced") == [0, 1, 2]
    assert write_batch(new, to, batch(3)) == 1
    assert offsets("fenced") == [0, 1, 2, 3]


LOST = (
    Fault(),
    Fault(reaches=True),
    Fault(500, reaches=True),
    Fault(502, body="<html>"),
    Fault(503),
    Fault(504, reaches=True),
    Fault(repeats=True),
)


def test_a_commit_whose_answer_is_lost_counts_once(rest: RestCatalogServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy(rest.url, "/v1/namespaces/penstock/tables/lost") as proxy:
        monkeypatch.setenv("PENSTOCK_ICEBERG_CATALOG", proxy.url)
        settings.cache_clear()
        to = output("lost")
        writer = open_writer(to)
        for number, fault in enumerate(LOST):
            proxy.faults.append(fault)
            with pytest.raises(Wait, match="the Iceberg catalog does not answer"):
                write_batch(writer, to, batch(number), number)
            executed = fault.reaches or fault.repeats
            assert write_batch(writer, to, batch(number), number) == (not executed), fault
        assert offsets("lost") == [*range(len(LOST))]
        proxy.faults.append(Fault(repeats=True))
        with pytest.raises(Wait):
            write_batch(writer, to, batch(len(LOST)))
        new = open_writer(to)
        with pytest.raises(LeaseLost):
            write_batch(writer, to, batch(len(LOST)))
        assert write_batch(new, to, batch(len(LOST))) == 0
        assert is_valid(to)


@pytest.mark.long
def test_a_server_that_is_killed_or_does_not_answer_is_waited_for(
    rest: RestCatalogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = output("killed")
    writer = open_writer(to)
    write_batch(writer, to, batch(0))
    rest.kill()
    for again in (lambda: write_batch(writer, to, batch(1)), lambda: open_writer(to), lambda: maintain(to)):
        with pytest.raises(Wait, match="the Iceberg catalog does not answer"):
            again()
    rest.restart()
    assert write_batch(writer, to, batch(1)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(rest_catalog, "REQUEST_TIMEOUT", 0.5)
        rest.pause()
        began = time.monotonic()
        try:
            with pytest.raises(Wait, match="the Iceberg catalog does not answer"):
                write_batch(writer, to, batch(2))
        finally:
            rest.resume()
        assert time.monotonic() - began < 5
    # What the server has accepted it executes now, before or behind the next one.
    for _ in range(20):
        with suppress(Wait):
            write_batch(writer, to, batch(2))
            break
        time.sleep(0.5)
    write_batch(writer, to, batch(3))
    assert offsets("killed") == [0, 1, 2, 3]
    assert is_valid(to)
