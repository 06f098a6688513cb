"""InfluxDB sinks: declarations, and rows that make no points."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import DeclarationError, SinkError
from penstock.settings import settings
from penstock.sinks.core import connections
from penstock.sinks.influxdb.config import InfluxDB
from penstock.sinks.influxdb.existing_points import SPANS, version_queries
from penstock.sinks.influxdb.points import point_schema, read_points
from penstock.sinks.influxdb.writer import InfluxWriter
from tests.support.influxdb import documents, row

AT = datetime(2026, 1, 2, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
TYPES: dict[str, Any] = {"m": pa.string(), "t": pa.string(), "v": pa.float64(), "n": pa.int64(), "at": TIME}


def declared(**given: Any) -> InfluxDB:
    return InfluxDB(**{"sink": "s", "database": "d", "measurement_column": "m", "tags": ("t",), "time": "at", **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"database": ""}, "not a database and one measurement"),
        ({"measurement": "m"}, "not a database and one measurement"),
        ({"measurement_column": ""}, "not a database and one measurement"),
        ({"measurement_column": "", "measurement": "a\\,b"}, "a backslash before a comma.*; got: a"),
        ({"measurement_column": "", "measurement": "#m"}, "a comment of its line: #m; got: #m"),
        ({"suffix": "day"}, "partitions by time itself; got: day; hint: leave SUFFIX and EXPIRE out"),
        ({"expire_seconds": 60}, "partitions by time itself; got: EXPIRE 60 s"),
        ({"tags": ("time",)}, "a name that a tag or field of InfluxDB cannot have; got: time"),
        ({"fields": (("_version.v", ""),)}, "cannot have; got: _version.v"),
        ({"tags": ("a\nb",)}, "cannot have; got: a\nb"),
        ({"tags": ("a\\",)}, r"cannot have; got: a\\"),
        ({"tags": ("",)}, "cannot have"),
        ({"fields": (("deleted", ""),), "tombstones": "mark"}, "deleted, which MARK writes"),
        ({"fields": (("t", ""),)}, "a column with two roles"),
        (
            {"fields": (("v", "int"),)},
            "not a type of a field; got: int; hint: one of boolean, float, integer",
        ),
    ],
)
def test_a_wrong_declaration_is_refused_with_a_hint(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=rf"sink s: .*{said}"):
        declared(**given)


@pytest.mark.parametrize(
    ("doc", "why"),
    [
        ({"m": None}, "its measurement has no name"),
        ({"m": "#m"}, "would make a comment of its line: #m"),
        ({"m": "a\\,b"}, r"a backslash before a comma, a blank, = or a quotation mark: 'a\\\\,b'"),
        ({"m": "\\="}, "a backslash before a comma"),
        ({"m": 'a\\"'}, "a backslash before a comma"),
        ({"m": "\\\\ a"}, "a backslash before a comma"),
        ({"m": "m\n"}, r"a control character, or a backslash at its end: 'm\\n'"),
        ({"t": "t\\"}, r"a backslash at its end: 't\\\\'"),
        ({"t": "\x7f"}, "a control character"),
        ({"t": "x" * 65_525}, "take 65540 bytes, InfluxDB has 65535"),
        ({"at": None}, "its point has no time"),
        ({"at": datetime(1677, 9, 21, 0, 12, tzinfo=UTC)}, "outside the years 1677 to 2262: -9223372080000000 µs"),
        ({"at": datetime(2262, 4, 12, tzinfo=UTC)}, "outside the years 1677 to 2262"),
        ({"v": float("nan")}, "its field v is nan"),
        ({"v": float("-inf")}, "its field v is -inf"),
        ({"v": None}, "all fields of its point are NULL"),
    ],
)
def test_a_row_that_is_no_point_is_refused_alone(doc: dict[str, Any], why: str) -> None:
    good: dict[str, Any] = {"m": "m", "t": "t", "v": 1.0, "at": AT}
    found = read_points(declared(), documents(row(**good), row(**{**good, **doc}), row(**good), **TYPES))
    assert list(found.refused) == [1]
    assert re.search(why, found.refused[1])
    assert set(found.cells["row"].to_pylist()) == {0, 2}


def with_column(rows: pa.Table, name: str, values: Any) -> pa.Table:
    """Rows with another column of the SELECT."""
    docs: Any = rows["doc"].combine_chunks()
    doc = pa.StructArray.from_arrays([*docs.flatten(), values], [*(f.name for f in docs.type), name])
    return rows.set_column(rows.column_names.index("doc"), "doc", doc)


@pytest.mark.parametrize("day", [2**31 - 1, -(2**31), 11_248_738])
@pytest.mark.parametrize("role", ["time", "field", "declared", "tag", "measurement"])
def test_a_date_that_is_no_time_of_a_store_is_refused_alone(role: str, day: int) -> None:
    roles: dict[str, dict[str, Any]] = {
        "time": {"time": "d"}, "field": {}, "declared": {"fields": (("d", "string"), ("v", ""))},
        "tag": {"tags": ("t", "d")}, "measurement": {"measurement_column": "d"},
    }  # fmt: skip
    days = pa.array([0, day, None if role in ("field", "declared", "tag") else 0], pa.int32()).cast(pa.date32())
    rows = documents(*[row(m="m", t="t", v=1.0, at=AT)] * 3, **TYPES)
    found = read_points(declared(**roles[role]), with_column(rows, "d", days))
    assert list(found.refused) == [1]
    assert re.search("outside the years 1677 to 2262|its d is a time more than 30,000 years away", found.refused[1])
    assert set(found.cells["row"].to_pylist()) == {0, 2}


def test_a_timestamp_that_has_no_text_is_refused() -> None:
    """Arrow would write another year."""
    rows = documents(*[row(m="m", v=1.0, at=AT)] * 2, **TYPES)
    found = read_points(declared(), with_column(rows, "w", pa.array([2**62, 0], pa.int64()).cast(TIME)))
    assert found.refused == {0: "its w is a time more than 30,000 years away"}


def test_columns_are_known_as_spark_knows_them() -> None:
    found = read_points(declared(tags=("T",), time="AT"), documents(row(m="m", t="x", v=1.0, at=AT), **TYPES))
    assert (found.fields, [one.line_prefix() for one in found.series]) == (["v", "n"], [b"m,T=x"])


def test_a_column_that_no_clause_names_must_not_have_the_name_of_a_version() -> None:
    output = declared(tags=())
    with pytest.raises(SinkError, match=r"a name that a field of InfluxDB cannot have; got: _version.v"):
        read_points(output, documents(row(m="m"), **TYPES, **{"_version.v": pa.int64()}))


def test_the_mark_replaces_a_column_of_its_name() -> None:
    """DELETED WHEN (deleted) selects that column."""
    types = {**TYPES, "deleted": pa.bool_()}
    rows = [row(m="m", v=1.0, at=AT, deleted=is_deleted) for is_deleted in (False, True)]
    for one in rows:
        one["doc"]["deleted"] = one["deleted"]
    found = read_points(declared(tombstones="mark"), documents(*rows, **types))
    assert found.fields == ["v", "n", "deleted"]
    texts = zip(*(found.cells[name].to_pylist() for name in ("row", "field", "text")), strict=True)
    assert set(texts) == {(0, 0, b"1"), (0, 2, b"false"), (1, 2, b"true")}
    shape = pa.struct(list(types.items()))
    assert point_schema(declared(tombstones="mark"), shape)["fields"].keys() == {"v", "n"}
    assert point_schema(declared(), shape)["fields"].keys() == {"v", "n", "deleted"}


def test_what_the_transform_refused_keeps_its_reason() -> None:
    found = read_points(declared(), documents(row(refused=b"no id \xff", m="m"), **TYPES))
    assert found.refused == {0: "no id \ufffd"}


def test_a_deletion_that_names_no_point_deletes_none() -> None:
    """A tombstone has no columns: a point without tags at its own time would be another's."""
    gone = row(deleted=True, m="m")
    for output, why in ((declared(), "does not say which"), (declared(time=""), "does not say which")):
        found = read_points(output, documents(gone, row(deleted=True, m="m", at=AT, t="t"), **TYPES))
        assert why in found.refused[0]
    assert read_points(declared(tombstones="ignore"), documents(gone, **TYPES)).refused == {}


