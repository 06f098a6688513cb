"""What an archive writes down, and how records are told apart: without a store."""

from __future__ import annotations

import hashlib
import io
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.archive import hour_closer, layout, parquet, reader
from penstock.archive.hour_closer import Keeper, bins, left_of
from penstock.archive.layout import Closed, File, Manifest, Span, State, added
from penstock.archive.stream import Archived, stream
from penstock.archive.writer import _begins, _behind
from penstock.errors import DeclarationError, SinkError
from penstock.model.archive import Archive
from penstock.model.output import CommitMarker
from penstock.model.topic import Topic
from penstock.object_store.bucket import filesystem
from penstock.object_store.endpoint import AWS, find_endpoint
from penstock.settings import settings
from tests.support import wait_until

AT = datetime(2026, 1, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def row(offset: int, **more: object) -> dict[str, object]:
    made = {"topic": "t", "partition": 0, "offset": offset, "key": b"k", "value": b"v", "timestamp": AT}
    return {**made, "headers": None, "event_time": AT, **more}


def table(*rows: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), parquet.SCHEMA)


def test_a_state_and_a_manifest_are_read_as_they_were_written() -> None:
    file = File("date=2026-01-31/hour=23/x.parquet", 12, {"t/0": Span(3, 1, 9, 2**64 - 1)})
    closed = Closed("m.json.gz", 2, 5, 40, 1, 17.5)
    hours = {"2026-01-31T23": (file,)}
    state = State("00000001-ab", 3, {"t": {0: 10}}, {"t": "id"}, hours, {"2026-01-31T22": closed}, {"old": 1.5},
                  {"t": {0: 2}})  # fmt: skip
    assert State.read(state.write(), "s3://b/x") == state
    manifest = Manifest("kept", "2026-01-31T23", 1, {"t/0": Span(3, 1, 9, 5)}, (file,))
    assert Manifest.read(manifest.write(), "s3://b/x") == manifest
    for broken in (b"", b"{}", layout.packed([1]), layout.packed({}), state.write()[:-9], layout.packed({"claim": 1})):
        with pytest.raises(SinkError, match="s3://b/x is not what an archive writes"):
            State.read(broken, "s3://b/x")


def test_what_a_topic_has_that_an_archive_has_not() -> None:
    state = State(positions={"t": {0: 5, 1: 7}}, ids={"t": "id"})
    assert left_of(state, ({"t": "id"}, {("t", 0): 5, ("t", 1): 7})) == []
    assert left_of(state, ({"t": "id"}, {("t", 0): 6, ("t", 2): 1})) == ["t[0] up to 5 of 6", "t[2] up to 0 of 1"]
    # As many offsets of another topic are none of this one's.
    assert left_of(state, ({"t": "other"}, {("t", 0): 5})) == ["t[0] up to 0 of 5 of the topic as it was made again"]
    assert left_of(state, ({"t": "other"}, {("t", 0): 0})) == []


def test_an_archive_knows_up_to_where_and_from_where_on_it_has_all() -> None:
    def after(state: State, upto: int, start: int) -> State:
        mark = CommitMarker("q", 0, {"t": {0: upto}, "other": {0: 9}}, start_offsets={"t": {0: start}})
        positions = _behind(state.positions, [], mark, ("t",))
        return State(positions=positions, begins=_begins(state, mark, positions))

    # A batch of heartbeats alone, one that is given again, and one behind a gap.
    first = after(State(), 50, 0)
    assert (first.positions, first.begins) == ({"t": {0: 50}}, {"t": {0: 0}})
    assert after(first, 60, 40).begins == {"t": {0: 0}}
    assert after(first, 60, 55).begins == {"t": {0: 55}}
    assert after(State(), 60, 55).begins == {"t": {0: 55}}
    # Of what an earlier version archived nobody knows.
    assert after(State(positions={"t": {0: 50}}), 60, 55).begins == {}
    # A topic that was made again does not make whole what the one before lacked.
    assert after(State(begins={"t": {0: 55}}), 10, 0).begins == {"t": {0: 55}}


