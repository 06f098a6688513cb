"""What a fold's state is made anew of, and why it cannot be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from penstock.codec.heartbeat import HEARTBEAT_KEY, HeartbeatSigner
from penstock.engine.checkpoint.layout import RESET_FILE
from penstock.engine.operations import rebuild
from penstock.engine.operations.reset import Reset
from penstock.engine.state import state_part
from penstock.engine.state.fold import FoldContext
from penstock.engine.state.restore_query import RECORD_COLUMNS, RestoreQuery, UnreadableOutput, check_unique_keys
from penstock.engine.state.restore_rules import restorable_fold, restore_query_of
from penstock.errors import BrokerError, DeclarationError, PenstockError
from penstock.model.output import NO_COMMIT, CommitMarker
from penstock.streams import Fold, Input, KeyedState, Stream, Topic, TopicOutput
from penstock.tables import topic_snapshot

PAID = Topic("paid")
TOTALS = Topic("totals", compacted=True)
SUMS = Fold(
    name="sums",
    key=("who",),
    state_schema="total BIGINT, seen ARRAY<STRUCT<at: BIGINT>>",
    update_sql="FROM state",
    emit_sql="FROM folded",
    output_schema="who STRING, total BIGINT, seen ARRAY<STRUCT<at: BIGINT>>, note STRING",
    restore_sql="SELECT who, total, seen FROM output",
)
SEEN = ArrayType(StructType().add("at", LongType()))
KEY = StructType().add("who", StringType())
ROWS = StructType().add("who", StringType()).add("total", LongType()).add("seen", SEEN).add("note", StringType())
OUTPUT = TopicOutput(TOTALS, key="who", value=("who", "total", "seen", "note"))
SIGNER = HeartbeatSigner(b"secret")


def stream(**changes: Any) -> Stream:
    made = Stream(
        name="sums", app="a", inputs={"paid": Input(PAID, schema="at BIGINT", event_time="timestamp_millis(at)")},
        transform=lambda paid: paid, output=OUTPUT, output_mode=KeyedState(),
    )  # fmt: skip
    return replace(made, **changes)


def made(*folds: Fold, **changes: Any) -> RestoreQuery:
    place = FoldContext(False, {f.name: f for f in folds}, {f.name: KEY for f in folds})
    found = restore_query_of(stream(**changes), cast(Any, SimpleNamespace(schema=ROWS)), place)
    return replace(found, signer=SIGNER)


Given = tuple[str | bytes, str | bytes | None, int, int]


def sent(*given: Given) -> pa.Table:
    """key, value, partition, offset; the later one here has the later time."""
    rows: Sequence[Mapping[str, Any]] = [
        {"key": _bytes(k), "value": _bytes(v), "partition": p, "offset": o, "timestamp": n}
        for n, (k, v, p, o) in enumerate(given)
    ]
    return pa.Table.from_pylist(list(rows), pa.schema([pa.field(name, kind) for name, kind in RECORD_COLUMNS.items()]))


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def value(who: str, total: object, **more: object) -> str:
    return json.dumps({"who": who, "total": total, "seen": None, "note": None} | more)


def test_the_newest_record_of_each_key_counts() -> None:
    beat = SIGNER.value("totals", 0, 1_700_000_000_000)
    table = sent(
        ("ann", value("ann", 3, seen=[{"at": 5}, {"at": None}]), 0, 7),
        ("ann", value("ann", 1), 0, 4),
        ("bob", value("bob", 1), 1, 1),
        ("bob", None, 1, 2),
        # Its topic was widened in between.
        ("cy", value("cy", 9), 0, 90),
        ("cy", value("cy", None), 2, 1),
        (HEARTBEAT_KEY, beat, 0, 91),
    )
    # What `restore_sql` does not read may be missing.
    table = pa.concat_tables([table, sent(("dan", '{"who": "dan", "seen": [], "total": -1}', 0, 8))])
    found = made(SUMS).state(table)
    assert sorted(found.to_pylist(), key=lambda row: row["who"]) == [
        {"who": "ann", "total": 3, "seen": [{"at": 5}, {"at": None}]},
        {"who": "cy", "total": None, "seen": None},
        {"who": "dan", "total": -1, "seen": []},
    ]
    plain = replace(SUMS, state_schema="total BIGINT", restore_sql="SELECT who, total FROM output WHERE total > 0")
    by_text = made(plain, output=TopicOutput(TOTALS, key="who", value="total"))
    assert by_text.state(sent(("ann", "5", 0, 1), ("bob", "-5", 0, 2))).to_pylist() == [{"who": "ann", "total": 5}]
    with pytest.raises(UnreadableOutput, match=r"totals\[0\]@2: column total of its value is no bigint: 5.5"):
        by_text.state(sent(("ann", "5", 0, 1), ("bob", "5.5", 0, 2)))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("rubbish", "its value is no JSON object: rubbish"),
        (b"\xff", "its value is no JSON object: not valid UTF-8"),
        (value("ann", "x"), "column total of its value is no bigint: "),
        (value("ann", 1, seen=[{"at": "x"}]), "column seen of its value is no array<struct<at:bigint>>: "),
        ('{"who": "ann", "seen": null}', "its value has no column total: "),
        (SIGNER.value("other", 0, 1), "its value has no column who: "),
    ],
)
def test_a_value_that_is_none_is_named(bad: str | bytes, why: str) -> None:
    with pytest.raises(UnreadableOutput) as told:
        made(SUMS).state(sent(("bob", value("bob", 1), 0, 1), ("ann", bad, 3, 17), ("cy", value("cy", 1), 0, 2)))
    assert str(told.value).startswith(f"totals[3]@17: {why}")


def refused(*folds: Fold, **changes: Any) -> str:
    with pytest.raises(PenstockError) as told:
        made(*folds, **changes)
    assert "streams reset sums --to" in str(told.value) or "the restore query" in str(told.value)
    return str(told.value)


def test_what_cannot_be_read_back_is_refused() -> None:
    assert "it has no fold; got: its state is Spark's own" in refused()
    assert "does not say how its topics hold it" in refused(replace(SUMS, restore_sql=""))
    assert "several folds" in refused(SUMS, replace(SUMS, name="other"))
    loose = TopicOutput(Topic("totals"), key="who", value=("who", "total", "seen"))
    assert "one output that is compacted; got: none of totals is" in refused(SUMS, output=loose)
    bare = TopicOutput(TOTALS, key="who", value="seen")
    assert "written as text" in refused(replace(SUMS, restore_sql="SELECT seen FROM output"), output=bare)
    assert "refused by DuckDB" in refused(replace(SUMS, restore_sql="SELECT nothing FROM output"))
    assert "other columns" in refused(replace(SUMS, restore_sql="SELECT who, total FROM output"))


def test_a_key_comes_once() -> None:
    rows = pa.table({"_hash": [1, 1, 1, 2], "who": ["ann", "bob", "cy", "dan"]})
    assert list(check_unique_keys([rows.slice(0, 1), rows.slice(1)], ["who"])) == [rows.slice(0, 1), rows.slice(1)]
    with pytest.raises(UnreadableOutput, match="two rows of the key bob"):
        list(check_unique_keys([rows.slice(0, 2), rows.slice(1)], ["who"]))
    with pytest.raises(UnreadableOutput, match="who is NULL"):
        list(check_unique_keys([pa.table({"_hash": [1], "who": pa.array([None], pa.string())})], ["who"]))


def plan(topic: str = "paid") -> str:
    return f'v1\n{{"batchWatermarkMs": 5, "batchTimestampMs": 9}}\n{{"{topic}": {{"0": 7}}}}'


def test_it_goes_on_only_behind_a_mark_that_says_where() -> None:
    def why(mark: CommitMarker) -> str:
        with pytest.raises(PenstockError) as told:
            rebuild._last_plan(stream(), mark)
        return str(told.value)

    assert "has written nothing" in why(NO_COMMIT)
    assert "does not say from where" in why(CommitMarker("q", 3, {"paid": {0: 7}}))
    assert "does not say from where" in why(CommitMarker("q", 3, {}, plans={3: plan()}))
    assert "other inputs" in why(CommitMarker("q", 0, {}, plans={0: plan("other")}))
    assert rebuild._last_plan(stream(), CommitMarker("q", 1, {}, plans={0: plan(), 1: plan()})).ends == {"paid": {0: 7}}


def test_an_output_that_lacks_keys_is_not_taken_for_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "admin", lambda _: None)
    monkeypatch.setattr(rebuild, "partition_counts", lambda *_: {"totals": 1})
    monkeypatch.setattr(rebuild, "topic_config", lambda *_: "compact,delete")
    with pytest.raises(PenstockError, match="may lack keys"):
        rebuild._output_ends("totals", "b")
    with pytest.raises(PenstockError, match="is not there"):
        rebuild._output_ends("gone", "b")


def test_nobody_else_rebuilds_and_no_reset_is_lost(tmp_path: Path) -> None:
    home = tmp_path / "sums"
    with rebuild._locked_folder("sums", home) as folder:
        (folder / "part").mkdir()
        with pytest.raises(PenstockError, match="already"), rebuild._locked_folder("sums", home):
            pass
    assert not folder.exists()
    rebuild._no_reset_waits("sums", home)
    waiting = tmp_path / "sums.reset" / RESET_FILE
    waiting.parent.mkdir()
    for reset, waits in ((Reset({}), True), (Reset({}, rebuilt=True), False)):
        waiting.write_text(reset.text())
        if waits:
            with pytest.raises(PenstockError, match="was reset"):
                rebuild._no_reset_waits("sums", home)
        else:
            rebuild._no_reset_waits("sums", home)


def test_a_part_that_is_laid_is_found(tmp_path: Path) -> None:
    kinds: dict[str, pa.DataType] = {"_hash": pa.int64(), "who": pa.string()}
    layout = pa.schema(kinds)
    tables = [pa.table({"_hash": [n, n + 1], "who": ["a", "b"]}, layout) for n in (-5, 7)]
    laid = state_part.write_part(tmp_path / "0", layout, tables)
    assert laid.keys == 4

    found = state_part.StatePart(tmp_path / "0", layout, laid).find(np.array([-5, 8], np.int64))
    assert sorted(found.to_pylist(), key=lambda row: row["_hash"]) == [
        {"_hash": -5, "who": "a"},
        {"_hash": 8, "who": "b"},
    ]


@pytest.mark.processes
def test_a_state_is_made_of_inputs_only_where_nothing_would_be_told_twice() -> None:
    told = replace(SUMS, restore_sql="", input_retention=timedelta(hours=4))
    place = FoldContext(False, {"sums": told}, {"sums": KEY})
    assert restorable_fold(stream(), place) is told
    assert place.can_rebuild
    with pytest.raises(DeclarationError, match="would be emitted again"):
        replace(told, state_schema="due BIGINT", timer_field="due")
    with pytest.raises(DeclarationError, match="not a valid duration"):
        replace(told, input_retention=timedelta(hours=-1))


def test_an_output_may_have_columns_named_as_those_of_records() -> None:
    fold = replace(
        SUMS,
        key=("key",),
        state_schema="timestamp BIGINT, value BIGINT",
        restore_sql="SELECT key, timestamp, value FROM output",
    )
    rows = StructType().add("key", StringType()).add("timestamp", LongType()).add("value", LongType())
    output = TopicOutput(TOTALS, key="key", value=("timestamp", "value"))
    place = FoldContext(False, {"sums": fold}, {"sums": StructType().add("key", StringType())})
    made = restore_query_of(stream(output=output), cast(Any, SimpleNamespace(schema=rows)), place)
    table = sent(("ann", '{"timestamp": 5, "value": 3}', 0, 7))
    assert made.state(table).to_pylist() == [{"key": "ann", "timestamp": 5, "value": 3}]


def test_an_output_that_is_read_for_longer_than_its_tombstones_are_kept_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key may have been removed meanwhile without a trace, and its state would be there for ever."""
    clock = SimpleNamespace(at=1_700_000_000.0, takes=61)
    clock.time = lambda: clock.at

    def laid(*_: Any) -> tuple[dict[str, Any], int]:
        clock.at += clock.takes
        return {}, 0

    for where in (rebuild, topic_snapshot):
        monkeypatch.setattr(where, "time", clock)
    monkeypatch.setattr(topic_snapshot, "topic_config", lambda *_: "60000")
    monkeypatch.setattr(rebuild, "_output_ends", lambda *_: {("totals", 0): 5})
    monkeypatch.setattr(rebuild, "first_offsets", lambda *_: {("totals", 0): 1})
    monkeypatch.setattr(rebuild, "admin", lambda _: None)
    monkeypatch.setattr(rebuild, "_write_parts", laid)
    monkeypatch.setattr(
        "penstock.engine.query.source.topic_records", lambda *_: SimpleNamespace(select=lambda *_: None)
    )
    given = cast("tuple[Any, ...]", (None, None, "", SimpleNamespace(topic="totals"), None, None))
    with pytest.raises(BrokerError, match=r"longer than its tombstones are kept.*rebuild it again"):
        rebuild._parts_from_output(*given)
    clock.takes = 59
    assert rebuild._parts_from_output(*given) == ({}, 4)
