"""What a run of a backfill takes over from the run before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.quality.archive import COUNTS
from penstock.archive import records
from penstock.archive.state import Span
from penstock.backfill.job import BackfillJob, BackfillMarker
from penstock.backfill.progress import BackfillProgress
from penstock.backfill.run import _Run
from penstock.backfill.skipped_records import SkippedRecords
from penstock.backfill.source import OnFile, write_file
from penstock.errors import BackfillError
from penstock.streams import Archive, Backfill, IcebergTable, RowsQuery, Topic, TopicOutput

AT = datetime(2026, 1, 1, 10, tzinfo=UTC)
ARCHIVE = Archive("kept", Topic("t", schema="id BIGINT"), bucket="lake")
OUTPUT = TopicOutput(Topic("to"), key="id", value="n")
BY_QUERY = RowsQuery("timestamp_millis(id)", "SELECT id, 1 AS n FROM records")
OF_TABLE = Backfill("again", IcebergTable("shop.orders"), OUTPUT, rows=BY_QUERY)


class EmptySource:
    """A table without rows."""

    files = rows = 0
    skipped_records, empty_text = SkippedRecords(), ""

    def __init__(self) -> None:
        self.spans: Mapping[str, Span] = {}
        self.ids: Mapping[str, str] = {}

    def fetch(self, folder: Path, _on_file: OnFile) -> list[Path]:
        return [folder / "000000.parquet"]


class ArchivedOffsets(EmptySource):
    """Records of a partition by their offsets."""

    def __init__(self, *offsets: int) -> None:
        given = [{"topic": "t", "partition": 0, "offset": n, "value": b"v", "event_time": AT} for n in offsets]
        self._rows = pa.Table.from_pylist(given, records.SCHEMA)
        self.spans, self.ids = records.spans_of(self._rows), {"t": "one"}

    def fetch(self, folder: Path, _on_file: OnFile) -> list[Path]:
        write_file(folder / "0.parquet", self._rows)
        return [folder / "0.parquet"]


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
    run._spans(EmptySource())
    assert run._has_rows(plan)
    assert not list((folder / "files").iterdir())


def run_of(folder: Path, *, again: str = "") -> _Run:
    """A run that copies records."""
    job = BackfillJob(Backfill("again", ARCHIVE, Topic("to")), AT, AT + timedelta(hours=1), "to", again=again)
    return _Run(job, "", folder, BackfillProgress("", lambda _: None), dict, dict, lambda *_: iter(()))


@pytest.mark.parametrize("added", [[2], [5, 8]], ids=["before all", "between"])
def test_earlier_records_that_the_archive_got_after_a_replay_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: list[int]
) -> None:
    """As by `take-over`: a replay writes what is behind the last record, and these would be left out."""
    monkeypatch.setattr(_Run, "_first", lambda _: {0: 0})
    before, now = ArchivedOffsets(4, 6, 7), ArchivedOffsets(*sorted([4, 6, 7, *added]))
    previous = BackfillMarker(before.spans, {}, before.ids, "", {}, 3, 3, verified=True)
    assert run_of(tmp_path / "same")._plan(before, previous) is None
    later = run_of(tmp_path / "later")._plan(ArchivedOffsets(4, 6, 7, 8), previous)
    assert later
    assert later.after_offsets == {"t/0": 8}
    with pytest.raises(BackfillError, match=r"has earlier records than .* got: 1 of t/0; .* --again"):
        run_of(tmp_path / "now")._plan(now, previous)
    assert run_of(tmp_path / "again", again="once more")._plan(now, previous)
