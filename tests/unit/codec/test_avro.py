"""Values that the decoder of Avro looks up, or rejects, each with its reason and without the others."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.codec import avro
from penstock.codec.arrow_types import arrow_type
from penstock.codec.avro import AvroDecoder
from penstock.codec.registry_values import RegistryValues
from penstock.errors import DeclarationError, RegistryError, UnknownSchema
from penstock.model.avro import Avro
from penstock.registry import client
from penstock.registry.client import WriterSchema
from penstock.registry.wire_format import MAGIC
from tests.support.avro_cases import B, field, logical, optional, record, record_bytes, schema_text


def value(number: int, record: bytes) -> bytes:
    return MAGIC + number.to_bytes(4) + record


@pytest.fixture(autouse=True)
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids that were looked up: 1 has a text, 2 no Avro, 3 is none, and of 4 the registry says nothing."""
    seen: list[int] = []

    def schema(number: int, _: object) -> WriterSchema:
        seen.append(number)
        if number == 3:
            raise UnknownSchema("no such id")
        if number == 4:
            raise RegistryError("no answer")
        return WriterSchema(schema_text([B]) if number == 1 else '{"type": "nothing"}', "AVRO")

    monkeypatch.setattr(client, "schema_of", schema)
    return seen


def test_a_schema_is_looked_up_once_and_what_is_no_record_has_a_reason(lookups: list[int]) -> None:
    decoder = AvroDecoder(RegistryValues(Avro(schema_text([B]))))
    values = [
        value(1, b"\x02x"),
        None,
        value(1, b"\x02\xff"),
        value(2, b""),
        value(3, b""),
        b"\x00\x00",
        value(1, b"\x04x"),
    ]
    for _ in range(2):
        rows, reasons = decoder.decode(pa.array(values))
        assert rows.to_pylist() == [{"b": "x"}, None, None, None, None, None, None]
        said: list[Any] = reasons.to_pylist()
        assert said[:2] == [None, None]
        assert said[2].startswith("not Avro of schema id 1: 'utf-8' codec can't decode byte 0xff")
        assert said[3].startswith("schema id 2 is no Avro schema: ")
        assert said[4:6] == [
            "schema id 3 is not in the registry",
            "not in the wire format of a schema registry: it begins with 0x0000",
        ]
        assert said[6].startswith("not Avro of schema id 1: ")
    assert lookups.count(1) == 1


def test_a_registry_without_an_answer_rejects_no_record() -> None:
    with pytest.raises(RegistryError):
        AvroDecoder(RegistryValues(Avro(schema_text([B])))).decode(pa.array([value(4, b"\x02x")]))


def test_one_value_outside_of_its_type_rejects_one_record() -> None:
    text = schema_text([field("d", logical("bytes", "decimal", precision=3, scale=1))])
    decoder = AvroDecoder(RegistryValues(Avro(text), ((1, text),)))
    rows, reasons = decoder.decode(pa.array([value(1, b"\x02\x0f"), value(1, b"\x04\x7f\xff"), value(1, b"\x02\xff")]))
    assert [row and row["d"] for row in rows.to_pylist()] == [Decimal("1.5"), None, Decimal("-0.1")]
    assert [bool(reason) for reason in reasons.to_pylist()] == [False, True, False]


def test_one_value_outside_of_its_type_costs_no_look_at_each_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text = schema_text([field("d", logical("bytes", "decimal", precision=3, scale=1))])
    decoder, typed, calls = AvroDecoder(RegistryValues(Avro(text), ((1, text),))), avro._typed, list[int]()

    def counted(raw: Any, of: Any) -> Any:
        calls.append(len(raw))
        return typed(raw, of)

    monkeypatch.setattr(avro, "_typed", counted)
    values = [value(1, b"\x02\x0f")] * 1024
    values[700] = value(1, b"\x04\x7f\xff")
    rows, reasons = decoder.decode(pa.array(values))
    assert (rows.null_count, reasons.null_count, rows[700].is_valid) == (1, 1023, False)
    assert len(calls) < 100


