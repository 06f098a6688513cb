"""Parts of a backfill that need no server."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.metrics.archive import SUMMARIES
from jobs.quality.archive import COUNTS
from penstock.archive import records as archive_records
from penstock.archive.state import Span
from penstock.backfill import archive_source, progress, writer
from penstock.backfill import transform as rows
from penstock.backfill.job import BackfillJob, BackfillMarker
from penstock.backfill.preflight import TargetTopic, check_retention, check_watermark, row_extent
from penstock.backfill.progress import BackfillProgress, BackfillStatus
from penstock.backfill.reporter import control_reporter
from penstock.backfill.run import run
from penstock.backfill.stream_lag import reader_lag, stream_watermarks
from penstock.backfill.verify import RAW_SCHEMA, count_replaced
from penstock.catalog import build
from penstock.control import Control
from penstock.control.rows import ProgressRow
from penstock.errors import BackfillError, InputNotReady
from penstock.kafka.limits import ProducerRecord
from penstock.streams import Archive, Backfill, Input, Stateless, Stream, Topic, TopicOutput
from tests.support.wait import wait_until

AT = datetime(2026, 1, 1, 10, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RUN = "run"
# Rows of a run, in order: key and value, None for a tombstone.
GIVEN = [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("a", "3"), ("c", None)]


def written(path: Path, given: Sequence[tuple[str, str | None]]) -> Path:
    made = [
        {"topic": "t", "partition": 0, "offset": n, "key": key.encode(), "value": value and value.encode()}
        for n, (key, value) in enumerate(given)
    ]
    pq.write_table(pa.Table.from_pylist(made, archive_records.SCHEMA), path)
    return path


def topic(*held: int | tuple[int, str]) -> Iterator[pa.Table]:
    """What one partition holds: rows by number, which lie at twice that, and others' records, by offset and key."""
    found = list[tuple[Any, ...]]()
    for one in held:
        if isinstance(one, int):
            key, value = GIVEN[one]
            mark, at = f"{RUN}/t/0/{one}".encode(), 2 * one
            found.append((key.encode(), value and value.encode(), mark, at, 0))
        else:
            found.append((one[1].encode(), b"other", None, one[0], 0))
    yield pa.Table.from_pylist([dict(zip(RAW_SCHEMA.names, row, strict=True)) for row in found], RAW_SCHEMA)


@pytest.mark.parametrize(
    ("held", "gone"),
    [
        # As compaction leaves it, at once or later, when it has forgotten the tombstone too.
        ((1, 4, 5), 3),
        ((0, 1, 2, 4, 5), 1),
        ((1, 4), 4),
        # An older row of its key explains nothing, nor do other keys.
        ((0, 1, 2, 3, 5), None),
        ((0, 1, 3, 5), None),
        ((4, 5), None),
        # Somebody else's record does if it is newer: behind the row that is gone, or where that was.
        ((0, 1, 2, 3, 5, (11, "a")), 1),
        ((0, 1, 2, 3, 5, (9, "a")), 1),
        ((0, 1, 2, 3, 5, (5, "a")), None),
        ((0, 2, 3, 4, 5, (1, "b")), 1),
        ((0, 2, 3, 4, 5, (3, "b")), 1),
        (((-1, "b"), 0, 2, 3, 4, 5), None),
        # A tombstone that is gone while the value before it is there.
        ((1, 3, 4), None),
    ],
)
def test_what_explains_that_a_row_of_a_compacted_topic_is_gone(
    tmp_path: Path, held: Sequence[Any], gone: int | None
) -> None:
    assert count_replaced(RUN, written(tmp_path / "rows.parquet", GIVEN), topic(*held)) == gone


