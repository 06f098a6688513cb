"""What a column of a database becomes by a schema, what is refused, and which values have no record."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock.capture.output.encode import EncodingError, Unreadable
from penstock.capture.output.page_records import records
from penstock.capture.output.schema_columns import arrow_columns
from penstock.capture.source.base import SourcePage
from penstock.codec.formats import value_encoder
from penstock.model.avro import Avro
from penstock.model.capture import parse
from penstock.model.registry_schema import RegistrySchema
from tests.support.avro_cases import DECIMAL, field, logical, optional, schema_text
from tests.support.registry_formats import json_schema, protobuf

MILLIS, DATE = logical("long", "timestamp-millis"), logical("int", "date")
NUMBERS = {"type": "array", "items": optional("int")}
NOON = datetime(2026, 2, 3, 12, tzinfo=UTC)


def column(of: Any, *values: Any) -> tuple[list[Any], dict[int, str]]:
    arrays, reasons = arrow_columns(Avro(schema_text([field("c", optional(of))])), {"c": values})
    return arrays["c"].to_pylist(), reasons


@pytest.mark.parametrize(
    ("of", "value", "read"),
    [
        ("boolean", True, True), ("boolean", 1, True), ("int", -5, -5), ("long", 2**62, 2**62),
        ("float", 1.5, 1.5), ("double", 2**53, 2.0**53), ("double", float("inf"), float("inf")),
        ("string", "x", "x"), ("string", NOON, "2026-02-03T12:00:00.000000Z"), ("string", Decimal("1.20"), "1.20"),
        ("string", UUID(int=1), str(UUID(int=1))), ("string", time(1), "01:00:00.000000"), ("string", b"ab", "YWI="),
        ("bytes", memoryview(b"ab"), b"ab"), (DATE, date(2026, 2, 3), date(2026, 2, 3)),
        (DATE, "2026-02-03", date(2026, 2, 3)), (MILLIS, NOON, NOON), (MILLIS, NOON.replace(tzinfo=None), NOON),
        (MILLIS, NOON.astimezone(timezone(timedelta(hours=2))), NOON), (MILLIS, "2026-02-03 12:00:00", NOON),
        (DECIMAL, Decimal("1.5"), Decimal("1.500")), (DECIMAL, 7, Decimal("7.000")),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]), ({"type": "array", "items": "string"}, ["a"], ["a"]),
        ({"type": "array", "items": {"type": "array", "items": MILLIS}}, [[NOON]], [[NOON]]),
    ],
)  # fmt: skip
def test_a_value_is_kept(of: Any, value: Any, read: Any) -> None:
    assert column(of, value, None) == ([read, None], {})


@pytest.mark.parametrize(
    ("of", "value"),
    [
        ("boolean", "t"), ("int", "1"), ("int", True), ("long", 1.0), ("double", Decimal(1)), ("string", 1),
        ("bytes", "x"), (DATE, NOON), (MILLIS, date(2026, 1, 1)), (DECIMAL, 1.5), (DECIMAL, "1"), ("int", [1]),
        ({"type": "array", "items": "int"}, ["x"]), ({"type": "array", "items": "int"}, [[1]]),
        ({"type": "array", "items": "string"}, "{a,b}"), ({"type": "array", "items": "int"}, 1),
        ({"type": "array", "items": {"type": "array", "items": "string"}}, ["ab"]),
    ],
)  # fmt: skip
def test_a_column_of_another_type_is_refused(of: Any, value: Any) -> None:
    with pytest.raises(EncodingError, match=r"column c has a type that its Avro field cannot have") as e:
        column(of, None, value)
    assert e.value.column == "c"


@pytest.mark.parametrize(
    ("of", "good", "bad"),
    [
        ("boolean", 1, 2), ("int", 1, 2**31), ("float", 1.0, 1e300), ("float", 1, 2**24 + 1), ("long", 1, 2**64),
        ("double", 1, 2**53 + 1), (DECIMAL, Decimal("0.001"), Decimal("0.0001")), (DECIMAL, 1, 10**18),
        (DATE, "2026-01-01", "infinity"), (MILLIS, NOON, "10000-01-01 00:00:00"),
        ("string", "x", Unreadable(b"\xff")), ("int", 1, Unreadable(b"\xff")), (NUMBERS, [1, None], [2**31]),
        (MILLIS, NOON, "9999-12-31T23:59:59-01:00"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_told_of_its_row_alone(of: Any, good: Any, bad: Any) -> None:
    values, reasons = column(of, good, bad, good, None)
    assert (values[1], values[3]) == (None, None)
    assert None not in (values[0], values[2])
    assert list(reasons) == [1]
    assert reasons[1].startswith(f"column c does not fit its Avro field: {bad}")


OTHERS: list[tuple[RegistrySchema, Any, Any]] = [
    (protobuf("uint64 c = 1;"), 2**64 - 1, Decimal(2**64 - 1)), (protobuf("repeated string c = 1;"), ["a"], ["a"]),
    (protobuf("google.protobuf.Timestamp c = 1;"), "2026-02-03 12:00:00", NOON), (protobuf("bool c = 1;"), 1, True),
    (json_schema({"c": {"type": "string"}}), Decimal("1.20"), "1.20"),
    (json_schema({"c": {"type": "string", "format": "date"}}), date(2026, 2, 3), date(2026, 2, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "read"), OTHERS)
def test_a_value_of_another_format_is_kept(schema: RegistrySchema, value: Any, read: Any) -> None:
    arrays, reasons = arrow_columns(schema, {"c": [value]})
    assert (arrays["c"].to_pylist(), reasons) == ([read], {})


@pytest.mark.parametrize(
    ("schema", "value", "what"),
    [
        (protobuf("uint32 c = 1;"), "x", "Protobuf field cannot have; got: str for uint32"),
        (protobuf("repeated int32 c = 1;"), ["x"], "Protobuf field cannot have; got: str for array<int>"),
        (json_schema({"c": {"type": "number"}}), Decimal(1), "JsonSchema field cannot have; got: Decimal for double"),
    ],
)
def test_a_column_says_what_its_format_calls_the_field(schema: RegistrySchema, value: Any, what: str) -> None:
    with pytest.raises(EncodingError, match=what):
        arrow_columns(schema, {"c": [value]})


def test_an_error_names_the_row_of_the_value(tmp_path: Path) -> None:
    (tmp_path / "t.proto").write_text(protobuf("int64 id = 1; int64 at = 2; repeated int32 n = 3;").text)
    clauses = "CAPTURE INTO t AS PROTOBUF 't.proto' MESSAGE Order FROM sqlite x KEY (id) CURSOR at"
    capture = parse(f"{clauses} AS SELECT id, at, n FROM t", tmp_path / "t.sql")
    assert capture.topic.registry_schema
    page = SourcePage((("id", ""), ("at", ""), ("n", "")), [(1, 1, None), (2, 1, [1]), (3, 1, [1, "x"]), (4, 1, "y")])
    encoder = value_encoder(capture.topic.registry_schema, 1)
    with pytest.raises(EncodingError, match=r'got: str for array<int>, first of key {"id":3}; hint: select CAST\(n AS'):
        records(capture, page, encoder)
