"""What a run of a backfill takes over from the run before it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from jobs.quality.archive import COUNTS
from penstock.backfill.job import BackfillJob, BackfillMarker
from penstock.backfill.progress import BackfillProgress
from penstock.backfill.run import _Run
from penstock.backfill.skipped_records import SkippedRecords
from penstock.backfill.source import OnFile
from penstock.streams import Archive, Backfill, IcebergTable, RowsQuery, Topic, TopicOutput

AT = datetime(2026, 1, 1, 10, tzinfo=UTC)
ARCHIVE = Archive("kept", Topic("t", schema="id BIGINT"), bucket="lake")
OUTPUT = TopicOutput(Topic("to"), key="id", value="n")
BY_QUERY = RowsQuery("timestamp_millis(id)", "SELECT id, 1 AS n FROM records")
OF_TABLE = Backfill("again", IcebergTable("shop.orders"), OUTPUT, rows=BY_QUERY)


class EmptySource:
    """A table without rows."""

    spans, ids = dict[str, object](), dict[str, str]()
    files = rows = 0
    skipped_records, empty_text = SkippedRecords(), ""

    def fetch(self, folder: Path, _on_file: OnFile) -> list[Path]:
        return [folder / "000000.parquet"]


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


def test_rows_of_a_run_that_was_killed_outlast_the_next_look_at_its_table(tmp_path: Path) -> None:
    job = BackfillJob(OF_TABLE, AT - timedelta(hours=1), AT, "to")
    folder, plan = tmp_path / job.short_hash, BackfillMarker({}, {}, {}, "", {}, 2, written=1, job=job.id)
    (folder / "files").mkdir(parents=True)
    for name, text in {"plan": plan.run, "rows.parquet": "rows", "files/000007.parquet": "of before"}.items():
        (folder / name).write_text(text)
    run = _Run(job, "", folder, BackfillProgress("", lambda _: None), dict, dict, lambda *_: iter(()))
    run._spans(EmptySource())  # type: ignore[arg-type]
    assert run._has_rows(plan)
    assert not list((folder / "files").iterdir())
