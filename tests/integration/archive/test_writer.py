"""An archive in a real object store and a real database: its writer is cut off, fenced, and verified. Each single case
is tried in tests/unit/archive, on a local folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from penstock.archive import catalog, file_io
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.reader import read_interval
from penstock.archive.verify import verify_archive
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.s3 import S3Server
from penstock.errors import LeaseLost, SinkError, Wait
from penstock.object_store.bucket import Bucket
from tests.support.s3_store import Calls, Failing, endpoint_of, use_store
from tests.support.small_archive import (
    ALL_ROWS,
    HOUR,
    NEXT_HOUR,
    archived_rows,
    batch,
    hours,
    is_valid,
    keys,
    open_writer,
    output,
    table_of,
    write_archive,
    write_batch,
)

pytestmark = pytest.mark.integration


def test_a_writer_cut_off_and_started_again_loses_nothing(
    object_store: S3Server, mariadb: MariaDB, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home.exists()
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", mariadb.url)
    use_store(monkeypatch, endpoint_of(object_store))
    to, calls = output("writer"), Calls(40, "after")
    with monkeypatch.context() as patch, suppress(Wait):
        patch.setattr(
            file_io,
            "open_bucket",
            lambda bucket, prefix="": Failing(Bucket(endpoint_of(object_store), bucket, prefix), calls),
        )
        write_archive(to)
    assert calls.count >= 40
    write_archive(to)
    assert archived_rows(to) == ALL_ROWS
    assert is_valid(to)
    assert all(hours(to)[hour].is_closed for hour in (HOUR, NEXT_HOUR))
    old, new = open_writer(to), open_writer(to)
    with pytest.raises(LeaseLost, match="has a newer writer"):
        write_batch(old, to, batch(19, 20), 3)
    assert write_batch(new, to, batch(19, 20), 3) == 2
    [key, *_], store = keys(to), table_of(to).bucket
    content = store.get(key)
    for damaged, said in (
        (content[:-20], "cannot be read: s3://lake/"),
        (None, "a file of the archive is missing: s3://lake/"),
    ):
        store.delete(key) if damaged is None else store.put(key, damaged)
        found = verify_archive(table_of(to), ClosedHours.of(to))
        assert said in " ".join(one.what for hour in found for one in hour.findings)
        with pytest.raises(SinkError, match="s3://lake/"):
            list(read_interval(table_of(to)))
    catalog._opened.cache_clear()