@pytest.mark.parametrize(("held", "gone"), [(("2",), 1), (("1", "2"), None), (("1",), None), (("2", "2"), None)])
def test_two_records_of_one_place_are_told_apart_by_their_content(
    tmp_path: Path, held: Sequence[str], gone: int | None
) -> None:
    """Of an archived topic that was made again: the second is the newer one of its key, the first may be gone."""
    both = [{"topic": "t", "partition": 0, "offset": 0, "key": b"a", "value": value} for value in (b"1", b"2")]
    pq.write_table(pa.Table.from_pylist(both, archive_records.SCHEMA), path := tmp_path / "rows.parquet")
    found = [(b"a", value.encode(), f"{RUN}/t/0/0".encode(), at, 0) for at, value in enumerate(held)]
    table = pa.Table.from_pylist([dict(zip(RAW_SCHEMA.names, row, strict=True)) for row in found], RAW_SCHEMA)
    assert count_replaced(RUN, path, iter([table])) == gone


def test_rows_are_held_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BATCH_BYTES", 10_000)
    sizes = [10, 20, 30_000, 10, *[2_000] * 30, 40_000, 5]
    path = written(tmp_path / "rows.parquet", [(str(n), "x" * size) for n, size in enumerate(sizes)])
    found = list(rows.read_rows(path, 3))
    assert [n for table in found for n in table["offset"].to_pylist()] == list(range(3, len(sizes)))
    assert all(table.nbytes <= 10_000 or table.num_rows == 1 for table in found)
    assert max(table.num_rows for table in found) > 1
    assert [table.num_rows for table in rows.read_rows(path, 3, 1)] == [1] * (len(sizes) - 3)


def test_records_go_with_their_own_headers_and_times_and_one_of_ours() -> None:
    own: list[Any] = [("a", b"1"), ("é", None), (writer.ROW_HEADER, b"of an earlier run"), ("a", b"2")]
    given: list[dict[str, Any]] = [
        {"key": b"left out", "headers": [("left", b"out")]},
        {"key": b"k", "value": b"v", "timestamp": AT, "headers": own},
        {"key": None, "value": b"x" * 2_000, "timestamp": AT - timedelta(days=40_000), "headers": None},
        {"key": b"k", "value": None, "timestamp": None, "headers": []},
        {"key": b"k", "value": b"", "timestamp": datetime(1970, 1, 1, tzinfo=UTC), "headers": []},
    ]
    rows = pa.Table.from_pylist(
        [{"topic": "t", "partition": 3, "offset": n, **row} for n, row in enumerate(given)], archive_records.SCHEMA
    ).slice(1)
    job = BackfillJob(Backfill("again", Archive("kept", Topic("t"), bucket="lake"), Topic("to")), None, AT, "to")
    batch = writer._producer_batch(job, RUN, rows)
    marks = [(writer.ROW_HEADER, f"run/t/3/{n}".encode()) for n in (1, 2, 3, 4)]
    now = int(AT.timestamp() * 1000)
    expected = [
        ProducerRecord("to", b"k", b"v", (*own[:2], own[3], marks[0]), timestamp=now),
        ProducerRecord("to", None, b"x" * 2_000, (marks[1],), timestamp=0),
        ProducerRecord("to", b"k", None, (marks[2],), timestamp=0),
        # A client takes 0 for now.
        ProducerRecord("to", b"k", b"", (marks[3],), timestamp=1),
    ]
    assert list(batch.records()) == expected
    assert list(batch.records()) == expected
    sizes = [message.size for message in expected]
    assert batch.sizes.tolist()[1:] == sizes[1:]
    assert batch.sizes[0] >= sizes[0]
    assert list(batch.larger_than(sizes[1] - 1)) == expected[1:2]
    assert not list(batch.larger_than(sizes[1]))
    plain = writer._producer_batch(replace(job, timestamps="now"), RUN, rows.slice(1, 1).set_column(
        rows.schema.get_field_index("headers"), "headers", pa.nulls(1, archive_records.SCHEMA.field("headers").type)
    ))  # fmt: skip
    assert list(plain.records()) == expected[1:2]


