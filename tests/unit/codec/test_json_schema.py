"""JSON behind the header of a schema registry: records, and what is none, with the reason."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.codec.columnar import BAD_COLUMN, SOURCE_RECORD_COLUMN, RecordDecoder
from penstock.codec.registry_values import RegistryValues
from penstock.errors import RegistryError, UnknownSchema
from penstock.model.json_schema import JsonSchema
from penstock.registry import client
from penstock.registry.client import WriterSchema
from penstock.registry.wire_format import header

INNER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SCHEMA = JsonSchema(
    json.dumps({
        "type": "object",
        "properties": {"id": {"type": "integer"}, "l": {"type": "array", "items": INNER}, "s": {"type": "string"}},
        "required": ["id"],
    })
)  # fmt: skip


@pytest.fixture(autouse=True)
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids that were looked up: 1 is not, as it is known; 2 is JSON, 3 Avro, 4 none, 5 without an answer."""
    seen: list[int] = []

    def schema_of(number: int, _: object) -> WriterSchema:
        seen.append(number)
        if number == 4:
            raise UnknownSchema("no such id")
        if number == 5:
            raise RegistryError("no answer")
        return WriterSchema("{}", "JSON" if number == 2 else "AVRO")

    monkeypatch.setattr(client, "schema_of", schema_of)
    return seen


def decoded(*values: bytes | None) -> list[dict[str, Any]]:
    decoder = RecordDecoder(
        "t", "a test", SCHEMA.ddl, "", None, keep_records=True, registry=RegistryValues(SCHEMA, ((1, SCHEMA.text),))
    )
    columns: dict[str, pa.Array[Any]] = {
        "key": pa.nulls(len(values), pa.binary()), "value": pa.array(values, pa.binary()),
        "partition": pa.array([0] * len(values), pa.int32()), "offset": pa.array(range(len(values)), pa.int64()),
        "clock": pa.nulls(len(values), pa.int64()),
    }  # fmt: skip
    rows = pa.Table.from_batches(decoder(iter(pa.table(columns).to_batches()))).to_pylist()
    return sorted(rows, key=lambda row: int(row[SOURCE_RECORD_COLUMN]["offset"]))


def test_records_are_read_by_name_whatever_version_wrote_them(lookups: list[int]) -> None:
    rows = decoded(
        header(1) + b'{"id": 1, "l": [{"n": 1}, null]}', header(2) + b'{"more": {}, "s": "x", "id": 2}',
        header(2) + b'{"id": 3, "s": null}',
    )  # fmt: skip
    assert [(row["id"], row["l"], row["s"], row[BAD_COLUMN]) for row in rows] == [
        (1, [{"n": 1}, None], None, False), (2, None, "x", False), (3, None, None, False),
    ]  # fmt: skip
    assert lookups == [2]


def test_what_is_no_record_has_a_reason() -> None:
    wrong = {
        header(1) + b'{"id": "1"}': "field id is no bigint: 1",
        header(1) + b'{"id": 1.5}': "field id is no bigint: 1.5",
        header(1) + b"{}": "field id is missing or null",
        header(1) + b'{"id": 1, "l": [{}]}': "field l is no array<struct<n:bigint>>: [{}]",
        header(1): "not valid JSON: ",
        header(1) + b"\xff": "not valid UTF-8",
        header(3) + b'{"id": 1}': "schema id 3 is no JsonSchema schema: it is AVRO",
        header(4) + b'{"id": 1}': "schema id 4 is not in the registry",
        b'{"id": 1}': "not in the wire format of a schema registry: it begins with 0x7b22696422",
        b"\x00\x00": "not in the wire format of a schema registry: it begins with 0x0000",
        b"": "not in the wire format of a schema registry: it is empty",
    }
    rows = decoded(*wrong, None)
    assert [row[SOURCE_RECORD_COLUMN]["reason"] for row in rows] == [*wrong.values(), "the record has no value"]
    with pytest.raises(RegistryError):
        decoded(header(5) + b"{}")
