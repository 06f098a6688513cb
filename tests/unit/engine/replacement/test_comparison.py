"""Rows of two versions are compared by their files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.engine.replacement.comparison import STATE_FILE, OutputComparison
from penstock.engine.replacement.step_rows import EARLIER_STEP, SCHEMA, StepRows
from penstock.streams import F, Input, Stateless, Stream, Topic, TopicOutput

OUT = Topic("out")
STREAM = Stream(
    "compared", "tests", {"given": Input(Topic("given"))}, lambda given: given.select(F.col("value").alias("k")),
    TopicOutput(OUT, key="k", value="k"), Stateless(),
)  # fmt: skip
Rows = list[tuple[bytes | None, bytes | None]]


def compared(folder: Path, new: Rows, running: Rows) -> OutputComparison:
    """A comparison that has read these rows, all of them since both versions are compared live."""
    rows = StepRows(folder / "rows", STREAM)
    rows.write(0, {OUT.name: table(new)})
    files = folder / "running" / OUT.name / "0"
    files.mkdir(parents=True)
    written = table(running)
    written = written.append_column("partition", pa.array([0] * len(running), pa.int32()))
    written = written.append_column("offset", pa.array(range(len(running)), pa.int64()))
    pq.write_table(written, files / "part.parquet")
    state = {"next": {OUT.name: {"0": len(running)}}, "since": {OUT.name: {"0": 0}}, "first_step": 0, "live_step": 0}
    (folder / "running" / STATE_FILE).write_text(json.dumps(state))
    return OutputComparison(STREAM, rows, folder / "running", "no broker is asked")


def table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([{"key": key, "value": value} for key, value in rows], schema=SCHEMA)


def test_the_newest_rows_of_keys_are_compared(tmp_path: Path) -> None:
    made = compared(tmp_path, [(b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"c", b"5")], [(b"a", b"2"), (b"b", b"4")])
    found = made.compare()
    assert (found.equal, found.different, found.only_new, found.only_running) == (1, 1, 1, 0)
    [rows] = made.rows_to_write().values()
    assert sorted(rows.to_pylist(), key=lambda row: row["key"]) == [
        {"key": b"b", "value": b"3"}, {"key": b"c", "value": b"5"},
    ]  # fmt: skip


def test_rows_without_key_are_counted_and_not_written_again(tmp_path: Path) -> None:
    made = compared(tmp_path, [(None, b"1"), (None, b"1"), (None, None)], [(None, b"1"), (None, None), (None, b"2")])
    found = made.compare()
    assert (found.compared, found.equal, found.only_new, found.only_running) == (4, 2, 1, 1)
    assert made.rows_to_write() == {}


def test_a_row_from_before_counts_if_the_running_version_has_written_its_key(tmp_path: Path) -> None:
    """`a` was replaced and got no record since, `b` got one, `c` is as before, and `d` was not written at all."""
    made = compared(tmp_path, [(b"b", b"2")], [(b"a", b"9"), (b"b", b"9"), (b"c", b"3"), (b"e", b"5")])
    earlier: Rows = [(b"a", b"1"), (b"b", b"1"), (b"c", b"3"), (b"d", b"4")]
    StepRows(tmp_path / "rows", STREAM).write(EARLIER_STEP, {OUT.name: table(earlier)})
    found = made.compare()
    assert (found.equal, found.different, found.only_new, found.only_running) == (1, 2, 0, 1)
    [rows] = made.rows_to_write().values()
    assert sorted(row["key"] + row["value"] for row in rows.to_pylist()) == [b"a1", b"b2"]
    [rows] = made.rows_to_write(only_earlier=True).values()
    assert rows.to_pylist() == [{"key": b"a", "value": b"1"}]
    [running] = made.running_rows().values()
    assert sorted(row["key"] + row["value"] for row in running.to_pylist()) == [b"a9", b"b9", b"c3", b"e5"]