@pytest.mark.parametrize(
    ("kind", "given", "taken", "refused"),
    [
        ("integer", ["5", "x", None, "9223372036854775808"], [b"5i"], [1, 3]),
        ("float", ["5", "1e3", "y"], [b"5", b"1000"], [2]),
        ("boolean", ["true", "maybe"], [b"true"], [1]),
        ("string", ['a"\\', "b"], [b'"a\\"\\\\"', b'"b"'], []),
    ],
)
def test_a_field_of_a_declared_type(kind: str, given: list[str | None], taken: list[bytes], refused: list[int]) -> None:
    rows = [row(m="m", at=AT, s=value, n=1) for value in given]
    output = declared(tags=(), fields=(("s", kind), ("n", "")))
    found = read_points(output, documents(*rows, m=pa.string(), at=TIME, s=pa.string(), n=pa.int64()))
    assert [text for text in found.cells["text"].to_pylist() if text != b"1i"] == taken
    assert sorted(found.refused) == refused


@pytest.mark.parametrize(
    ("given", "types", "said"),
    [
        ({"tags": ("u",)}, {}, "the SELECT has no column u; got: m, t, v, n, at"),
        ({}, {"at": pa.int64()}, "at is not a time; got: int64; hint: e.g. timestamp_millis"),
        ({}, {"v": pa.list_(pa.int64())}, "v is not a value of InfluxDB; got: list"),
        ({}, {"t": pa.struct([("a", pa.int64())])}, "t is not a name; got: struct"),
        ({}, {"v": pa.duration("us")}, "v is not a value of InfluxDB; got: duration"),
        ({"fields": (("v", "float"),)}, {"v": pa.date32()}, "v is not a value of InfluxDB; got: date32.* to float"),
    ],
)
def test_columns_of_no_use_stop_the_sink_with_the_way_out(
    given: dict[str, Any], types: dict[str, pa.DataType], said: str
) -> None:
    with pytest.raises(SinkError, match=said):
        read_points(declared(**given), documents(row(), **{**TYPES, **types}))
    with pytest.raises(SinkError, match=said):
        point_schema(declared(**given), documents(**{**TYPES, **types})["doc"].type)


