"""Schemas in a real registry: registered once, refused with its words, kept through crashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psutil
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock.codec.avro import AvroDecoder
from penstock.codec.registry_values import RegistryValues
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.errors import IncompatibleSchema, RegistryError, SchemaNotRegistered, UnknownSchema
from penstock.model.avro import Avro
from penstock.registry import client
from penstock.registry.endpoint import find_endpoint
from penstock.registry.wire_format import header
from tests.support.avro_cases import field, schema_text
from tests.support.schema_registry import in_home_of

pytestmark = pytest.mark.integration

FIRST = schema_text([field("id", "long")])
WITH_NOTE = schema_text([field("id", "long"), field("note", "string", default="")])
TEXT_ID = schema_text([field("id", "string")])
WITHOUT_DEFAULT = schema_text([field("id", "long"), field("note", "string")])


@pytest.fixture(autouse=True)
def _registry(schema_registry: SchemaRegistryServer, tmp_path: Path) -> Iterator[None]:
    with in_home_of(schema_registry, tmp_path):
        yield


@pytest.fixture
def subject() -> str:
    return f"orders {uuid4().hex[:8]}-value"


def test_a_schema_has_one_id_however_often_it_is_registered(subject: str) -> None:
    first = client.register(subject, FIRST, "AVRO")
    assert client.register(subject, json.dumps(json.loads(FIRST), indent=4), "AVRO") == first
    assert client.registered_id(subject, FIRST, "AVRO") == first
    assert client.register(f"other {subject}", FIRST, "AVRO") == first
    second = client.register(subject, WITH_NOTE, "AVRO")
    found = client.subject_schemas(subject, "AVRO")
    assert list(found) == [first, second], "the oldest first"
    assert [json.loads(text) for text in found.values()] == [json.loads(FIRST), json.loads(WITH_NOTE)]
    assert json.loads(client.schema_of(second).text) == json.loads(WITH_NOTE)
    assert client.register(subject, FIRST, "AVRO") == first, "an earlier release may be released again"
    assert list(client.subject_schemas(subject, "AVRO")) == [first, second]


def test_a_schema_that_an_official_serialiser_has_registered_is_the_same(
    subject: str, schema_registry: SchemaRegistryServer
) -> None:
    text = json.dumps(json.loads(WITH_NOTE), indent=2)
    topic = SerializationContext(subject.removesuffix("-value"), MessageField.VALUE)
    with SchemaRegistryClient({"url": schema_registry.url}) as theirs:
        value = AvroSerializer(theirs, text)({"id": 1, "note": "x"}, topic)
        written_by = int.from_bytes(value[1:5])
        assert client.registered_id(subject, WITH_NOTE, "AVRO") == written_by
        assert client.register(subject, WITH_NOTE, "AVRO") == written_by
        assert list(client.subject_schemas(subject, "AVRO")) == [written_by]
        reordered = schema_text([field("note", "string", default=""), field("id", "long")])
        with pytest.raises(SchemaNotRegistered):
            client.registered_id(subject, reordered, "AVRO")
        ours = client.register(f"ours {subject}", FIRST, "AVRO")
        topic = SerializationContext(f"ours {topic.topic}", MessageField.VALUE)
        options = {"auto.register.schemas": False, "normalize.schemas": True}
        value = AvroSerializer(theirs, json.dumps(json.loads(FIRST), indent=2), conf=options)({"id": 1}, topic)
        assert int.from_bytes(value[1:5]) == ours


def test_a_schema_that_refers_to_others_has_no_records_that_are_read(
    subject: str, schema_registry: SchemaRegistryServer
) -> None:
    inner = json.dumps({"type": "record", "name": "demo.Inner", "fields": [field("id", "long")]})
    outer = schema_text([field("id", "long"), field("inner", "demo.Inner")])
    with SchemaRegistryClient({"url": schema_registry.url}) as theirs:
        theirs.register_schema(f"inner {subject}", Schema(inner, "AVRO"))
        needs = [SchemaReference("demo.Inner", f"inner {subject}", 1)]
        number = theirs.register_schema(subject, Schema(outer, "AVRO", needs))
    assert client.subject_schemas(subject, "AVRO") == {}
    decoder = AvroDecoder(RegistryValues(Avro(FIRST)))
    _, [reason] = decoder.decode(pa.array([header(number) + b"\x02\x02"]))
    assert reason.as_py() == (
        f"schema id {number} is no Avro schema: it refers to inner {subject} 1, and only whole schemas are read"
    )


@pytest.mark.parametrize(
    ("wrong", "said"), [(TEXT_ID, "STRING not compatible with writer type"), (WITHOUT_DEFAULT, "note")]
)
def test_an_incompatible_schema_is_refused_in_the_registry_s_words(subject: str, wrong: str, said: str) -> None:
    first = client.register(subject, FIRST, "AVRO")
    with pytest.raises(IncompatibleSchema, match="is not compatible with the registered versions") as e:
        client.register(subject, wrong, "AVRO")
    assert said in str(e.value.got)
    assert list(client.subject_schemas(subject, "AVRO")) == [first], "nothing is registered"
    with pytest.raises(SchemaNotRegistered, match="hint: release the app"):
        client.registered_id(subject, wrong, "AVRO")


def test_a_schema_is_compared_with_all_versions_without_being_registered(subject: str) -> None:
    assert client.is_compatible(subject, FIRST, "AVRO"), "there is no such subject yet"
    client.register(subject, FIRST, "AVRO")
    assert client.is_compatible(subject, WITH_NOTE, "AVRO")
    assert not client.is_compatible(subject, TEXT_ID, "AVRO")
    client.register(subject, schema_text([field("note", "string", default="")]), "AVRO")
    other = schema_text([field("id", "string", default="")])
    assert not client.is_compatible(subject, other, "AVRO"), "it does not read the first version"
    assert client.register(subject, other, "AVRO"), "and need not"


def test_a_subject_may_have_another_compatibility(subject: str) -> None:
    first = client.register(subject, FIRST, "AVRO")
    assert not client.is_compatible(subject, WITHOUT_DEFAULT, "AVRO")
    with closing(client._client(find_endpoint())) as administrator:
        administrator.set_compatibility(subject, "FORWARD")
    assert client.is_compatible(subject, WITHOUT_DEFAULT, "AVRO")
    assert list(client.subject_schemas(subject, "AVRO")) == [first]
    assert client.register(subject, WITHOUT_DEFAULT, "AVRO") != first


def test_the_other_kinds_and_what_is_no_schema(subject: str) -> None:
    shape = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
    message = 'syntax = "proto3"; message Order { int64 id = 1; }'
    ids = {client.register(f"{kind} {subject}", text, kind) for kind, text in (("JSON", shape), ("PROTOBUF", message))}
    assert len(ids) == 2
    assert [*client.subject_schemas(f"JSON {subject}", "JSON").values()] == [
        json.dumps(json.loads(shape), separators=(",", ":"))
    ]
    assert client.subject_schemas(f"JSON {subject}", "AVRO") == {}, "a subject may have had another format"
    with pytest.raises(RegistryError, match=r"refuses the schema of orders .*; got: status 422"):
        client.register(subject, '{"type": "rec', "AVRO")


def test_what_nobody_has_registered(subject: str) -> None:
    assert client.subject_schemas(subject, "AVRO") == {}
    with pytest.raises(SchemaNotRegistered, match=f"not registered under {subject}"):
        client.registered_id(subject, FIRST, "AVRO")
    with pytest.raises(UnknownSchema, match="no schema of id 2000000000"):
        client.schema_of(2_000_000_000)


@pytest.mark.long
def test_ids_survive_a_crash_and_are_known_without_the_server(
    subject: str, schema_registry: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RETRY_MS", 1)
    first = client.register(subject, FIRST, "AVRO")
    client.schema_of(first)
    schema_registry.kill()
    try:
        assert json.loads(client.schema_of(first).text) == json.loads(FIRST), "it was read before"
        for use in (
            lambda: client.subject_schemas(subject, "AVRO"),
            lambda: client.register(subject, WITH_NOTE, "AVRO"),
        ):
            with pytest.raises(RegistryError, match=r"does not answer.*hint: check that it runs"):
                use()
    finally:
        schema_registry.start()
        schema_registry.wait()
    assert list(client.subject_schemas(subject, "AVRO")) == [first]
    assert client.register(subject, WITH_NOTE, "AVRO") not in (first, 0)
    running = schema_registry.running()
    assert running
    listening = {c.laddr.ip for c in running.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1"}
