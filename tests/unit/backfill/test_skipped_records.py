"""What a backfill makes of documents, and what it leaves out."""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bson
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bson import Decimal128, MinKey, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidBSON

from penstock.archive import records
from penstock.archive.state import Span
from penstock.backfill import transform
from penstock.backfill.job import EPOCH, BackfillJob, BackfillMarker, epoch_ms
from penstock.backfill.mongodb_source import to_record
from penstock.backfill.skipped_records import SkippedRecords
from penstock.streams import Archive, Backfill, RowsQuery, Topic, TopicOutput

AT = datetime(2026, 1, 1, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_documents_keep_what_they_say() -> None:
    at = datetime(2026, 1, 1, 10, 0, 0, 1_000, tzinfo=UTC)
    given = {
        "_id": bson.ObjectId("0" * 24), "whole": 5.0, "part": 5.5, "text": "1700000000000",
        "decimal": Decimal128("7.0"), "other": Decimal128("7.0"), "at": at,
        "late": DatetimeMS(253_402_300_800_000), "bytes": b"\x01",
        "stamp": Timestamp(5, 6), "like": Regex("^a", "i"), "least": MinKey(), "nan": [float("nan"), float("-inf")],
        "far": Decimal128("1E+6000"), "words": "1e3",
    }  # fmt: skip
    integers = ("whole", "part", "text", "decimal", "stamp", "far", "words", "not there")
    key, value = to_record(bson.encode(given), integers)
    assert key == b"0" * 24
    assert orjson.loads(value) == {
        "_id": "0" * 24, "whole": 5, "part": 5.5, "text": 1_700_000_000_000, "decimal": 7, "other": "7.0",
        "at": 1_767_261_600_001, "late": 253_402_300_800_000, "bytes": "01",
        "stamp": {"$timestamp": {"t": 5, "i": 6}}, "like": {"$regularExpression": {"pattern": "^a", "options": "i"}},
        "least": {"$minKey": 1}, "nan": ["NaN", "-Infinity"], "far": "1E+6000", "words": "1e3",
    }  # fmt: skip
    with pytest.raises(InvalidBSON):
        to_record(bson.encode({"_id": 1, "text": "??"}).replace(b"??", b"\xff\xfe"), ())
    # A float of seconds would lose a millisecond of every hundred and seventieth.
    odd = [EPOCH + timedelta(milliseconds=n * 977 + 1_700_000_000_000) for n in range(2000)]
    assert [epoch_ms(at) for at in odd] == [n * 977 + 1_700_000_000_000 for n in range(2000)]


def test_records_that_do_not_fit_are_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also by a run that finds the rows made already."""
    given = [
        {"topic": "t", "partition": 0, "offset": n, "key": None, "value": value, "event_time": AT}
        for n, value in enumerate((b'{"who":"a","n":1}', b'{"who":"b","n":1.5}', b"none", b'{"who":"c","n":2}', None))
    ]
    pq.write_table(pa.Table.from_pylist(given, records.SCHEMA), source := tmp_path / "source.parquet")
    fields = "who STRING NOT NULL, n BIGINT NOT NULL"
    made_of = RowsQuery("timestamp_millis(n)", "SELECT who, n FROM records", schema=fields)
    output = TopicOutput(Topic("to"), key="who", value="n")
    job = BackfillJob(
        Backfill("sums", Archive("kept", Topic("t"), bucket="lake"), output, rows=made_of), AT, AT + HOUR, "to"
    )
    plan = BackfillMarker({"t/0": Span(5, 0, 4, 0)}, {}, {}, "", {}, 0)
    for _ in range(2):
        assert transform.count_rows(transform.make_rows(job, [source], plan, tmp_path, lambda *_: iter(()))) == 2
        found = SkippedRecords.load(tmp_path / transform.SKIPPED_FILE)
        assert found.count == 3
        assert found.summary.startswith(
            "; 3 records of the source are left out: t[0]@1: field n is no bigint: 1.5; t[0]@2: "
        )
    assert caplog.text.count("is left out") == 3


def test_what_a_recompute_leaves_out_is_what_it_returns() -> None:
    def recompute() -> Generator[pa.Table, None, tuple[int, str]]:
        yield pa.table({"key": [b"k"], "value": [b"v"]})
        return 7, "field n is missing or null"

    given = transform._RecomputedTables(recompute())
    assert len(list(given)) == 1
    assert (
        given.skipped_records.summary
        == "; 7 records of the source are left out: the first of them: field n is missing or null; ..."
    )
    none = transform._RecomputedTables(iter(()))
    assert (list(none), none.skipped_records.summary) == ([], "")
