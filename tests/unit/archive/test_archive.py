"""What an archive writes down, and how records are told apart: without a store."""

from __future__ import annotations

import hashlib
import random
import time
from datetime import UTC, datetime, timedelta
from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.archive import hour_closer, records, state
from penstock.archive.closed_hours import ClosedHour
from penstock.archive.hour_closer import HourCloser, group_small_files, unarchived
from penstock.archive.state import ArchiveState, Span, merge_spans
from penstock.archive.stream import ArchiveOutput, archive_stream
from penstock.archive.writer import _begin_offsets, _positions_after
from penstock.errors import DeclarationError, SinkError
from penstock.model.archive import Archive
from penstock.model.output import CommitMarker
from penstock.model.topic import Topic
from penstock.object_store.bucket import filesystem
from penstock.object_store.endpoint import AWS, find_endpoint
from penstock.settings import settings
from tests.support.wait import wait_until

AT = datetime(2026, 1, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def row(offset: int, **more: object) -> dict[str, object]:
    made = {"topic": "t", "partition": 0, "offset": offset, "key": b"k", "value": b"v", "timestamp": AT}
    return {**made, "headers": None, "event_time": AT, **more}


def table(*rows: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), records.SCHEMA)


def test_a_state_and_a_closed_hour_are_read_as_they_were_written() -> None:
    one = ArchiveState((3, "ab"), {"t": {0: 10}}, {"t": "id"}, {"t": {0: 2}}, ("t",))
    assert ArchiveState.read(one.to_json(), "penstock.kept") == one
    for broken in ("", "[1]", "{", '{"claim": 1}', one.to_json()[:-9]):
        with pytest.raises(
            SinkError, match=r"the property of table penstock\.kept that says what is archived is invalid"
        ):
            ArchiveState.read(broken, "penstock.kept")
    hour = ClosedHour(
        "2026-01-31T23", 2, 17.5, 5, 40, 1, 7, {"a/b/0": Span(3, 1, 9, 2**64 - 1), "t/1": Span(2, 0, 1, 0)}
    )
    assert ClosedHour.read(hour.row()) == hour


def test_what_a_topic_has_that_an_archive_has_not() -> None:
    state = ArchiveState(positions={"t": {0: 5, 1: 7}}, ids={"t": "id"})
    assert unarchived(state, ({"t": "id"}, {("t", 0): 5, ("t", 1): 7})) == []
    assert unarchived(state, ({"t": "id"}, {("t", 0): 6, ("t", 2): 1})) == ["t[0] up to 5 of 6", "t[2] up to 0 of 1"]
    # As many offsets of another topic are none of this one's.
    assert unarchived(state, ({"t": "other"}, {("t", 0): 5})) == ["t[0] up to 0 of 5 of the recreated topic"]
    assert unarchived(state, ({"t": "other"}, {("t", 0): 0})) == []


def test_an_archive_knows_up_to_where_and_from_where_on_it_has_all() -> None:
    def after(state: ArchiveState, upto: int, start: int) -> ArchiveState:
        mark = CommitMarker("q", 0, {"t": {0: upto}, "other": {0: 9}}, start_offsets={"t": {0: start}})
        positions = _positions_after(state.positions, [], mark, ("t",))
        return ArchiveState(positions=positions, begins=_begin_offsets(state, mark, positions))

    # A batch of heartbeats alone, one that is given again, and one behind a gap.
    first = after(ArchiveState(), 50, 0)
    assert (first.positions, first.begins) == ({"t": {0: 50}}, {"t": {0: 0}})
    assert after(first, 60, 40).begins == {"t": {0: 0}}
    assert after(first, 60, 55).begins == {"t": {0: 55}}
    assert after(ArchiveState(), 60, 55).begins == {"t": {0: 55}}
    # Of what an earlier version archived nobody knows.
    assert after(ArchiveState(positions={"t": {0: 50}}), 60, 55).begins == {}
    # A topic that was made again does not make whole what the one before lacked.
    assert after(ArchiveState(begins={"t": {0: 55}}), 10, 0).begins == {"t": {0: 55}}