def test_versions_are_asked_for_in_few_narrow_spans() -> None:
    minutes = [*range(60), *range(1_000_000, 1_000_060)]
    rows = [row(m="m", t=f"t{n % 100}", v=1.0, at=datetime.fromtimestamp(60 * n, UTC)) for n in minutes]
    asked = "; ".join(version_queries(read_points(declared(), documents(*rows, **TYPES)))).split("; ")
    assert len(asked) == 2 * 2  # 100 series in two statements, each of two spans
    assert max(text.count(" OR ") for text in asked) == 49
    assert all(
        text.startswith('SELECT "_version", "_version.v", "_version.n" FROM "m", "m.tombstones" WHERE')
        for text in asked
    )
    long = [row(m="m", t=f"{n}" + "x" * 60_000, v=1.0, at=AT) for n in range(40)]
    sizes = [len(text) for text in version_queries(read_points(declared(), documents(*long, **TYPES)))]
    assert (len(sizes), max(sizes) < 2_000_000) == (3, True)
    scattered = [row(m="m", t="t", v=1.0, at=datetime.fromtimestamp(3600 * n * n, UTC)) for n in range(200)]
    [text] = version_queries(read_points(declared(), documents(*scattered, **TYPES)))
    assert text.count("SELECT") <= SPANS


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_INFLUXDB_URL", raising=False)
    settings.cache_clear()


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("influxdb://u:p%2F@h:8086", "http://u:p%2F@h:8086"),
        ("https://h", "https://h"),
        (
            '{"conn_type": "influxdb", "host": "h", "port": "8086", "login": "u", "password": "p/@"}',
            "http://u:p%2F%40@h:8086",
        ),
        ('{"conn_type": "influxdb", "host": "h", "schema": "https"}', "https://h"),
        ("", ""),
    ],
)
def test_a_store_may_be_an_airflow_connection(given: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_INFLUXDB", given)
    assert connections.url("influxdb") == url


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("given", ["secret", '["secret"]', '{"secret', '{"host": "h", "port": "secret"}'])
def test_a_connection_that_cannot_be_read_keeps_its_password(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_INFLUXDB", given)
    with pytest.raises(
        SinkError, match=r"connection influxdb cannot be read.*; got: \w+, from .* AIRFLOW_CONN_INFLUXDB"
    ) as e:
        connections.url("influxdb")
    assert "secret" not in str(e.value)


@pytest.mark.parametrize("url", ["http://user:secr/et@h:8086", "user:secret@h:8086", "http://h:secret", "h:8086"])
def test_the_error_of_a_wrong_url_hides_the_password(url: str) -> None:
    with pytest.raises(SinkError, match="the connection influxdb is not a valid URL") as e:
        InfluxWriter(url, declared())
    assert "secr" not in str(e.value)
