"""Values of all formats are shown as JSON, and what is of none as it is."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.codec import formats
from penstock.codec.avro import AvroText
from penstock.engine.query import written_values
from penstock.errors import RegistryError
from penstock.model import capture
from penstock.model.protobuf import Protobuf
from penstock.model.registry_schema import RegistrySchema
from penstock.model.sql import capture_clauses
from penstock.registry import client, wire_format
from tests.support.avro_cases import CASES, field, logical, python_bytes, schema_text
from tests.support.protobuf_cases import EVERYTHING, value


def test_values_are_shown_as_json_and_all_else_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    case, asked, now = CASES["decimal"], list[int](), [0.0]

    def schema_of(number: int) -> client.WriterSchema:
        asked.append(number)
        if number == 2:
            raise RegistryError("no answer")
        texts = {1: (schema_text(case.writer), "AVRO"), 3: ("{}", "JSON"), 4: (EVERYTHING, "PROTOBUF")}
        return client.WriterSchema(*texts[number])

    monkeypatch.setattr(client, "schema_of", schema_of)
    monkeypatch.setattr(formats, "monotonic", lambda: now[0])
    formats._text_of.cache_clear()
    record = wire_format.header(1) + python_bytes(case)
    others = [None, b"", b"{}", record[:-1], wire_format.header(2), wire_format.header(2)]
    assert formats.readable(record) == b'{"d":"-123.456"}'
    assert formats.readable(wire_format.header(3) + b'{"a": 1}') == b'{"a": 1}'
    message = value(Protobuf(EVERYTHING, message="Everything"), {"id": 5}, 4)
    assert formats.readable(message) == b'{"id":"5"}'
    others += [wire_format.header(4) + b"\x08", message + b"\xff"]
    assert [formats.readable(value) for value in others] == others
    assert asked == [1, 3, 4, 2]
    now[0] = formats.ASK_AGAIN
    assert [formats.readable(wire_format.header(2)) for _ in range(2)] == [wire_format.header(2)] * 2
    assert asked == [1, 3, 4, 2, 2], "a registry that did not answer may answer now"
    formats._text_of.cache_clear()


def test_every_part_has_every_format() -> None:
    kinds = {kind.kind for kind in RegistrySchema.__subclasses__()}
    parts: list[dict[str, Any]] = [formats.FORMATS, capture.FORMATS, capture_clauses.FORMATS, written_values.ENCODERS]
    assert [set(part) for part in parts] == [kinds] * 4


DECIMALS: list[tuple[Any, bytes, bytes]] = [
    (logical("bytes", "decimal", precision=3, scale=1), b"\x02\x0f", b'{"d":"1.5"}'),
    # Avro ignores a logical type that is not valid.
    (logical("bytes", "decimal"), b"\x02\x0f", b'{"d":"Dw=="}'),
    (logical("bytes", "decimal", precision=2, scale=5), b"\x02\x0f", b'{"d":"Dw=="}'),
    (logical("bytes", "decimal", precision="2"), b"\x02\x0f", b'{"d":"Dw=="}'),
    ({**logical("fixed", "decimal", precision=9), "name": "F", "size": 2}, b"\x00\x0f", b'{"d":"AA8="}'),
]


@pytest.mark.parametrize(("of", "data", "shown"), DECIMALS)
def test_a_decimal_that_is_not_valid_is_bytes(of: Any, data: bytes, shown: bytes) -> None:
    assert AvroText(schema_text([field("d", of)])).as_json(data) == shown


@pytest.mark.parametrize("text", ["{}", '{"type": "nothing"}', "[1]", schema_text([field("d", "int", default="x")])])
def test_a_text_that_is_no_avro_schema_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"type|redefined|Default|dict|list|record"):
        AvroText(text)