def test_the_sum_is_the_one_that_lies_in_archives() -> None:
    texts = [b"t:0:7:1:1:kv", b"t:0:8:-1:0:"]
    wanted = sum(int.from_bytes(hashlib.md5(text).digest()[:8], "little") for text in texts) % 2**64
    assert records.spans_of(table(row(7), row(8, key=None, value=b"")))["t/0"] == Span(2, 7, 8, wanted)


def test_a_sum_is_of_the_set_alone() -> None:
    rows = [row(n, partition=n % 3, value=None if n % 5 == 0 else b"%d" % n) for n in range(100)]
    whole = records.spans_of(table(*rows))
    random.Random(7).shuffle(rows)
    assert merge_spans([records.spans_of(table(*rows[:37])), records.spans_of(table(*rows[37:]))]) == whole
    assert whole["t/1"].rows == 33
    assert records.spans_of(table()) == {}


@pytest.mark.parametrize(
    "other",
    [
        {"value": b"w"}, {"value": None}, {"value": b""}, {"key": None}, {"key": b"kv", "value": b""}, {"offset": 2},
        {"topic": "u"},
    ],
    ids=str,
)  # fmt: skip
def test_records_that_differ_have_different_sums(other: dict[str, object]) -> None:
    [one] = records.spans_of(table(row(1))).values()
    [two] = records.spans_of(table({**row(1), **other})).values()
    assert one.sum != two.sum


def test_a_record_lies_in_the_hour_of_its_event_time_or_its_own() -> None:
    rows = table(
        row(0), row(1, event_time=AT + timedelta(microseconds=1)), row(2, event_time=None),
        row(3, event_time=datetime(1969, 12, 31, tzinfo=UTC)),
        row(4, event_time=None, timestamp=datetime(1, 1, 1, tzinfo=UTC)),
    )  # fmt: skip
    found = {hour: one["offset"].to_pylist() for hour, one in records.split_by_hour(records.to_archive_schema(rows))}
    assert found == {"1970-01-01T00": [4], "2026-01-31T23": [0, 2, 3], "2026-02-01T00": [1]}


def test_small_files_are_joined_and_large_ones_are_not() -> None:
    files: list[Any] = [
        SimpleNamespace(key=f"{n:02}", size=size, has_deletes=n == 5, spec_id=0, values=())
        for n, size in enumerate([10, 60, 30, 70, 49, 49, 1])
    ]
    assert [[file.key for file in part] for part in group_small_files(files, 100)] == [
        ["01"],
        ["03"],
        ["05"],
        ["00", "02", "04", "06"],
    ]
    assert group_small_files([], 100) == []


def test_where_the_object_store_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_endpoint() is None
    monkeypatch.setenv("AIRFLOW_CONN_S3", "aws://KEY:a%2Fb@/?region_name=eu-west-1&endpoint_url=http%3A%2F%2Fh%3A9000")
    found = find_endpoint()
    assert found is not None
    assert (found.url, found.region, found.access_key, found.secret_key) == ("http://h:9000", "eu-west-1", "KEY", "a/b")
    monkeypatch.setenv(
        "AIRFLOW_CONN_S3", '{"conn_type": "aws", "login": "K", "password": "S", "extra": {"region_name": "r"}}'
    )
    found = find_endpoint()
    assert found is not None
    assert (found.url, found.region, found.access_key, found.create_buckets) == (AWS, "r", "K", False)
    monkeypatch.setenv("AIRFLOW_CONN_S3", "{a-secret")
    with pytest.raises(SinkError, match="connection s3 cannot be read") as e:
        find_endpoint()
    assert "a-secret" not in str(e.value)
    monkeypatch.setenv("PENSTOCK_S3_URL", "h:9000")
    settings.cache_clear()
    found = find_endpoint()
    assert found is not None
    with pytest.raises(
        SinkError, match=r"no endpoint of an object store; got: h:9000.*write https://host:port as PENSTOCK_S3_URL"
    ):
        filesystem(found)
    settings.cache_clear()