def test_no_record_comes_before_an_earlier_one_of_its_key(tmp_path: Path) -> None:
    """In order of event time where that does not turn a key's own order."""
    late = [("a", 5), ("b", 3), ("a", 1), (None, 4), (None, 0), ("b", 9), ("a", 6)]
    given = [
        {
            "topic": "t",
            "partition": 0,
            "offset": n,
            "key": key and key.encode(),
            "event_time": AT + timedelta(minutes=m),
        }
        for n, (key, m) in enumerate(late)
    ]
    pq.write_table(pa.Table.from_pylist(given, archive_records.SCHEMA), source := tmp_path / "source.parquet")
    backfill = Backfill("again", Archive("kept", Topic("t"), bucket="lake"), Topic("to"))
    plan = BackfillMarker({"t/0": Span(7, 0, 6, 0)}, {}, {}, "", {}, 0)
    made = rows.make_rows(
        BackfillJob(backfill, AT, AT + timedelta(hours=1), "to"), [source], plan, tmp_path, lambda *_: iter(())
    )
    assert [n for table in rows.read_rows(made) for n in table["offset"].to_pylist()] == [4, 1, 3, 0, 2, 6, 5]


def test_records_of_two_topics_of_one_name_are_each_written_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"topic": "t", "partition": 0, "offset": 7, "key": b"k", "event_time": AT}
    pq.write_table(
        pa.Table.from_pylist([{**row, "value": v} for v in (b"new", b"old")], archive_records.SCHEMA),
        source := tmp_path / "of.parquet",
    )
    job = BackfillJob(
        Backfill("again", Archive("kept", Topic("t"), bucket="lake"), Topic("to")), AT, AT + timedelta(hours=1), "to"
    )
    made = rows.make_rows(
        job, [source], BackfillMarker({"t/0": Span(2, 7, 7, 0)}, {}, {}, "", {}, 0), tmp_path, lambda *_: iter(())
    )
    assert {value for table in rows.read_rows(made) for value in table["value"].to_pylist()} == {b"new", b"old"}
    assert rows.count_rows(made) == 2
    assert "2 records have the offset of another one" in caplog.text
    empty = tmp_path / "empty"
    empty.mkdir()
    assert (
        rows.count_rows(rows.make_rows(job, [], BackfillMarker({}, {}, {}, "", {}, 0), empty, lambda *_: iter(()))) == 0
    )


DAY = 86_400_000
BY_BROKER = {"message.timestamp.type": "LogAppendTime"}


