"""An archive in a real object store: its writer is cut off, fenced, and verified. Each single case is tried in
tests/unit/archive, on a local folder."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest

from penstock.archive import reader, state_log
from penstock.archive.reader import read_hour
from penstock.archive.verify import verify_archive
from penstock.archive.writer import ArchiveWriter
from penstock.devstack.servers.s3 import S3Server
from penstock.errors import LeaseLost, SinkError, Wait
from penstock.object_store.bucket import Bucket
from tests.support.s3_store import Failing, endpoint_of
from tests.support.small_archive import (
    ALL_ROWS,
    HOUR,
    archived_rows,
    batch,
    is_valid,
    output,
    write_archive,
    write_batch,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def store(object_store: S3Server) -> Bucket:
    return Bucket(endpoint_of(object_store), "lake", "writer")


def test_a_writer_cut_off_and_started_again_loses_nothing(store: Bucket) -> None:
    with suppress(Wait):
        write_archive(Failing(store, 12, "after"))
    write_archive(store)
    assert archived_rows(store) == ALL_ROWS
    assert is_valid(store)
    assert all(read_hour(store, state_log.latest_state(store), hour).closed for hour in (HOUR, "2026-01-01T11"))
    to = output(store)
    old, new = ArchiveWriter(to, store), ArchiveWriter(to, store)
    with pytest.raises(LeaseLost, match="has a newer writer"):
        write_batch(old, to, batch(19, 20), 3)
    assert write_batch(new, to, batch(19, 20), 3) in (0, 2)
    file = read_hour(store, state_log.latest_state(store), HOUR).files[0].key
    content = store.get(file)
    for damaged, said in (
        (content[:-20], "cannot be read: s3://lake/"),
        (None, "a file of the archive is missing: s3://lake/"),
    ):
        store.delete(file) if damaged is None else store.put(file, damaged)
        assert said in " ".join(one.what for hour in verify_archive(store) for one in hour.findings)
        with pytest.raises(SinkError, match="s3://lake/"):
            list(reader.read_interval(store, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)))
