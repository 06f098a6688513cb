"""A capture of a real MariaDB writes each format: Confluent's deserialiser reads from the topic what the table has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from penstock.capture.output.encode import EncodingError
from penstock.capture.polling.poller import Poller
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.errors import PenstockError, SchemaNotRegistered
from penstock.model.avro import Avro
from penstock.model.json_schema import JsonSchema
from penstock.model.protobuf import Protobuf
from penstock.model.registry_schema import RegistrySchema
from penstock.model.topic import DEAD_LETTERS
from penstock.registry import client
from penstock.settings import settings
from penstock.testing import read
from tests.support.avro_cases import field, logical, optional, schema_text
from tests.support.captures import Source, polled, until
from tests.support.long_cases import quick
from tests.support.registry_formats import reader
from tests.support.schema_registry import close_clients

pytestmark = pytest.mark.integration

FIELDS = [
    field("id", "long"), field("name", optional("string")), field("gone", "boolean"),
    field("changed", optional(logical("long", "timestamp-micros"))),
]  # fmt: skip
PROTO = """syntax = "proto3"; import "google/protobuf/timestamp.proto"; message Other {{ int32 x = 1; }}
message Row {{ int64 id = 1; {name} name = 2; bool gone = 3; google.protobuf.Timestamp changed = 4; }}"""
Rows = dict[int, str | None]


def json_text(name: Any) -> str:
    of: dict[str, Any] = {"id": "integer", "name": name, "gone": "boolean", "changed": "string"}
    properties = {key: {"type": kind} for key, kind in of.items()}
    properties["changed"]["format"] = "date-time"
    return json.dumps({"title": "Row", "type": "object", "properties": properties, "required": ["id", "name", "gone"]})


class CaptureFormat(NamedTuple):
    """A format as captures declare it.

    Attributes:
        file: The file of its schema.
        clause: What stands behind the topic.
        schema: Of a capture's rows, with a name that may be NULL.
        strict: The same with a name that may not.
        reason: Why a row without a name has no value.
    """

    file: str
    clause: str
    schema: RegistrySchema
    strict: RegistrySchema
    reason: str


AVRO = CaptureFormat(
    "rows.avsc", "AS AVRO 'rows.avsc'", Avro(schema_text(FIELDS)),
    Avro(schema_text([FIELDS[0], field("name", "string"), *FIELDS[2:]])), "field name is NULL, and no union with null",
)  # fmt: skip
FORMATS = {
    "Avro": AVRO,
    "JSON Schema": CaptureFormat(
        "rows.json", "AS JSON SCHEMA 'rows.json'", JsonSchema(json_text(["string", "null"])),
        JsonSchema(json_text("string")), "field name is NULL, which its JSON Schema does not allow",
    ),
    "Protobuf": CaptureFormat(
        "rows.proto", "AS PROTOBUF 'rows.proto' MESSAGE Row",
        Protobuf(PROTO.format(name="optional string"), message="Row"),
        Protobuf(PROTO.format(name="string"), message="Row"), "field name is NULL, which Protobuf does not have for it",
    ),
}  # fmt: skip


@pytest.fixture
def registered_source(
    source: Source, schema_registry: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Source]:
    monkeypatch.setenv("PENSTOCK_SCHEMA_REGISTRY_URL", schema_registry.url)
    settings.cache_clear()
    yield source
    close_clients()


def declared(source: Source, schema: RegistrySchema = AVRO.schema) -> str:
    """The capture's declaration, with the file of its schema."""
    [form] = [one for one in FORMATS.values() if one.schema.kind == schema.kind]
    (source.folder / form.file).write_text(schema.text)
    return source.declared().replace(" FROM mysql", f" {form.clause} FROM mysql", 1)


def register(source: Source, schema: RegistrySchema = AVRO.schema) -> None:
    client.register(f"{source.name}-value", schema.text, schema.kind)


def in_topic(source: Source, schema: RegistrySchema = AVRO.schema) -> Rows:
    """The names of the newest rows, by id; each value has to be of the schema's format and of the registry."""
    newest: dict[int, bytes | None] = {}
    for record in read(source.broker.bootstrap, source.name):
        newest[int(str(record.key).removeprefix('{"id":').removesuffix("}"))] = record.value_bytes
    with closing(SchemaRegistryClient({"url": os.environ["PENSTOCK_SCHEMA_REGISTRY_URL"]})) as registry:
        read_value = reader(registry, schema)
        rows: dict[int, Any] = {key: read_value(value) for key, value in newest.items() if value is not None}
    changed = dict(source.rows(f"SELECT id, changed FROM {source.name}"))
    assert all(row["id"] == key and row["changed"].replace(tzinfo=None) == changed[key] for key, row in rows.items())
    return {key: row["name"] for key, row in rows.items()}