@pytest.mark.parametrize(
    ("settings", "age", "said"),
    [
        # What the broker goes by is the record's own timestamp.
        ({"cleanup.policy": "delete", "retention.ms": str(7 * DAY)}, 8 * DAY, "would delete records as old as these"),
        ({"cleanup.policy": "compact,delete", "retention.ms": str(7 * DAY)}, 7 * DAY - 60_000, "or within the hour"),
        ({"cleanup.policy": "delete", "retention.ms": str(7 * DAY)}, 6 * DAY, ""),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, 8 * DAY, ""),
        ({"cleanup.policy": "compact", "retention.ms": str(7 * DAY)}, 8 * DAY, ""),
        (
            {"cleanup.policy": "delete", "retention.ms": str(DAY), "message.timestamp.type": "LogAppendTime"},
            8 * DAY,
            "",
        ),
        (
            {"cleanup.policy": "delete", "retention.ms": "1", "message.timestamp.type": "LogAppendTime"},
            8 * DAY,
            "any record",
        ),
        ({"cleanup.policy": "delete", "retention.ms": "3599999"}, 0, "would delete any record within the hour"),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "500"}, 0, "delete some of the rows"),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "5000"}, 0, ""),
        ({"cleanup.policy": "compact", "message.timestamp.before.max.ms": str(DAY)}, 2 * DAY, "no records as old"),
        ({"cleanup.policy": "compact", "message.timestamp.after.max.ms": str(DAY)}, -2 * DAY, "so far ahead"),
    ],
)
def test_a_target_that_would_not_keep_what_it_is_given_is_refused(
    tmp_path: Path, settings: dict[str, str], age: int, said: str
) -> None:
    stamped = datetime.fromtimestamp(time.time() - age / 1000, UTC)
    row = {"topic": "t", "partition": 0, "key": b"k", "value": b"x" * 400, "event_time": AT}
    given = [{**row, "offset": n, "timestamp": stamped if n else EPOCH, "headers": [("h", None)]} for n in (0, 1, 2)]
    pq.write_table(pa.Table.from_pylist(given, archive_records.SCHEMA), path := tmp_path / "rows.parquet")
    job = BackfillJob(Backfill("again", Archive("kept", Topic("t"), bucket="lake"), Topic("to")), None, AT, "to")
    target = TargetTopic(compacted=False, id="", settings=settings)
    with pytest.raises(BackfillError, match=said) if said else nullcontext():
        check_retention(job, target, row_extent(path, 1, stamped=True))
    # Those that get the time of now stay, unless they are too many, or no record stays.
    with pytest.raises(BackfillError) if "some" in said or "any" in said else nullcontext():
        check_retention(job, target, row_extent(path, 1, stamped=False))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionResetError(104, "reset"), "InputNotReady: .*a connection failed"),
        (TimeoutError("timed out"), "InputNotReady: .*a connection failed"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "InputNotReady: .*a connection failed"),
        (OSError(errno.ENOSPC, "No space left on device"), "BackfillError: .*reading or writing a file failed"),
    ],
)
def test_a_lost_connection_is_not_taken_for_a_full_disk(home: Path, error: OSError, said: str) -> None:
    assert home.exists()
    job = BackfillJob(Backfill("again", Archive("kept", Topic("t"), bucket="lake"), Topic("to")), None, AT, "to")
    told: list[BackfillStatus] = []

    def fails() -> Mapping[str, int | None]:
        raise error

    again = replace(job, backfill=replace(SUMMARIES, name="again"), begin=AT - timedelta(hours=1))
    with pytest.raises(BackfillError) as e:
        run(again, "nowhere:1", report=told.append, watermarks=fails, recompute=lambda *_: iter(()))
    assert re.match(said, f"{type(e.value).__name__}: {e.value}")
    assert told[-1].state == "failed"


def test_the_hour_behind_a_time() -> None:
    hour, last = timedelta(hours=1), datetime(9999, 12, 31, 23, tzinfo=UTC)
    assert archive_source._first_whole_hour(AT.replace(minute=0, second=0, microsecond=0), timedelta(0)).minute == 0
    for at in (datetime(2026, 1, 1, 10, 0, 1, tzinfo=UTC), datetime(2026, 1, 1, 11, tzinfo=UTC)):
        assert archive_source._first_whole_hour(at, hour) == datetime(2026, 1, 1, 12, tzinfo=UTC)
    for at in (last, last - hour, last + (hour - timedelta.resolution)):
        assert archive_source._first_whole_hour(at, timedelta(days=1)) == last


def test_it_says_that_it_lives_while_there_are_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL", 0.01)
    monkeypatch.setattr(progress, "REPORT_INTERVAL", 0.0)
    told: list[BackfillStatus] = []
    one = BackfillProgress("a run", told.append)
    with one.keepalive("the rows are made"):
        wait_until(lambda: [f for f in told if f.why.startswith("the rows are made, for")])
    count = len(told)
    one.update(state="done")
    assert [f.state for f in told[count:]] == ["done"]


def test_what_waits_comes_no_nearer_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REPORT_INTERVAL", 0.0)
    told: list[BackfillStatus] = []
    at = iter(range(100))
    one = BackfillProgress("a run", told.append, clock=lambda: float(next(at)))
    one.update(rows=1_000, rows_done=0)
    one.update(rows_done=100)
    one.update(state="waiting", why="for a reader")
    one.update(state="running", rows_done=200)
    assert [(f.rate > 0, f.seconds_left is None) for f in told[1:]] == [(True, False), (False, True), (True, False)]


