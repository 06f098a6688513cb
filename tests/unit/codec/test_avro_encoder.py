"""The values that are encoded are those that are read again; a row that does not fit says why."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.codec.arrow_types import arrow_type
from penstock.codec.avro import AvroDecoder
from penstock.codec.avro_encoder import AvroEncoder
from penstock.codec.registry_values import RegistryValues
from penstock.model.avro import Avro
from tests.support.avro_cases import CASES, DECIMAL, ENUM, TWO_BYTES, AvroCase, field, logical, schema_text


def encoded(schema: Avro, *rows: dict[str, Any]) -> tuple[list[bytes | None], dict[int, str]]:
    columns: dict[str, Any] = {
        name: pa.array([row[name] for row in rows], arrow_type(of.type)) for name, of in schema.record.fields
    }
    return AvroEncoder(schema, 7).encode(columns)


def decoded(schema: Avro, values: list[bytes | None]) -> list[Any]:
    records, _ = AvroDecoder(RegistryValues(schema, ((7, schema.text),))).decode(pa.array(values, pa.binary()))
    return records.to_pylist(maps_as_pydicts="strict")


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_what_is_written_is_read(case: AvroCase) -> None:
    schema = Avro(schema_text(case.reader))
    values, reasons = encoded(schema, case.read, case.read)
    assert reasons == {}
    assert decoded(schema, values) == [case.read, case.read]


def test_a_row_that_does_not_fit_has_no_value() -> None:
    fields = [field("e", ENUM), field("f", TWO_BYTES), field("l", {"type": "array", "items": "boolean"})]
    fields += [field("t", logical("long", "timestamp-millis")), field("d", DECIMAL)]
    schema = Avro(schema_text(fields))
    at = datetime(1969, 12, 31, 23, 59, 59, 1, UTC)
    good: dict[str, Any] = {"e": "RED", "f": b"ab", "l": [True], "d": Decimal("1.5"), "t": at}
    wrong: list[dict[str, Any]] = [{"e": None}, {"e": "GREEN"}, {"f": b"abc"}, {"l": [True, None]}]
    values, reasons = encoded(schema, good, *({**good, **one} for one in wrong))
    assert [value is None for value in values] == [False, True, True, True, True]
    assert decoded(schema, values)[0] == {**good, "t": at.replace(microsecond=0)}
    assert reasons[1] == "field e is NULL, and no union with null"
    assert [word in reasons[row] for row, word in ((2, "R.e is <GREEN>"), (3, "R.f is <b'abc'>"), (4, "None"))] == [
        True
    ] * 3