def test_the_sum_is_the_one_that_lies_in_archives() -> None:
    texts = [b"t:0:7:1:1:kv", b"t:0:8:-1:0:"]
    wanted = sum(int.from_bytes(hashlib.md5(text).digest()[:8], "little") for text in texts) % 2**64
    assert parquet.spans_of(table(row(7), row(8, key=None, value=b"")))["t/0"] == Span(2, 7, 8, wanted)


def test_a_sum_is_of_the_set_alone() -> None:
    rows = [row(n, partition=n % 3, value=None if n % 5 == 0 else b"%d" % n) for n in range(100)]
    whole = parquet.spans_of(table(*rows))
    random.Random(7).shuffle(rows)
    assert added([parquet.spans_of(table(*rows[:37])), parquet.spans_of(table(*rows[37:]))]) == whole
    assert whole["t/1"].rows == 33
    assert parquet.spans_of(table()) == {}


@pytest.mark.parametrize(
    "other",
    [
        {"value": b"w"}, {"value": None}, {"value": b""}, {"key": None}, {"key": b"kv", "value": b""}, {"offset": 2},
        {"topic": "u"},
    ],
    ids=str,
)  # fmt: skip
def test_records_that_differ_have_different_sums(other: dict[str, object]) -> None:
    [one] = parquet.spans_of(table(row(1))).values()
    [two] = parquet.spans_of(table({**row(1), **other})).values()
    assert one.sum != two.sum


def test_a_record_lies_in_the_hour_of_its_event_time_or_its_own() -> None:
    rows = table(
        row(0), row(1, event_time=AT + timedelta(microseconds=1)), row(2, event_time=None),
        row(3, event_time=datetime(1969, 12, 31, tzinfo=UTC)),
        row(4, event_time=None, timestamp=datetime(1, 1, 1, tzinfo=UTC)),
    )  # fmt: skip
    found = {hour: one["offset"].to_pylist() for hour, one in parquet.by_hour(parquet.as_records(rows))}
    assert found == {"1970-01-01T00": [4], "2026-01-31T23": [0, 2, 3], "2026-02-01T00": [1]}
    assert layout.folder("2026-02-01T00") == "date=2026-02-01/hour=00"


def test_parquet_keeps_all_of_a_record() -> None:
    rows = table(
        row(0, headers=[{"key": "h", "value": None}, {"key": "h", "value": b"\xff"}]), row(1, key=None, value=None)
    )
    assert pa.concat_tables(parquet.read(io.BytesIO(parquet.parquet(rows)))).equals(rows)
    with pytest.raises(pa.ArrowInvalid):
        list(parquet.read(io.BytesIO(parquet.parquet(rows)[:-1])))


def test_small_files_are_joined_and_large_ones_are_not() -> None:
    files = [File(f"{n:02}", size, {}) for n, size in enumerate([10, 60, 30, 70, 49, 49, 1])]
    assert [[file.key for file in part] for part in bins(files, 100)] == [
        ["01"],
        ["03"],
        ["00", "02", "04", "05"],
        ["06"],
    ]
    assert bins([], 100) == []


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
    assert (found.url, found.region, found.access_key, found.makes_buckets) == (AWS, "r", "K", False)
    monkeypatch.setenv("AIRFLOW_CONN_S3", "{a-secret")
    with pytest.raises(SinkError, match="connection s3 cannot be read") as e:
        find_endpoint()
    assert "a-secret" not in str(e.value)
    monkeypatch.setenv("PENSTOCK_S3_URL", "h:9000")
    settings.cache_clear()
    found = find_endpoint()
    assert found is not None
    with pytest.raises(
        SinkError, match=r"no endpoint of an object store; got: h:9000.*PENSTOCK_S3_URL=https://host:port"
    ):
        filesystem(found)
    settings.cache_clear()