def test_a_dry_run_has_a_row_of_its_own(control: Control) -> None:
    job = BackfillJob(SUMMARIES, AT, AT + timedelta(hours=1), SUMMARIES.target_topic)
    control_reporter(control, job, "me")(BackfillStatus("running", rows=10, rows_done=4))
    control_reporter(control, replace(job, dry_run=True), "me")(BackfillStatus("done", rows=10))
    found = {row.run: row for row in control.backfill_runs()}
    assert {run: (row.state, row.dry, row.rows_done) for run, row in found.items()} == {
        job.id: ("running", False, 4),
        f"{job.id} (dry)": ("done", True, 0),
    }


IN, OUT = Topic("in"), Topic("out")
READER = Stream(
    name="reader", app="tests", inputs={"of": Input(IN)}, transform=lambda of: of, output_mode=Stateless(),
    output=TopicOutput(OUT, value="value"),
)  # fmt: skip


@pytest.mark.parametrize(("state", "waited"), [("running", True), ("blocked", False)])
def test_a_blocked_reader_is_not_waited_for(
    control: Control, caplog: pytest.LogCaptureFixture, state: str, *, waited: bool
) -> None:
    catalog = build([READER])
    control.sync(catalog)
    control.report([ProgressRow("reader", "tests", "1", state=state, behind_ms=90_000)], keep=False)
    ask = reader_lag(catalog, "in", control)
    late = [*ask().values(), *ask().values()]
    assert bool(late) == waited
    assert all(s >= 90 for s in late)
    assert caplog.text.count("stream reader is blocked") == (0 if waited else 1)


@pytest.mark.parametrize(
    ("at", "said"),
    [(timedelta(0), ""), (-timedelta(seconds=1), "its watermark is 2026-01-01T09:59:59"), (None, "is not known")],
)
def test_windows_are_settled_when_their_stream_has_passed_them(
    control: Control, at: timedelta | None, said: str
) -> None:
    job = BackfillJob(COUNTS, AT - timedelta(hours=1), AT, COUNTS.target_topic)
    # One that never ran writes nothing over.
    check_watermark(job, stream_watermarks(control))
    stream = job.streams[-1]
    control.sync(build([stream]))
    now = None if at is None else int((AT + at).timestamp() * 1000)
    control.report([ProgressRow(stream.name, stream.app, "1", watermark=now)], keep=False)
    if said:
        with pytest.raises(InputNotReady, match=f"{said}.*--unclosed"):
            check_watermark(job, stream_watermarks(control))
    else:
        check_watermark(job, stream_watermarks(control))
    check_watermark(replace(job, unclosed=True), stream_watermarks(control))


def test_nobody_knows_how_far_a_stream_is(tmp_path: Path) -> None:
    job = BackfillJob(COUNTS, AT - timedelta(hours=1), AT, COUNTS.target_topic)
    nowhere = Control(f"sqlite:///{tmp_path}/not/there.db")
    with pytest.raises(InputNotReady, match="it is unknown"):
        check_watermark(job, stream_watermarks(nowhere))
    nowhere.engine.dispose()


ENDS = """
import os, signal, sys, threading
from pathlib import Path
from penstock.backfill.transform import open_duckdb

signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
for _ in range(20):
    try:
        with open_duckdb(Path(sys.argv[1])) as connection:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
            connection.execute("SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b")
    except RuntimeError as e:
        print(e)
"""


@pytest.mark.processes
def test_a_signal_ends_a_query_of_hours_whichever_thread_works(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "Query interrupted\n" * 20, ran.stderr


def test_an_invalid_marker_is_an_error_with_a_hint() -> None:
    marker = BackfillMarker({"t/0": Span(7, 0, 6, 0)}, {}, {}, "code", {0: 3}, 7)
    assert BackfillMarker.read(marker.value()) == marker
    assert BackfillMarker.read(None) is None
    for data in (b"", b"[]", b"{}", b'{"source_spans": 1}'):
        with pytest.raises(BackfillError, match=r"a commit marker .* cannot be read; got: .*; hint: .*--again"):
            BackfillMarker.read(data)
