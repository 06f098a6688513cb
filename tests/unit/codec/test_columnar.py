"""What is read of records, and what is said of those that are none; tests/support/json_model.py compares any text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa
import pytest
import sqlglot

from jobs.quality import validity
from jobs.quality.rules import EVERY, Rule
from penstock.codec.columnar import DecoderQueries, RecordDecoder
from penstock.codec.heartbeat import HEARTBEAT_KEY, HeartbeatSigner
from penstock.errors import DeclarationError
from penstock.streams import Combiner
from tests.support.record_batches import FAR, batch, run

MB = 1_000_000
AT = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH, MICRO = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
AT_MS = int(AT.timestamp()) * 1000
DDL = "id INT NOT NULL, s STRING, s2 STRUCT<a: INT NOT NULL>, at BIGINT"
ALL = RecordDecoder("t", "a test", DDL, "timestamp_millis(at)", None, True)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, "the record has no value"),
        (b"\xff", "not valid UTF-8"),
        (b"", "not valid JSON: "),
        (b'{"id":1,}', 'not valid JSON: {"id":1,}'),
        (b'{"id":NaN}', 'not valid JSON: {"id":NaN}'),
        (b'{"id":1}{"id":2}', 'not valid JSON: {"id":1}{"id":2}'),
        (b'{"id":1' + b" " * 90, 'not valid JSON: {"id":1' + " " * 53 + "…"),
        (b"[1]", "not a JSON object: [1]"),
        (b"null", "not a JSON object: null"),
        (b"{}", "field id is missing or null"),
        (b'{"id":null,"id":1}', "field id is missing or null"),
        (b'{"ID":1}', "field id is missing or null"),
        (b'{"id":1.0}', "field id is no int: 1.0"),
        (b'{"id":"1"}', "field id is no int: 1"),
        (b'{"id":2147483648}', "field id is no int: 2147483648"),
        (b'{"id":1e-7}', "field id is no int: 1e-7"),
        (b'{"id":1,"s2":{"a":null}}', 'field s2 is no struct<a:int>: {"a":null}'),
        (b'{"id":1,"s2":{"a":"' + b"x" * 90 + b'"}}', 'field s2 is no struct<a:int>: {"a":"' + "x" * 54),
        (b'{"id":1}', "no event time: timestamp_millis(at) gives none"),
        (b'{"id":1,"at":33333333333333333}', "no event time: timestamp_millis(at) gives none"),
        (b'{"id":1,"at":5000}', "the event time lies in the future: 1970-01-01 00:00:05"),
        (b'{"id":1,"at":4000}', None),
    ],
)
def test_reasons(given: bytes | None, reason: str | None) -> None:
    [row] = run(ALL, batch([given], horizon=4_999_999))
    assert (row["_bad"], row["_record"]["reason"]) == (reason is not None, reason)


WHOLE = RecordDecoder("t", "a test", DDL, "timestamp_millis(at)", None, True, whole_record=True, tombstones=True)


@pytest.mark.parametrize("event_time", ["timestamp_millis(at)", "now"])
@pytest.mark.parametrize("keep_records", [True, False])
def test_a_trace_context_is_handed_on_with_each_row(event_time: str, keep_records: bool) -> None:
    given = batch([b'{"id":1,"at":4000}', b"{}", b'{"id":2,"at":4000}'])
    contexts = pa.array(["a", "b", None], pa.string())
    given = pa.RecordBatch.from_arrays([*given.columns, contexts], [*given.schema.names, "trace_context"])
    rows = run(replace(ALL, event_time=event_time, keep_records=keep_records, trace=True), given)
    assert {(row["id"], row["_bad"], row["_trace_context"]) for row in rows} == {
        (1, False, "a"), (None, True, "b"), (2, False, None),
    }  # fmt: skip


@pytest.mark.parametrize(("event_time", "first"), [("timestamp_millis(at)", 4_000_000), ("record.timestamp", 0)])
def test_the_whole_record_is_kept_beside_its_columns(event_time: str, first: int) -> None:
    """One without a value is no dead letter, has NULL in all columns and its own time."""
    given = batch([b'{"id":1,"at":4000}', None, b"{}"], keys=[b"\xff", b"k", None], whole=True)
    good, tombstone, dead = run(replace(WHOLE, event_time=event_time), given)
    assert [row["event_time"] for row in (good, tombstone)] == [EPOCH + first * MICRO, EPOCH + MICRO]
    assert good["_record"] == {
        "topic": "t", "partition": 0, "offset": 0, "key": b"\xff", "value": b'{"id":1,"at":4000}', "reason": None,
        "timestamp": EPOCH, "headers": '[{"key":"h","value":"/w=="}]',
    }  # fmt: skip
    assert (tombstone["id"], tombstone["_bad"], tombstone["_record"]["key"]) == (None, False, b"k")
    assert (dead["_bad"], dead["_record"]["reason"]) == (True, "field id is missing or null")


def test_the_horizon_holds_for_tombstones_too() -> None:
    [_, row] = run(WHOLE, batch([None, None], horizon=0, whole=True))
    assert row["_record"]["reason"] == "the event time lies in the future: 1970-01-01 00:00:00.000001"


SIGNER = HeartbeatSigner(b"ours")
BEAT = SIGNER.value("t", 0, AT_MS)
COUNT = Combiner("n BIGINT", "SELECT count(*) AS n, max(event_time) AS event_time FROM records HAVING n > 0")
OTHERS = {
    "another secret": HeartbeatSigner(b"theirs").value("t", 0, AT_MS),
    "another topic": SIGNER.value("u", 0, AT_MS),
    "another partition": SIGNER.value("t", 1, AT_MS),
    "another time": BEAT.replace(b"%d" % AT_MS, b"%d" % (AT_MS + 1)),
    "no proof": b'{"heartbeat":%d}' % AT_MS,
    "a field more": BEAT[:-1] + b',"at":1}',
    "rubbish": b"\xff",
    "nothing": None,
}


@pytest.mark.parametrize("timestamp", [0, AT_MS * 1000, FAR])
def test_a_beat_carries_its_time_in_its_value(timestamp: int) -> None:
    """Whatever its own timestamp says."""
    for reading in (
        RecordDecoder("t", "a test", DDL, "timestamp_millis(at)", None, True, SIGNER),
        RecordDecoder("t", "a test", DDL, "timestamp_millis(at)", COUNT, False, SIGNER),
        RecordDecoder("t", "a test", "", "timestamp", COUNT, False, SIGNER),
    ):
        [row] = run(reading, batch([BEAT], keys=[HEARTBEAT_KEY], times=[timestamp]))
        assert (row["_beat"], row["_bad"], row["event_time"]) == (True, False, AT)


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not_prove_that_it_is_ours_is_a_record(name: str) -> None:
    given = batch([OTHERS[name]], keys=[HEARTBEAT_KEY], times=[AT_MS * 1000])
    [row] = run(RecordDecoder("t", "a test", DDL, "timestamp_millis(at)", None, True, SIGNER), given)
    assert (row["_beat"], row["_bad"]) == (False, True)
    [row] = run(RecordDecoder("t", "a test", "", "timestamp", COUNT, False, SIGNER), given)
    assert (row["_beat"], row["n"]) == (False, 1)


def test_a_record_with_the_key_of_beats_counts() -> None:
    reading = RecordDecoder("t", "a test", DDL, "timestamp_millis(at)", COUNT, False, SIGNER)
    rows = run(reading, batch([b'{"id":1,"at":1}', BEAT, b"{}"], keys=[HEARTBEAT_KEY] * 3))
    assert [(r["n"], r["_beat"], r["_bad"]) for r in rows if r["n"]] == [(1, False, False)]
    assert sorted((r["_beat"], r["_bad"]) for r in rows if not r["n"]) == [(False, True), (True, False)]


def test_no_text_shows_the_secret() -> None:
    assert "ours" not in repr(RecordDecoder("t", "a test", DDL, "timestamp_millis(at)", None, True, SIGNER))


def test_kinds_of_records_of_a_batch_are_distinguished() -> None:
    values = [b'{"id":1,"at":1}', b"x", None, BEAT]
    keys = [None, b"k", b"k", HEARTBEAT_KEY]
    reading = RecordDecoder("t", "a test", DDL, "timestamp_millis(at)", None, True, SIGNER)
    rows = run(reading, batch(values, keys=keys))
    assert [(r["_beat"], r["_bad"]) for r in rows] == [(False, False), (False, True), (False, True), (True, False)]
    assert [(r["_record"]["key"], r["_record"]["value"]) for r in rows] == list(zip(keys, values, strict=True))
    kept = [
        r["_record"]
        for r in run(RecordDecoder("t", "a test", DDL, "timestamp_millis(at)", None, False), batch(values[:3]))
    ]
    assert sorted(r["offset"] for r in kept if r) == [1, 2]


DEEP = {"arrays": (b"[", b"", b"]"), "objects": (b'{"a":', b"1", b"}")}


@pytest.mark.parametrize("depth", [10, 1000, 100_000])
@pytest.mark.parametrize("kind", DEEP)
def test_any_depth_is_read(kind: str, depth: int) -> None:
    opened, inner, closed = DEEP[kind]
    deep = opened * depth + inner + closed * depth
    values = [b'{"id":1,"at":1,"s":%s}' % text for text in (deep, deep[:-1], deep + closed)]
    good, short, long = run(ALL, batch(values))
    assert not good["_bad"]
    assert good["s"].encode() == deep
    assert {r["_record"]["reason"][:14] for r in (short, long)} == {"not valid JSON"}


LARGE: Mapping[str, tuple[bytes, str, int]] = {
    "text": (b'"' + b"x" * MB + b'"', "STRING", MB),
    "escapes": (b'"' + b"\\u0061" * (MB // 6) + b'"', "STRING", MB // 6),
    "quotes": (b'"' + b'\\",}' * (MB // 4) + b'"', "STRING", MB // 4 * 3),
    "integers": (b"[" + b"1," * (MB // 2) + b"1]", "ARRAY<BIGINT>", MB // 2 + 1),
    "reals": (b"[" + b"1e1," * (MB // 4) + b"1]", "ARRAY<DOUBLE>", MB // 4 + 1),
    "keys": (b"{" + b",".join(b'"k%d":1' % n for n in range(80_000)) + b"}", "MAP<STRING, INT>", 80_000),
    "digits": (b"9" * MB, "STRING", MB),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_values_are_read(name: str) -> None:
    value, ddl, size = LARGE[name]
    length = "cardinality" if ddl.startswith("MAP") else "len"
    combiner = Combiner("n BIGINT", f"SELECT sum({length}(a)) AS n, max(event_time) AS event_time FROM records")
    reading = RecordDecoder("t", "a test", f"a {ddl}, at BIGINT", "timestamp_millis(at)", combiner, False)
    rows = run(reading, batch([b'{"at":1,"a":%s}' % value] * 3 + [b'{"at":1,"a":%s' % value]))
    assert sum(r["n"] or 0 for r in rows) == 3 * size
    assert [len(r["_record"]["value"]) for r in rows if r["_bad"]] == [len(value) + 12]


def test_many_large_records_are_read_by_halves() -> None:
    """The parser takes sixteen times their size, and has a gigabyte."""
    values = [b'{"id":1,"at":1,"s":"%s"}' % (b"x" * MB)] * 80
    rows = run(ALL, batch(values))
    assert [len(r["s"]) for r in rows] == [MB] * 80
    assert not any(r["_bad"] for r in rows)


def test_what_is_read_by_halves_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the memory ends behind the combiner, where the bad records are looked at."""
    given, calls = DecoderQueries._rows, []

    def ending(self: DecoderQueries, sql: str, **tables: pa.Table) -> Iterator[pa.RecordBatch]:
        calls.append(sql)
        if len(calls) == 2:
            raise duckdb.OutOfMemoryException("no more")
        yield from given(self, sql, **tables)

    monkeypatch.setattr(DecoderQueries, "_rows", ending)
    combiner = Combiner("n BIGINT", "SELECT count(*) AS n, max(event_time) AS event_time FROM records HAVING n > 0")
    reading = RecordDecoder("t", "a test", DDL, "timestamp_millis(at)", combiner, False)
    rows = run(reading, batch([b'{"id":1,"at":1}', b"x"] * 3))
    assert len(calls) > 2
    assert sum(r["n"] or 0 for r in rows) == 3
    assert sorted(r["_record"]["offset"] for r in rows if r["_bad"]) == [1, 3, 5]


