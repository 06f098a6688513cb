"""Values of all formats are shown as JSON, and what is of none as it is."""

from __future__ import annotations

import pytest

from penstock.codec import formats
from penstock.errors import RegistryError
from penstock.registry import client, wire_format
from tests.support.avro_cases import CASES, python_bytes, schema_text


def test_values_are_shown_as_json_and_all_else_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    case, asked = CASES["decimal"], list[int]()

    def schema_of(number: int) -> client.WriterSchema:
        asked.append(number)
        if number == 2:
            raise RegistryError("no answer")
        return client.WriterSchema(*((schema_text(case.writer), "AVRO") if number == 1 else ("{}", "JSON")))

    monkeypatch.setattr(client, "schema_of", schema_of)
    formats._text_of.cache_clear()
    record = wire_format.header(1) + python_bytes(case)
    others = [None, b"", b"{}", record[:-1], wire_format.header(2), wire_format.header(2)]
    assert formats.readable(record) == b'{"d":"-123.456"}'
    assert formats.readable(wire_format.header(3) + b'{"a": 1}') == b'{"a": 1}'
    assert [formats.readable(value) for value in others] == others
    assert asked == [1, 3, 2]
    formats._text_of.cache_clear()