def test_an_archive_is_a_stream_of_raw_records() -> None:
    found = stream(
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
        stream(Archive("kept", "t", bucket="lake", max_records=-1))


LAST_HOUR = "9999-12-31T23"


def tending(monkeypatch: pytest.MonkeyPatch, *hours: str, broken: str = "") -> tuple[Keeper, list[str]]:
    """A keeper of an archive with such open hours, and those that it closes; the broken one cannot be closed."""
    closed: list[str] = []
    writer: Any = SimpleNamespace(state=State(open=dict.fromkeys(hours, ())))
    output = Archived("kept", "lake", "p", ("t",), 900.0)
    made = Keeper(writer, output, lambda _: ({}, {}), lambda: datetime(2026, 2, 1, tzinfo=UTC).timestamp())

    def close(hour: str) -> None:
        if hour == broken:
            raise SinkError(f"files of hour {hour} do not hold what was written")
        closed.append(hour)

    monkeypatch.setattr(made, "_close", close)
    return made, closed


def test_the_last_hour_of_the_calendar_keeps_no_other_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made, closed = tending(monkeypatch, LAST_HOUR, "2026-01-01T10", "2026-01-01T11", "2026-01-31T23", "1970-01-01T00")
    made.reconcile()
    assert closed == ["1970-01-01T00", "2026-01-01T10", "2026-01-01T11"], "the newest has yet to wait"
    held = State(open={LAST_HOUR: (), "2026-01-01T10": ()})
    assert reader.names(held, datetime(9000, 1, 1, tzinfo=UTC)) == [LAST_HOUR]
    assert reader.names(held, end=datetime(9000, 1, 1, tzinfo=UTC)) == ["2026-01-01T10"]
    one = datetime(2026, 1, 1, 11, tzinfo=UTC)
    assert reader.names(held, one, one + layout.HOUR) == []
    assert reader.names(held, one - timedelta.resolution, one) == ["2026-01-01T10"]


def test_an_hour_that_cannot_be_closed_keeps_no_other_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made, closed = tending(monkeypatch, "2026-01-01T10", "2026-01-01T11", broken="2026-01-01T10")
    with pytest.raises(SinkError, match="files of hour 2026-01-01T10"):
        made.reconcile()
    assert closed == ["2026-01-01T11"]


def test_a_keeper_goes_on_behind_an_error_that_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hour_closer, "EVERY", 0.01)
    made, closed = tending(monkeypatch, "2026-01-01T10")
    looks = iter([OverflowError("date value out of range")])
    tend = made.reconcile

    def look() -> None:
        for error in looks:
            raise error
        tend()

    monkeypatch.setattr(made, "reconcile", look)
    made.start()
    try:
        wait_until(lambda: closed[:1] == ["2026-01-01T10"])
    finally:
        made.stop()


def test_times_that_python_does_not_know(tmp_path: Path) -> None:
    micros = [-5, 0, 1_700_000_000_000_000, 2**60]
    rows = table(*(row(n) for n in range(len(micros))))
    own = pa.array(micros, parquet.TIME)
    rows = rows.set_column(rows.schema.get_field_index("timestamp"), rows.schema.field("timestamp"), own)
    (tmp_path / "x").write_bytes(parquet.parquet(rows))
    store: Any = SimpleNamespace(opened=lambda key: (tmp_path / key).open("rb"), place=str)
    assert reader.times(store, File("x", 1, {})) == (parquet.FIRST, parquet.LAST)
    assert [parquet.moment(at) for at in (2**63 - 1, -(2**63), 1)] == [
        parquet.LAST,
        parquet.FIRST,
        parquet.FIRST + timedelta.resolution,
    ]


@pytest.mark.parametrize(("name", "number"), [("7-ab", 7), ("x-ab", 0), ("²-ab", 0)])
def test_a_claim_has_a_number_or_none(name: str, number: int) -> None:
    assert layout.number_of(name) == number