def test_names_of_fields_are_free() -> None:
    names = (
        "e0",
        "k0",
        "e1",
        "x",
        "text",
        "topic",
        "offset",
        "records_in",
        "decoded",
        "n",
        "a/b",
        "~1",
        'q"q',
        "é",
        "1",
    )
    ddl = ", ".join(f"`{name}` ARRAY<STRUCT<`{name}`: ARRAY<INT>>>" for name in names)
    given = {name: [{name: [1, None]}] for name in names}
    [row] = run(RecordDecoder("t", "a test", ddl, "now", None, True), batch([json.dumps(given).encode()]))
    assert {name: row[name] for name in names} == given


def test_fields_of_a_rule_come_before_what_the_record_has() -> None:
    names = ("topic", "status", "n", "key", "value", "text", "rule_0")
    ddl = ", ".join(f"`{name}` STRING NOT NULL" for name in names)
    given = "{" + ",".join(f'"{name}":"own"' for name in names) + "}"
    own = sqlglot.exp.Literal.string("own")
    for name in names:
        rule = Rule("t", "json", ddl, sqlglot.exp.EQ(this=sqlglot.exp.column(name), expression=own))
        combiner = validity.combiner({EVERY: Rule(EVERY, "json", "", sqlglot.exp.true()), "t": rule})
        reading = RecordDecoder("", "a test", "", "timestamp", combiner, False)
        [row] = run(reading, batch([given.encode()] * 2, topics=["t"] * 2))
        assert (row["topic"], row["status"], row["n"]) == ("t", "valid", 2)


