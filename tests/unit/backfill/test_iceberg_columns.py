"""Columns of an Iceberg table as the source of a backfill: their types, the declared schema, the event time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from penstock.backfill import iceberg_source, transform
from penstock.backfill.iceberg_columns import TableColumns
from penstock.errors import DeclarationError
from tests.support.iceberg_tables import (
    DAY,
    add_file,
    created,
    ids,
    job,
    orders,
    read,
    rows,
    tables,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

ORDERS = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestamptzType()))
KINDS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "at", TimestampType()),
    NestedField(3, "zoned", TimestamptzType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "time", TimeType()),
    NestedField(6, "amount", DecimalType(38, 3)),
    NestedField(7, "uuid", UUIDType()),
    NestedField(8, "bytes", BinaryType()),
    NestedField(9, "fixed", FixedType(4)),
    NestedField(10, "float", FloatType()),
    NestedField(11, "double", DoubleType()),
    NestedField(12, "list", ListType(13, DoubleType(), element_required=False)),
    NestedField(14, "map", MapType(15, IntegerType(), 16, StringType(), value_required=False)),
    NestedField(17, "struct", StructType(NestedField(18, "A", LongType()), NestedField(19, "b", BooleanType()))),
)
AS_TEXT = "SELECT id, struct_pack(*COLUMNS(*))::VARCHAR AS said FROM records"
FIRST_MICROS, LAST_MICROS = -99_999_999_999_999_999, 300_000_000_000_000_001


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Catalog]:
    with tables(tmp_path / "lake") as catalog:
        yield catalog


def times(zone: str | None, *micros: int) -> pa.Array[Any]:
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us", zone))


def test_every_type_is_exact(shop: Catalog, tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "id": pa.array([1, -(2**63)]),
        "at": times(None, FIRST_MICROS, LAST_MICROS), "zoned": times("UTC", LAST_MICROS, FIRST_MICROS),
        "day": pa.array([-800_000, 3_000_000], pa.int32()).cast(pa.date32()),
        "time": pa.array([1, 86_399_999_999], pa.int64()).cast(pa.time64("us")),
        "amount": pa.array([Decimal("-12345678901234567890123456789012345.678"), None], pa.decimal128(38, 3)),
        "uuid": pa.array([UUID(int=7).bytes, None], pa.uuid()),
        "bytes": pa.array([b"\x00\xff", b""], pa.binary()), "fixed": pa.array([b"abcd", None], pa.binary(4)),
        "float": pa.array([float("nan"), -0.0], pa.float32()), "double": pa.array([float("inf"), float("-inf")]),
        "list": pa.array([[0.1, None], []], pa.list_(pa.float64())),
        "map": pa.array([[(1, "ä"), (-1, None)], None], pa.map_(pa.int32(), pa.string())),
        "struct": pa.array([{"A": 2**63 - 1, "b": None}, None], pa.struct([("A", pa.int64()), ("b", pa.bool_())])),
    }  # fmt: skip
    fields = [pa.field(name, column.type, nullable=name != "id") for name, column in columns.items()]
    # For times outside of Python's, pyiceberg writes no statistics.
    created(shop, KINDS, properties={"write.metadata.metrics.default": "none"}).append(
        pa.table(columns, pa.schema(fields))
    )
    one = job(AS_TEXT, begin=None, end=datetime(9999, 1, 1, tzinfo=UTC), event_time="make_timestamp(id % 2)")
    found, source = read(one, tmp_path / "job")
    said = {row["id"]: row["said"] for row in found}
    assert source.rows == 2
    assert said[1] == (
        "{'id': 1, 'at': '1200-02-15 (BC) 14:13:20.000001', 'zoned': '11476-08-15 05:20:00.000001+00', "
        "'day': '0222-09-04 (BC)', 'time': '00:00:00.000001', 'amount': -12345678901234567890123456789012345.678, "
        "'uuid': 00000000-0000-0000-0000-000000000007, 'bytes': '\\\\x00\\\\xFF', 'fixed': abcd, 'float': nan, "
        "'double': inf, 'list': [0.1, NULL], 'map': {1=ä, -1=NULL}, 'struct': {'A': 9223372036854775807, 'b': NULL}, "
        "'event_time': '1970-01-01 00:00:00.000001+00'}"
    )
    assert "'float': -0.0, 'double': -inf, 'list': [], 'map': NULL, 'struct': NULL" in said[-(2**63)]
    kinds = "SELECT 1 AS id, string_agg(column_type, ' ') AS said FROM (DESCRIBE records)"
    assert read(job(kinds, event_time="zoned"), tmp_path / "job")[0][0]["said"] == (
        "BIGINT TIMESTAMP TIMESTAMP WITH TIME ZONE DATE TIME DECIMAL(38,3) UUID BLOB BLOB FLOAT DOUBLE DOUBLE[] "
        "MAP(INTEGER, VARCHAR) STRUCT(A BIGINT, b BOOLEAN) TIMESTAMP WITH TIME ZONE"
    )
    # NaN is greater than every number; the files' statistics do not say so.
    found, _ = read(
        job('SELECT id, 1 AS said FROM records WHERE "float" > 5', begin=None, event_time="epoch_ms(0)"),
        tmp_path / "job",
    )
    assert [row["id"] for row in found] == [1]


@pytest.mark.parametrize(
    ("event_time", "expected"),
    [
        ("text", [1]),
        ("CAST(struct.ms AS TIMESTAMP)", "its event time cannot be computed"),
        ("make_timestamp(deep.us)", [1, 2]),
        ("nobody", "its rows have no column nobody, which is their event time; got: id, text, deep"),
        ("strptime(text, '%Y-%m-%dT%H:%MZ')", "its event time cannot be computed of some rows.*try_strptime"),
        ("try_strptime(text, '%Y-%m-%dT%H:%MZ')", [1]),
        ("id", "its event time cannot be computed"),
    ],
)
def test_the_event_time_is_an_expression(
    shop: Catalog, tmp_path: Path, event_time: str, expected: list[int] | str
) -> None:
    deep = StructType(NestedField(4, "us", LongType()))
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "text", StringType()), NestedField(3, "deep", deep)
    )
    micros = int(DAY.timestamp()) * 1_000_000
    texts, deeps = ["2026-01-01T05:00Z", "at noon"], [{"us": micros + n} for n in (1, 2)]
    created(shop, schema).append(rows(id=pa.array([1, 2]), text=texts, deep=deeps))
    if isinstance(expected, str):
        with pytest.raises(DeclarationError, match=expected):
            read(job(event_time=event_time), tmp_path / "job")
    else:
        assert ids(job(event_time=event_time), tmp_path / "job") == expected


def test_nanoseconds_are_kept_and_rounded_down_for_the_interval(tmp_path: Path) -> None:
    """As a table of format 3 has them, which pyiceberg reads and does not write."""
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "a", TimestampNanoType()),
        NestedField(3, "b", TimestamptzNanoType()), NestedField(4, "u", UnknownType()),
    )  # fmt: skip
    start = int(DAY.timestamp()) * 1_000_000
    nanos = pa.array([start * 1000 - 1, start * 1000, start * 1000 + 1999, start * 1000 + 2000])
    given = {"id": pa.array(range(4)), "a": nanos.cast(pa.timestamp("ns")), "b": nanos.cast(pa.timestamp("ns", "UTC"))}
    with transform.open_duckdb(tmp_path) as connection:
        for event_time in ("a", "`b`"):
            columns = TableColumns.of("backfill orders", schema, (), event_time)
            queries = iceberg_source._Queries("backfill orders", connection, columns, start, start + 2)
            queries.check(schema_to_pyarrow(schema, include_field_ids=False).empty_table())
            path = tmp_path / "rows.parquet"
            assert queries.write(pa.table(given | {"u": pa.nulls(4)}), path)[0] == 2
            found = connection.execute(f"SELECT id, a::VARCHAR, b::VARCHAR, u FROM '{path}'").fetchall()
            assert found == [
                (1, "2026-01-01 00:00:00", "2026-01-01 00:00:00+00", None),
                (2, "2026-01-01 00:00:00.000001999", "2026-01-01 00:00:00.000001999+00", None),
            ]


def test_a_column_event_time_stays_what_it_is(shop: Catalog, tmp_path: Path) -> None:
    table = created(shop, Schema(NestedField(1, "id", LongType()), NestedField(2, "Event_Time", DateType())))
    table.append(pa.table({"id": pa.array([1]), "Event_Time": pa.array([DAY.date()])}))
    query = "SELECT id, event_time::VARCHAR AS said FROM records"
    assert read(job(query, event_time="event_time"), tmp_path / "job")[0] == [{"id": 1, "said": "2026-01-01"}]


def test_a_declared_schema_is_what_is_read(shop: Catalog, tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "Id", IntegerType()), NestedField(2, "at", TimestampType()),
        NestedField(3, "uuid", UUIDType()), NestedField(4, "amount", DecimalType(9, 2)),
        NestedField(5, "other", LongType()),
        NestedField(6, "many", ListType(7, StructType(NestedField(8, "x", FloatType())), element_required=False)),
    )  # fmt: skip
    columns = {
        "Id": pa.array([1, 2, 3, None], pa.int32()), "at": times(None, *range(0, 4_000_000, 1_000_000)),
        "uuid": pa.array([UUID(int=1).bytes, None, UUID(int=3).bytes, None], pa.uuid()),
        "amount": pa.array([Decimal("1.25")] * 4, pa.decimal128(9, 2)), "other": pa.array([1, 2, 3, 4]),
        "many": pa.array([[{"x": 0.5}]] * 4, pa.list_(pa.struct([("x", pa.float32())]))),
    }  # fmt: skip
    created(shop, schema).append(rows(**columns))
    declared = (
        "id BIGINT NOT NULL, at TIMESTAMP, uuid STRING NOT NULL, amount DECIMAL(12, 3), many ARRAY<STRUCT<x: DOUBLE>>"
    )
    kinds = "(SELECT string_agg(column_type, ' ') FROM (DESCRIBE records))"
    one = job(
        f"SELECT id, struct_pack(uuid, amount, many)::VARCHAR || {kinds} AS said FROM records", schema=declared,
        begin=None, end=datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC),
    )  # fmt: skip
    found, source = read(one, tmp_path / "job")
    assert [row["id"] for row in found] == [1, 3]
    assert found[0]["said"] == (
        "{'uuid': 00000000-0000-0000-0000-000000000001, 'amount': 1.250, 'many': [{'x': 0.5}]}"
        "BIGINT TIMESTAMP WITH TIME ZONE VARCHAR DECIMAL(12,3) STRUCT(x DOUBLE)[] TIMESTAMP WITH TIME ZONE"
    )
    assert source.skipped_records.summary == (
        "; 2 records of the source are left out: iceberg.shop.orders: field id is NULL; "
        "iceberg.shop.orders: field uuid is NULL"
    )


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("nobody BIGINT", "its table has no column nobody; got: id, at, n, t, many, Twice, TWICE"),
        ("twice BIGINT", "its table has no column twice"),
        ("n INT", "column n of its table has values that the declared type has not; got: long, declared int; .*BIGINT"),
        ("n DOUBLE", "declared double; .*declare BIGINT"),
        ("at DATE", "declare TIMESTAMP"),
        ("t STRING", "got: time, declared string; hint: leave the schema out, and convert it in the query"),
        ("many ARRAY<INT>", "declare ARRAY<STRUCT<`x`:BIGINT>>"),
        ("many ARRAY<STRUCT<x: BIGINT, y: INT>>", "declare ARRAY"),
    ],
)
def test_a_schema_that_the_table_has_not_is_refused(shop: Catalog, tmp_path: Path, declared: str, said: str) -> None:
    many = ListType(7, StructType(NestedField(8, "x", LongType())))
    kinds = (LongType(), TimestamptzType(), LongType(), TimeType(), many, LongType(), LongType())
    names = ("id", "at", "n", "t", "many", "Twice", "TWICE")
    fields = (NestedField(n + 20, *both) for n, both in enumerate(zip(names, kinds, strict=True)))
    created(shop, Schema(*fields))
    one = job("SELECT 1 AS id, 1 AS said", event_time="make_timestamp(1)", schema=declared)
    with pytest.raises(DeclarationError, match=said):
        read(one, tmp_path / "job")
    with pytest.raises(DeclarationError, match="names differ in case only; got: Twice, TWICE"):
        read(job(), tmp_path / "job")
    assert read(job(schema="id BIGINT, at TIMESTAMP, Twice BIGINT"), tmp_path / "job")[0] == []


def test_fields_whose_names_differ_in_case_only_are_refused(shop: Catalog, tmp_path: Path) -> None:
    within = StructType(NestedField(8, "x", LongType()), NestedField(9, "X", LongType()))
    many = MapType(10, StringType(), 11, ListType(12, within))
    created(shop, Schema(NestedField(1, "at", TimestamptzType()), NestedField(2, "many", many)))
    with pytest.raises(DeclarationError, match="fields whose names differ in case only; got: x, X"):
        read(job(), tmp_path / "job")


def test_a_null_list_is_not_an_empty_one(shop: Catalog, tmp_path: Path) -> None:
    """The library makes NULL lists and maps of structs empty."""
    one = StructType(NestedField(8, "x", LongType()))
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "at", TimestamptzType()),
        NestedField(3, "many", ListType(9, one)), NestedField(4, "named", MapType(10, StringType(), 11, one)),
        NestedField(5, "deep", StructType(NestedField(12, "many", ListType(13, one)))),
    )  # fmt: skip
    many = [[{"x": 1}], None, [], None, [{"x": None}, {"x": 2}]]
    named = [None if value is None else [(f"k{n}", item) for n, item in enumerate(value)] for value in many]
    given = orders(*range(5)).append_column("many", pa.array(many)).append_column(
        "named", pa.array(named, pa.map_(pa.string(), pa.struct([("x", pa.int64())])))
    ).append_column("deep", pa.array([{"many": value} for value in many]))  # fmt: skip
    table = created(shop, schema)
    with table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": table.schema().name_mapping.model_dump_json()})
    add_file(table, "given", DataFileContent.DATA, given)
    said = "to_json([many IS NULL, named IS NULL, deep.many IS NULL, len(many) = 0])::VARCHAR"
    query = f"SELECT id, {said} AS said FROM records"
    found, _ = read(job(query), tmp_path / "job")
    no, yes = "[false,false,false,", "[true,true,true,null]"
    assert [row["said"] for row in found] == [f"{no}false]", yes, f"{no}true]", yes, f"{no}false]"]


def test_a_folder_of_the_job_is_no_column(shop: Catalog, tmp_path: Path) -> None:
    """A folder such as id=9 is a column of each file below it for DuckDB, unless it is told."""
    created(shop, ORDERS).append(orders(1, 2))
    folder = tmp_path / "id=9" / "value=x"
    folder.mkdir(parents=True)
    assert ids(job(), folder / "job") == [1, 2]