def test_an_archive_is_a_stream_of_raw_records() -> None:
    found = archive_stream(
        Archive("kept", Topic("t"), bucket="lake", prefix="p", event_time="CAST(CAST(value AS STRING) AS TIMESTAMP)")
    )
    given = found.sources["records"]
    assert (found.app, found.name, given.record, given.max_ahead, found.output_names) == (
        "archives",
        "kept",
        True,
        None,
        ("bucket:lake/p",),
    )
    assert given.event_time == "CAST(CAST(value AS STRING) AS TIMESTAMP)"
    with pytest.raises(DeclarationError, match="archive kept: its event time names what is no field"):
        Archive("kept", "t", bucket="lake", event_time="timestamp_millis(amount)")
    with pytest.raises(DeclarationError, match="archive kept: stream kept: max_records is too small"):
        archive_stream(Archive("kept", "t", bucket="lake", max_records=-1))


LAST_HOUR = "9999-12-31T23"


def tending(monkeypatch: pytest.MonkeyPatch, *hours: str, broken: str = "") -> tuple[HourCloser, list[str]]:
    """A keeper of an archive with such open hours, and those that it closes; the broken one cannot be closed."""
    closed: list[str] = []
    writer: Any = SimpleNamespace(state=ArchiveState(), open_hours=set(hours))
    output = ArchiveOutput("kept", "lake", "p", "penstock.kept", ("t",), 900.0)
    made = HourCloser(writer, output, lambda _: ({}, {}), lambda: datetime(2026, 2, 1, tzinfo=UTC).timestamp())

    def close(hour: str) -> None:
        if hour == broken:
            raise SinkError(f"files of hour {hour} do not hold what was written")
        closed.append(hour)

    monkeypatch.setattr(made, "_close", close)
    return made, closed


def test_the_last_hour_of_the_calendar_keeps_no_other_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made, closed = tending(monkeypatch, LAST_HOUR, "2026-01-01T10", "2026-01-01T11", "2026-01-31T23", "1970-01-01T00")
    made.close_due_hours()
    assert closed == ["1970-01-01T00", "2026-01-01T10", "2026-01-01T11"], "the newest has yet to wait"


def test_an_hour_that_cannot_be_closed_keeps_no_other_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made, closed = tending(monkeypatch, "2026-01-01T10", "2026-01-01T11", broken="2026-01-01T10")
    with pytest.raises(SinkError, match="files of hour 2026-01-01T10"):
        made.close_due_hours()
    assert closed == ["2026-01-01T11"]


def test_a_keeper_goes_on_behind_an_error_that_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hour_closer, "CHECK_INTERVAL", 0.01)
    made, closed = tending(monkeypatch, "2026-01-01T10")
    looks = iter([OverflowError("date value out of range")])
    tend = made.close_due_hours

    def look() -> None:
        for error in looks:
            raise error
        tend()

    monkeypatch.setattr(made, "close_due_hours", look)
    made.start()
    try:
        wait_until(lambda: closed[:1] == ["2026-01-01T10"])
    finally:
        made.stop()


def test_a_commit_that_has_begun_ends_before_stop_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hour_closer, "CHECK_INTERVAL", 0.01)
    made, _ = tending(monkeypatch)
    begun, ended = Event(), Event()

    def close() -> None:
        begun.set()
        time.sleep(0.2)
        ended.set()

    monkeypatch.setattr(made, "close_due_hours", close)
    made.start()
    begun.wait(10)
    made.stop()
    assert ended.is_set()


def test_times_that_python_does_not_know() -> None:
    assert [records.clamped_time(at) for at in (2**63 - 1, -(2**63), 1)] == [
        records.MAX_TIME,
        records.MIN_TIME,
        records.MIN_TIME + timedelta.resolution,
    ]


def test_hours_have_numbers_and_names() -> None:
    assert [state.hour_of(n) for n in (0, 490_906)] == ["1970-01-01T00", "2026-01-01T10"]
    assert state.hour_end(LAST_HOUR) == records.MAX_TIME


def test_the_name_of_a_table_is_checked() -> None:
    assert Archive("kept-all", "t", bucket="lake").table_name == "penstock.kept_all"
    assert Archive("kept", "t", bucket="lake", table="sales.orders").table_name == "sales.orders"
    with pytest.raises(DeclarationError, match=r"the name of the table is not usable; got: 'orders'"):
        Archive("kept", "t", bucket="lake", table="orders")