def test_a_bad_record_is_apart_from_what_a_combiner_gives() -> None:
    """Its own fields may have the names of the combiner's columns, and are of another type."""
    combiner = Combiner(
        "day DATE, n BIGINT",
        "SELECT max(DATE '2026-01-01') AS day, count(*) AS n, max(event_time) AS event_time FROM records",
    )
    reading = RecordDecoder(
        "t", "a test", "day STRING, n STRING, at BIGINT NOT NULL", "timestamp_millis(at)", combiner, False
    )
    rows = run(reading, batch([b'{"day":"x","n":"y","at":"z"}', b'{"day":"x","at":1}']))
    assert [(r["n"], r["_bad"]) for r in rows] == [(1, False), (None, True)]
    assert rows[1]["_record"]["reason"] == "field at is no bigint: z"
    only_bad = run(reading, batch([b"x"]))
    assert [r["_bad"] for r in only_bad] == [True]


@pytest.mark.parametrize(
    ("ddl", "sql", "message"),
    [
        ("n TINYINT", 'sum("at") AS n, max(event_time) AS event_time', "values that do not fit their declared type"),
        ("n BIGINT", 'sum("at") AS n, NULL::TIMESTAMPTZ AS event_time', "rows without event_time"),
        ("l ARRAY<INT>", "[NULL] AS l, max(event_time) AS event_time", "lists that contain NULL"),
    ],
)
def test_what_a_combiner_must_not_give(ddl: str, sql: str, message: str) -> None:
    combiner = Combiner(ddl, f"SELECT {sql} FROM records")
    reading = RecordDecoder("t", "a test", "at BIGINT NOT NULL", "timestamp_millis(at)", combiner, False)
    with pytest.raises(DeclarationError, match=message):
        run(reading, batch([b'{"at":1000}']))
    assert [r["_bad"] for r in run(reading, batch([b"x"]))] == [True]
