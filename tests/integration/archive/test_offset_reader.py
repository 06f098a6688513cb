"""The records of a topic in an archive, by their offsets, in a real object store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.archive.offset_reader import ArchivedTopic
from penstock.archive.stream import output_of
from penstock.devstack.servers.s3 import S3Server
from penstock.model.archive import Archive
from penstock.model.topic import Topic
from penstock.object_store.bucket import Bucket
from tests.support.s3_store import endpoint_of, use_store, write_to_archive

pytestmark = pytest.mark.integration

HOUR = datetime(2026, 1, 31, 23, tzinfo=UTC)
ARCHIVE = Archive("by-offset", Topic("events"), bucket="lake", prefix="by-offset")


def record(offset: int) -> dict[str, Any]:
    at = HOUR + timedelta(minutes=offset)
    plain = {"topic": "events", "partition": 0, "offset": offset, "key": None, "value": b"{}", "headers": None}
    return {**plain, "timestamp": at, "event_time": at}


def test_each_record_of_an_hour_that_was_closed_and_reopened_is_read_once(
    object_store: S3Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home.exists()
    at = endpoint_of(object_store)
    use_store(monkeypatch, at)
    Bucket(at, "lake", "by-offset").ensure_exists()
    write_to_archive(ARCHIVE, at, [record(0), record(1)], topic_id="one")
    # Late records of the closed hour.
    write_to_archive(ARCHIVE, at, [record(2), record(3)], topic_id="one", close=False)
    archived, cache = ArchivedTopic(output_of(ARCHIVE), "events"), tmp_path / "cache"
    cache.mkdir()
    for start, end in ((0, 4), (0, 1), (1, 3), (3, 4)):
        folder = tmp_path / f"{start}-{end}"
        folder.mkdir()
        paths = archived.fetch({0: start}, {0: end}, folder, cache)
        records = pa.concat_tables([pq.read_table(path) for path in paths]).sort_by("offset")
        assert records["offset"].to_pylist() == list(range(start, end))
