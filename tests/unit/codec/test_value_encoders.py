"""Rows of each format, encoded without Spark: they are read with equal values, and what does not fit says why."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.codec.arrow_types import arrow_type
from penstock.codec.formats import value_encoder
from penstock.codec.registry_values import EncodedValues
from penstock.model.json_schema import JsonSchema
from penstock.model.protobuf import Protobuf
from penstock.model.registry_schema import RegistrySchema
from tests.support.decoded_values import WRITER_ID, read_by_table
from tests.support.protobuf_cases import EVERYTHING
from tests.support.registry_formats import FORMATS

AT = datetime(2026, 2, 3, 4, 5, 6, 789000, UTC)
ORDER: dict[str, Any] = {"id": 2**53, "shop": "Zoë", "at": AT, "town": None, "n": -1}
TEXT, NUMBER = {"type": "string"}, {"type": "number"}
NESTED = JsonSchema(
    json.dumps(
        {
            "type": "object",
            "properties": {
                "day": {"type": "string", "format": "date"},
                "line": {
                    "type": "object",
                    "properties": {"n": NUMBER, "at": {"type": ["string", "null"], "format": "date-time"}},
                    "required": ["n", "at"],
                },
                "tags": {"type": "array", "items": {"type": ["string", "null"]}},
                "sums": {"type": "object", "additionalProperties": NUMBER},
            },
            "required": ["day"],
        }
    )
)
LINE: dict[str, Any] = {
    "day": date(2026, 1, 2), "line": {"n": 1.5, "at": AT}, "tags": ["a", None], "sums": [("k", 2.0)],
}  # fmt: skip
# Microseconds since 1970 that Arrow and DuckDB have, and Python has not.
DAY = 86_400_000_000
LATE, EARLY = 253_402_300_800_000_000, -62_135_596_800_000_001
ALL = Protobuf(EVERYTHING, message="Everything")
EMPTY: dict[str, Any] = {
    "id": 0, "i": 0, "u": 0, "big": Decimal(0), "f": 0.0, "d": 0.0, "z": False, "s": "", "y": b"", "color": "RED",
    "items": [], "colors": [], "counts": [], "inners": [],
}  # fmt: skip
FULL: dict[str, Any] = {
    **EMPTY, "big": Decimal(2**64 - 1), "color": "BLUE", "note": "", "inner": {"n": 1, "o": None},
    "items": [{"n": 2, "o": "y"}], "colors": ["RED"], "counts": [("a", 1)], "inners": [("k", {"n": 4, "o": "z"})],
    "at": AT, "took": 1_500_000, "wrapped": Decimal(0), "text": None, "first": "x", "second": None,
}  # fmt: skip


def encoded(schema: RegistrySchema, *rows: dict[str, Any], without: tuple[int, ...] = ()) -> EncodedValues:
    columns = {one.name: pa.array([row.get(one.name) for row in rows], arrow_type(one.type)) for one in schema.fields}
    # Captures send it to other processes.
    encoder = pickle.loads(pickle.dumps(value_encoder(schema, WRITER_ID)))
    found: EncodedValues = encoder.encode(columns, without)
    return found


CASES: dict[str, tuple[RegistrySchema, dict[str, Any]]] = {
    **{name: (form.named, ORDER) for name, form in FORMATS.items()},
    "JSON Schema, nested": (NESTED, LINE),
    "JSON Schema, the least": (NESTED, {"day": date(2026, 1, 2)}),
    "Protobuf, all types": (ALL, FULL),
    "Protobuf, the least": (ALL, EMPTY),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_encoded_is_read_with_equal_values(name: str) -> None:
    schema, row = CASES[name]
    values, reasons = encoded(schema, row, row, row, without=(1,))
    assert (values[1], reasons) == (None, {})
    nulls = {one.name: None for one in schema.fields}
    assert read_by_table(schema, schema, [values[0], values[2]]) == [{**nulls, **row}] * 2
    assert encoded(schema, row, without=(0,)) == ([None], {})


@pytest.mark.parametrize(
    ("name", "changed", "reason"),
    [
        ("Avro", {"shop": None}, "field shop is NULL, and no union with null"),
        ("JSON Schema", {"shop": None}, "field shop is NULL, which its JSON Schema does not allow"),
        ("Protobuf", {"shop": None}, "field shop is NULL, which Protobuf does not have for it"),
        ("JSON Schema, nested", {"line": {"n": None, "at": None}}, "field line.n is NULL, which"),
        ("JSON Schema, nested", {"sums": [("k", None)]}, r"field sums[] is NULL, which"),
        ("JSON Schema, nested", {"sums": [("k", float("nan"))]}, r"field sums[] is no finite number"),
        ("Avro", {"at": LATE}, "field at has a time outside of the years 1 to 9999"),
        ("JSON Schema", {"at": LATE}, "field at has a time outside of the years 1 to 9999"),
        ("JSON Schema, nested", {"day": LATE // DAY}, "field day has a time outside of the years 1 to 9999"),
        ("JSON Schema, nested", {"line": {"n": 1, "at": EARLY}}, "field line.at has a time outside of the years"),
        ("Protobuf", {"at": EARLY}, "field at has a time outside of the years 1 to 9999"),
        ("Protobuf, all types", {"color": "GREEN"}, "field color: demo.Color has no such value"),
        ("Protobuf, all types", {"u": 2**32}, "field u: "),
    ],
)
def test_a_row_that_does_not_fit_has_no_value_and_rejects_no_other(
    name: str, changed: dict[str, Any], reason: str
) -> None:
    schema, row = CASES[name]
    values, reasons = encoded(schema, row, row, {**row, **changed}, row)
    assert [value is None for value in values] == [False, False, True, False]
    assert list(reasons) == [2]
    assert reasons[2].startswith(reason)
    assert len(set(values)) == 2


def test_a_null_of_json_is_left_out_where_it_may_be() -> None:
    [value], _ = encoded(NESTED, {"day": date(2026, 1, 2), "line": {"n": 1, "at": None}})
    assert value
    assert json.loads(value[5:]) == {"day": "2026-01-02", "line": {"n": 1, "at": None}}