def in_table(source: Source) -> Rows:
    return dict(source.rows(f"SELECT id, name FROM {source.name} WHERE NOT gone"))


def is_compared(poller: Poller) -> bool:
    return not poller.position.reconcile


@pytest.mark.parametrize("name", quick(FORMATS, "Avro"))
def test_snapshot_polls_deletes_and_reconcile(
    registered_source: Source, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source, schema = registered_source, FORMATS[name].schema
    monkeypatch.setattr("penstock.capture.snapshot.snapshot.SnapshotRun.LARGE", 100)
    monkeypatch.setattr("penstock.capture.session.CaptureSession.PAGE", 50)
    monkeypatch.setenv("PENSTOCK_SNAPSHOT_READERS", "2")
    settings.cache_clear()
    source.sql(f"INSERT INTO {source.name} (name, gone) SELECT NULLIF(seq, 7), seq % 10 = 0 FROM seq_1_to_200")
    text = declared(source, schema)
    with pytest.raises(SchemaNotRegistered, match="penstock streams release"):
        source.opened(text)
    assert client.subject_schemas(f"{source.name}-value", schema.kind) == {}
    register(source, schema)
    poller = source.opened(text)
    polled(poller)
    assert in_topic(source, schema) == in_table(source)
    assert len(in_topic(source, schema)) == 180
    source.sql(
        f"UPDATE {source.name} SET name = 'other' WHERE id % 9 = 0",
        f"UPDATE {source.name} SET gone = 1 WHERE id = 1",
        f"DELETE FROM {source.name} WHERE id = 2",
        f"INSERT INTO {source.name} (id, name) VALUES (1000, 'Zoë')",
    )
    poller.compare("asked for")
    until(poller, partial(is_compared, poller), "table and topic are compared")
    polled(poller, 2)
    assert in_topic(source, schema) == in_table(source)
    assert poller.position.last_reconcile.extra == 1
    written = poller.metrics.written
    poller.compare("asked for")
    until(poller, partial(is_compared, poller), "nothing differs")
    assert poller.metrics.written == written


def test_all_rows_are_written_again_by_another_schema(registered_source: Source) -> None:
    source = registered_source
    source.sql(f"INSERT INTO {source.name} (name) SELECT seq FROM seq_1_to_20")
    poller = source.poller()
    polled(poller)
    source.close(poller)
    # The first one after JSON, the second one after Avro.
    with_default = [*FIELDS[:1], field("name", optional("string"), default=None), *FIELDS[2:]]
    for schema in (AVRO.schema, Avro(schema_text(with_default))):
        register(source, schema)
        poller = source.opened(declared(source, schema))
        until(poller, partial(is_compared, poller), "all rows are written again")
        assert in_topic(source) == in_table(source)
        assert poller.metrics.written == 20
        assert poller.position.last_reconcile.explained
        source.close(poller)


def test_a_column_that_does_not_fit_is_refused_before_anything_is_written(registered_source: Source) -> None:
    source = registered_source
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b')")
    schema = Avro(schema_text([FIELDS[0], field("name", optional("int")), *FIELDS[2:]]))
    register(source, schema)
    poller = source.opened(declared(source, schema))
    with pytest.raises(EncodingError, match="column name has a type that its Avro field cannot have; got: str for int"):
        polled(poller)
    source.close(poller)
    fewer = Avro(schema_text(FIELDS[:3]))
    client.register("fewer", fewer.text, fewer.kind)
    text = declared(source, fewer).replace("'rows.avsc'", "'rows.avsc' SUBJECT fewer")
    with pytest.raises(PenstockError, match="column changed is no field"):
        polled(source.opened(text, "snapshot"))
    assert read(source.broker.bootstrap, source.name) == []


@pytest.mark.parametrize("name", quick(FORMATS, "Protobuf"))
def test_a_value_that_does_not_fit_is_a_dead_letter(registered_source: Source, name: str) -> None:
    source, schema = registered_source, FORMATS[name].strict
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), (NULL), ('c')")
    register(source, schema)
    poller = source.opened(declared(source, schema))
    polled(poller)
    assert in_topic(source, schema) == {1: "a", 3: "c"}
    assert (len(poller.session.oversized), poller.metrics.dead_letters) == (1, 1)
    letters = [one for one in read(source.broker.bootstrap, DEAD_LETTERS.name) if one.key == '{"id":2}']
    assert [dict(one.headers)["penstock.reason"] for one in letters if source.name in str(one.headers)] == [
        FORMATS[name].reason
    ]
    source.sql(f"UPDATE {source.name} SET name = 'b' WHERE id = 2")
    polled(poller, 2)
    assert in_topic(source, schema) == in_table(source)
    assert len(poller.session.oversized) == 0
