"""Avro is shown as JSON, and what is none as it is."""

from __future__ import annotations

import pytest

from penstock.errors import RegistryError
from penstock.registry import client, readable
from tests.support.avro_cases import CASES, python_bytes, schema_text


def test_avro_is_shown_as_json_and_all_else_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    case, asked = CASES["decimal"], list[int]()

    def text(number: int) -> str:
        asked.append(number)
        if number == 2:
            raise RegistryError("no answer")
        return schema_text(case.writer)

    monkeypatch.setattr(client, "schema_text", text)
    readable._schema.cache_clear()
    record = b"\x00" + (1).to_bytes(4) + python_bytes(case)
    others = [None, b"", b"{}", record[:-1], b"\x00" + (2).to_bytes(4), b"\x00" + (2).to_bytes(4)]
    assert readable.readable(record) == b'{"d":"-123.456"}'
    assert [readable.readable(value) for value in others] == others
    assert asked == [1, 2]
    readable._schema.cache_clear()
