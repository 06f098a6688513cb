"""Other programs read the table of an archive by its catalog alone, while it is written: DuckDB and polars."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
import polars
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.s3 import S3Server
from tests.support.s3_store import endpoint_of, use_store
from tests.support.small_archive import batch, closer, open_writer, output, write_batch

pytestmark = pytest.mark.integration

BATCHES, RECORDS = 10, 50
SQL = 'SELECT count(*), count(DISTINCT "offset"), max("offset"), count(value) FROM archive'


def test_readers_see_whole_batches_while_the_archive_is_written(
    object_store: S3Server, mariadb: MariaDB, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home.exists()
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", mariadb.url)
    endpoint = endpoint_of(object_store)
    use_store(monkeypatch, endpoint)
    to = output("read_by_others")
    writer = open_writer(to)

    def write() -> None:
        for number in range(BATCHES):
            first = number * RECORDS
            write_batch(writer, to, batch(*range(first, first + RECORDS)), number)
            if number % 5 == 4:
                closer(writer, to, first + RECORDS).close_due_hours()

    thread = threading.Thread(target=write)
    thread.start()
    access = {
        "s3.endpoint": endpoint.url, "s3.region": endpoint.region, "s3.access-key-id": endpoint.access_key,
        "s3.secret-access-key": endpoint.secret_key,
    }  # fmt: skip
    table = SqlCatalog("penstock", uri=mariadb.url, **access).load_table(to.table)
    seen: list[int] = []
    while thread.is_alive() or seen[-1] < BATCHES * RECORDS:
        rows = table.refresh().scan().to_arrow()
        with duckdb.connect() as connection:
            connection.register("archive", rows)
            [by_duckdb] = connection.execute(SQL).fetchall()
        frame = polars.from_arrow(rows)
        assert isinstance(frame, polars.DataFrame)
        by_polars = (frame.height, frame["offset"].n_unique(), frame["offset"].max(), frame["value"].count())
        assert by_duckdb == by_polars
        count = len(rows)
        assert (count % RECORDS, by_polars[1]) == (0, count)
        assert by_polars[2] == (count - 1 if count else None)
        seen.append(count)
    thread.join()
    assert seen == sorted(seen)
    assert seen[-1] == BATCHES * RECORDS
    # The library alone reads headers that are null as an empty list.
    expected, found = (
        [{**row, "headers": row["headers"] or []} for row in rows.to_pylist()]
        for rows in (batch(*range(BATCHES * RECORDS)), table.refresh().scan().to_arrow().sort_by("offset"))
    )
    assert found == expected
