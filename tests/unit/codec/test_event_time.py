"""Event times that are told where records are decoded: their forms and their limits."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.codec.columnar import RecordDecoder
from penstock.codec.event_time import FIRST, LAST, event_time_sql, window_number
from penstock.engine.operations.reset_plan import format_time
from penstock.model.schema import schema
from tests.support.record_batches import FAR, batch, run

FIELDS = schema("at BIGINT, n INT, t TINYINT, moment TIMESTAMP, day DATE, s STRING, d DOUBLE, `a b` BIGINT", "a test")


@pytest.mark.parametrize(
    "form",
    [
        "timestamp_millis(at)",
        " TIMESTAMP_MILLIS ( `At` ) ",
        "timestamp_seconds(n)",
        "timestamp_millis(`a b`)",
        "timestamp_micros(t)",
        "moment",
        "`Moment`",
    ],
)
def test_forms_of_event_times_that_are_decoded_without_spark(form: str) -> None:
    assert event_time_sql(form, FIELDS)


@pytest.mark.parametrize(
    "form",
    ["timestamp_millis(d)", "timestamp_millis(s)", "timestamp_millis(at + 1)", "timestamp_millis(none)", "at", "day",
     "s", "to_timestamp(s)", "timestamp", "timestamp_millis(at), 1", ""],
)  # fmt: skip
def test_forms_that_spark_tells(form: str) -> None:
    assert event_time_sql(form, FIELDS) is None


def test_raw_records_have_their_own_time() -> None:
    assert event_time_sql(" timestamp ", ())
    assert event_time_sql("timestamp + interval 1 second", ()) is None


def found(event_time: str, ddl: str, value: Any, horizon: int = FAR) -> tuple[datetime | None, str | None]:
    """The event time of a record, and why it has none."""
    reading = RecordDecoder("t", "a test", f"at {ddl} NOT NULL", event_time, None, True)
    [row] = run(reading, batch([json.dumps({"at": value}).encode()], horizon=horizon))
    return (None if row["_bad"] else row["event_time"].astimezone(UTC)), row["_record"]["reason"]


BEGIN, END = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("unit", "per"), [("seconds", 1), ("millis", 1000), ("micros", 1_000_000)])
def test_the_years_1_to_9999(unit: str, per: int) -> None:
    call = f"timestamp_{unit}(at)"
    last = 253_402_300_800 * per - 1
    first = -62_135_596_800 * per
    assert found(call, "BIGINT", first) == (BEGIN, None)
    assert found(call, "BIGINT", last) == (END.replace(microsecond=1_000_000 // per * (per - 1)), None)
    for beyond in (first - 1, last + 1, 2**63 - 1, -(2**63)):
        assert found(call, "BIGINT", beyond) == (None, f"no event time: {call} gives none")
    assert (
        found(f"timestamp_{unit}(\n  at\n)", "BIGINT", first - 1)[1]
        == f"no event time: timestamp_{unit}( at ) gives none"
    )
    for small in (0, -1, 127, -128):
        at, _ = found(call, "TINYINT", small)
        assert at
        assert (at - EPOCH).total_seconds() == small / per


def test_limits_are_those_of_the_calendar() -> None:
    assert EPOCH.timestamp() == 0
    assert (FIRST, LAST) == (-62_135_596_800 * 10**6, 253_402_300_800 * 10**6 - 1)
    assert found("at", "TIMESTAMP", "0001-01-01T00:00:00Z") == (BEGIN, None)
    assert found("at", "TIMESTAMP", "9999-12-31T23:59:59.999999Z") == (END, None)
    for beyond in ("0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"):
        assert found("at", "TIMESTAMP", beyond) == (None, f"field at is no timestamp: {beyond}")


def test_a_records_own_time_beyond_the_calendar() -> None:
    """It is none where it is declared, and the nearest where nothing else is: for a tombstone."""
    reading = RecordDecoder(
        "t", "a test", "at BIGINT", "record.timestamp", None, True, whole_record=True, tombstones=True
    )
    for own_time, nearest in ((FIRST - 1, FIRST), (FIRST, FIRST), (0, 0), (LAST, LAST), (LAST + 1, LAST)):
        given = batch([b'{"at":1}', None], whole=True)
        own = pa.array([own_time, own_time], pa.timestamp("us", "UTC"))
        given = given.set_column(given.schema.get_field_index("timestamp"), "timestamp", own)
        [rows] = replace(reading, keep_records=False)(iter([given]))
        assert rows["_bad"].to_pylist() == [own_time != nearest] * 2
        times = rows["event_time"].cast(pa.int64()).to_pylist()
        assert times == [None if own_time != nearest else own_time] * 2
        [rows] = replace(reading, event_time="timestamp_millis(at)")(iter([given]))
        assert rows["event_time"].cast(pa.int64()).to_pylist() == [1000, nearest]


def test_event_times_beyond_the_horizon() -> None:
    assert found("timestamp_millis(at)", "BIGINT", 5, 5000)[1] is None
    assert found("timestamp_millis(at)", "BIGINT", 6, 5999) == (
        None,
        "the event time lies in the future: 1970-01-01 00:00:00.006",
    )


@pytest.mark.parametrize("size", [1, 7, 1_000_000, 420_000_000])
def test_windows_of_all_times(size: int) -> None:
    times = [*range(-30, 30), FIRST, FIRST + 1, LAST, -size, -size - 1, -size + 1, size, size - 1]
    sql = f"SELECT {window_number('make_timestamptz(t)', size)} FROM (SELECT unnest({times}::BIGINT[]) AS t)"
    assert duckdb.execute(sql).fetchall() == [(t // size,) for t in times]


def test_times_for_people() -> None:
    assert [format_time(ms) for ms in (0, LAST // 1000, LAST // 1000 + 60_000)] == [
        "1970-01-01 00:00:00Z",
        *["9999-12-31 23:59:59Z"] * 2,
    ]
