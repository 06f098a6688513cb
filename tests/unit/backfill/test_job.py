"""What a run of a backfill takes over from the run before it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from jobs.quality.archive import COUNTS
from penstock.backfill.job import BackfillJob
from penstock.streams import Archive, Backfill, IcebergTable, RowsQuery, Topic, TopicOutput

AT = datetime(2026, 1, 1, 10, tzinfo=UTC)
ARCHIVE = Archive("kept", Topic("t", schema="id BIGINT"), bucket="lake")
OUTPUT = TopicOutput(Topic("to"), key="id", value="n")
BY_QUERY = RowsQuery("timestamp_millis(id)", "SELECT id, 1 AS n FROM records")
OF_TABLE = Backfill("again", IcebergTable("shop.orders"), OUTPUT, rows=BY_QUERY)


def test_rows_of_another_time_are_compared_with_those_written_last() -> None:
    for backfill, is_shared in (
        (Backfill("again", ARCHIVE, OUTPUT, rows=BY_QUERY), True),
        (OF_TABLE, True),
        (COUNTS, True),
        # A record that is written unchanged replaces none, and none is to be written twice.
        (Backfill("again", ARCHIVE, Topic("to")), False),
    ):
        now = BackfillJob(backfill, AT - timedelta(hours=1), AT, "to")
        then = replace(now, as_of=AT)
        assert (now.marker_key == then.marker_key) == (now.short_hash == then.short_hash) == is_shared
        assert now.status_key != then.status_key