def test_of_what_spark_has_decoded_only_what_does_not_fit_is_decoded_again() -> None:
    text = schema_text([field("d", logical("bytes", "decimal", precision=3, scale=1))])
    decoder = AvroDecoder(RegistryValues(Avro(text), ((1, text),), has_decoded=True))
    columns: list[Any] = [
        pa.array([Decimal("1.5")] * 5 + [Decimal(99999)] + [None] * 2, pa.decimal128(38, 1)),
        pa.array([True] * 6 + [None] * 2),
    ]
    decoded = pa.StructArray.from_arrays(columns, ["d", avro.VALID])
    # The values of the first rows are not looked at.
    values = pa.array([b""] * 5 + [value(1, b"\x06\x0f\x42\x36"), value(1, b"\x02\x0f"), None], pa.binary())
    rows, reasons = decoder.decode_table(pa.table({"value": values, "decoded": decoded}))
    assert [row and row["d"] for row in rows.to_pylist()] == [*[Decimal("1.5")] * 5, None, Decimal("1.5"), None]
    assert [bool(reason) for reason in reasons.to_pylist()] == [*[False] * 5, True, False, False]


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_time_outside_of_the_calendar_rejects_its_record_at_any_depth(by_spark: bool) -> None:
    at, day = logical("long", "timestamp-micros"), logical("int", "date")
    fields = [
        field("t", at),
        field("a", record("A", field("t", optional(at)))),
        field("l", optional({"type": "array", "items": record("L", field("d", day))})),
        field("m", {"type": "map", "values": at}),
    ]
    text = schema_text(fields)
    good: dict[str, Any] = {"t": 0, "a": {"t": None}, "l": None, "m": {}}
    bad = [
        {**good, "t": 2**63 - 1},
        {**good, "a": {"t": -(2**63)}},
        {**good, "l": [{"d": 0}, {"d": 2**31 - 1}]},
        {**good, "m": {"x": 0, "y": 253_402_300_800_000_000}},
    ]
    records = [good, *bad, {**good, "m": {"x": 253_402_300_799_999_999}}, good]
    schema = Avro(text)
    decoder = AvroDecoder(RegistryValues(schema, ((1, text),), has_decoded=by_spark))
    table = pa.table({"value": pa.array([value(1, record_bytes(fields, one)) for one in records])})
    if by_spark:
        record_type: Any = arrow_type(schema.record.type)
        valid: Any = pa.struct([*record_type, pa.field(avro.VALID, pa.bool_())])
        written = [{**one, avro.VALID: True} for one in records]
        table = table.append_column("decoded", pa.array(written, valid))
    rows, reasons = decoder.decode_table(table)
    said = "not Avro of schema id 1: field {} has a time outside of the years 1 to 9999"
    assert reasons.to_pylist() == [None, *map(said.format, ("t", "a.t", "l[].d", "m[]")), None, None]
    assert [number for number, row in enumerate(rows) if row.is_valid] == [0, 5, 6]


def test_the_name_of_a_record_does_not_matter() -> None:
    text = json.dumps({**record("Other", B), "namespace": "com.example"})
    rows, reasons = AvroDecoder(RegistryValues(Avro(text), ((1, schema_text([B])),))).decode(
        pa.array([value(1, b"\x02x")])
    )
    assert (rows.to_pylist(), reasons.to_pylist()) == ([{"b": "x"}], [None])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "nothing"}]}',
            "got: nothing; hint: correct its name",
        ),
        ('"string"', "must be an Avro record"),
        (schema_text([field("a", ["null", "int", "string"])]), "a union of 2 types"),
        (schema_text([field("a", "null")]), "field a has a type that is not read"),
        (schema_text([field("a", ["null", "R"])]), "R within itself"),
        (
            schema_text([field("a", "shop.Item")]),
            "names a type that it does not have; got: shop.Item; hint: .* into this schema",
        ),
        (schema_text([field("d", logical("bytes", "decimal", precision=50, scale=2))]), "1 to 38 digits"),
        (schema_text([field("d", logical("bytes", "decimal"))]), "1 to 38 digits"),
        (schema_text([field("d", logical("bytes", "decimal", precision=5, scale={}))]), "no Avro schema"),
        (schema_text([field("a", "int"), field("b", "int"), field("a", "long")]), "no Avro schema.*R has two fields a"),
        (schema_text([{"name": None, "type": "int"}]), "no Avro schema.*name that is no string"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        Avro(text)
