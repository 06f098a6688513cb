"""A view of a topic of each format: what its store holds for each type, and by what it is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.model.avro import Avro
from penstock.model.json_schema import JsonSchema
from penstock.model.registry_schema import RegistrySchema
from penstock.model.view import View
from penstock.streams import Table, Topic
from penstock.tables.topic_reader import TableDecoder
from penstock.testing.registry_values import RegistryTopics
from penstock.views.store.columns import ViewLayout
from penstock.views.store.sqlite import ViewStore
from tests.support.avro_cases import field, logical, optional, record, schema_text
from tests.support.registry_formats import protobuf
from tests.support.view_stores import found

TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
LINE = {"type": "object", "properties": {"n": INTEGER}}
# By the format: its schema, and a number of it as it is written and as the view answers it.
FORMATS: dict[str, tuple[RegistrySchema, Any, Any]] = {
    "Avro": (
        Avro(
            schema_text(
                [
                    field("shop", "string"),
                    field("amount", logical("bytes", "decimal", precision=10, scale=2)),
                    field("at", logical("long", "timestamp-millis")),
                    field("tag", optional("bytes")),
                    field("lines", {"type": "array", "items": record("Line", field("n", "int"))}),
                ]
            )
        ),
        "12.30",
        "12.30",
    ),
    "JSON Schema": (
        JsonSchema(
            json.dumps(
                {
                    "type": "object",
                    "properties": {
                        "shop": TEXT,
                        "amount": {"type": "number"},
                        "at": {**TEXT, "format": "date-time"},
                        "tag": {**TEXT, "contentEncoding": "base64"},
                        "lines": {"type": "array", "items": LINE},
                    },
                }
            )
        ),
        12.5,
        12.5,
    ),
    "Protobuf": (
        protobuf(
            "message Line { int32 n = 1; } string shop = 1; uint64 amount = 2; google.protobuf.Timestamp at = 3; "
            "optional bytes tag = 4; repeated Line lines = 5;"
        ),
        2**64 - 1,
        str(2**64 - 1),
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_answered_as_json_and_found_by_their_fields(tmp_path: Path, name: str) -> None:
    schema, amount, answered = FORMATS[name]
    sales = Topic(f"sales-{schema.kind.lower()}", compacted=True, schema=schema)
    topics = RegistryTopics({sales.name: sales})
    rest = {"at": "2026-02-03T04:05:06Z", "tag": "AP8=", "lines": [{"n": 1}]}
    values = [topics.to_bytes(sales.name, {"shop": shop, "amount": amount, **rest}) for shop in ("north", "south")]
    records = [(b"1", values[0], 0, 0), (b"2", values[1], 0, 1), (b"3", b"{}", 0, 2), (b"2", None, 0, 3)]
    with topics.in_place():
        taken = TableDecoder(Table(sales)).decode([*records], {0: 4})
    assert [row["reason"] for row in taken.bad_records.to_pylist()] == [
        "not in the wire format of a schema registry: it begins with 0x7b7d"
    ]
    store = ViewStore(ViewLayout(View("v", sales, query_by=("shop", "at"))), tmp_path / "v.db")
    store.begin("id", 1, 5, {0: 0})
    store.apply(taken.rows, {0: 4})
    store.reached(6)
    assert found(store, {"shop": "north"}) == ["1"]
    assert found(store, {"shop": "south"}) == []
    [(text,)] = store.read("SELECT value FROM rows", ())
    assert orjson.loads(text) == {
        "shop": "north", "amount": answered, **rest, "at": "2026-02-03T04:05:06.000000Z",
    }  # fmt: skip
