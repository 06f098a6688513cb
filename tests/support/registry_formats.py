"""For each format of a schema registry: orders in it, and Confluent's serialisers of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from penstock.model.avro import Avro
from penstock.model.json_schema import JsonSchema
from penstock.model.protobuf import Protobuf
from penstock.model.registry_schema import RegistrySchema
from tests.support.avro_cases import field, logical, optional, schema_text

Value = dict[str, Any]


class RegistryFormat(NamedTuple):
    """A format as the tests of streams need it.

    Attributes:
        older: The schema of an earlier version of `order`, which has other types where the format allows it.
        order: Fields `id BIGINT, shop STRING, at TIMESTAMP`.
        newer: `order` with a text `note` that may be missing.
        shop: A text `town`.
        named: `order` with `town`, which may be missing, and an integer `n`.
        at: A time, of seconds since 1970, as the serialiser wants it.
        writer: Of a registry and a schema, Confluent's serialiser, which registers the schema.
    """

    older: RegistrySchema
    order: RegistrySchema
    newer: RegistrySchema
    shop: RegistrySchema
    named: RegistrySchema
    at: Callable[[int], Any]
    writer: Callable[[SchemaRegistryClient, RegistrySchema], Any]

    def write(self, registry: SchemaRegistryClient, topic: str, schema: RegistrySchema, value: Value) -> bytes:
        written = self.writer(registry, schema)(value, SerializationContext(topic, MessageField.VALUE))
        return bytes(written or b"")


def reader(registry: SchemaRegistryClient, schema: RegistrySchema) -> Callable[[bytes | None], Value]:
    """Confluent's deserialiser: the fields of values, with None for those that are missing, and times as such."""
    deserialiser: Any
    match schema.kind:
        case "AVRO":
            deserialiser = AvroDeserializer(registry)
        case "JSON":
            deserialiser = JSONDeserializer(schema.text, schema_registry_client=registry)
        case _:
            # With a registry, it would expect a descriptor in base64 there.
            of_messages = ProtobufDeserializer(message_class(schema), {"use.deprecated.format": False})
            deserialiser = lambda value, context: _message_fields(of_messages(value, context))  # noqa: E731
    times = {field.name for field in schema.fields if field.type.kind == "timestamp"}

    def read(value: bytes | None) -> Value:
        row = deserialiser(value, SerializationContext("t", MessageField.VALUE))
        return {
            field.name: _time(row.get(field.name)) if field.name in times else row.get(field.name)
            for field in schema.fields
        }

    return read


def _message_fields(message: Any) -> Value:
    fields = message.DESCRIPTOR.fields
    return {of.name: getattr(message, of.name) for of in fields if not of.has_presence or message.HasField(of.name)}


def _time(at: Any) -> Any:
    if isinstance(at, str):
        return datetime.fromisoformat(at)
    return at.ToDatetime(UTC) if hasattr(at, "ToDatetime") else at


AT = field("at", logical("long", "timestamp-millis"))
ORDER = [field("id", "long"), field("shop", "string"), AT]
TOWN = field("town", optional("string"))


def json_schema(required: Value, optional: Value | None = None) -> JsonSchema:
    """A schema of an object without other properties, to which registries let properties be added."""
    properties = {**required, **(optional or {})}
    return JsonSchema(
        json.dumps({
            "title": "Order", "type": "object", "properties": properties, "required": [*required],
            "additionalProperties": False,
        })
    )  # fmt: skip


JSON_TEXT, JSON_INTEGER = {"type": "string"}, {"type": "integer"}
JSON_ORDER = {"id": JSON_INTEGER, "shop": JSON_TEXT, "at": {"type": "string", "format": "date-time"}}

PROTO_ORDER = "int64 id = 1; string shop = 2; google.protobuf.Timestamp at = 3;"


def protobuf(fields: str) -> Protobuf:
    text = (
        'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; '
        f"message Other {{ google.protobuf.Timestamp at = 1; }} message Order {{ {fields} }}"
    )
    return Protobuf(text, message="Order")


def message_class(schema: RegistrySchema) -> Any:
    assert isinstance(schema, Protobuf)
    return GetMessageClass(schema.descriptor)


def protobuf_writer(registry: SchemaRegistryClient, schema: RegistrySchema) -> Any:
    of, version = message_class(schema), sha256(schema.text.encode()).hexdigest()[:8]
    # The serialiser registers a descriptor in base64, of which Apicurio takes no second version.
    config = {"use.deprecated.format": False, "subject.name.strategy": lambda context, _: f"{context.topic}-{version}"}
    serialiser = ProtobufSerializer(of, registry, config)
    return lambda value, context: serialiser(ParseDict(value, of()), context)


FORMATS = {
    "Avro": RegistryFormat(
        older=Avro(schema_text([field("id", "int"), field("shop", "string"), AT])),
        order=Avro(schema_text(ORDER)),
        newer=Avro(schema_text([*ORDER, field("note", optional("string"), default=None)])),
        shop=Avro(schema_text([field("town", "string")])),
        named=Avro(schema_text([*ORDER, TOWN, field("n", "int")])),
        at=lambda seconds: seconds * 1000,
        writer=lambda registry, schema: AvroSerializer(registry, schema.text),
    ),
    "JSON Schema": RegistryFormat(
        older=json_schema({**JSON_ORDER, "shop": {"type": "string", "minLength": 1}}),
        order=json_schema(JSON_ORDER),
        newer=json_schema(JSON_ORDER, {"note": JSON_TEXT}),
        shop=json_schema({"town": JSON_TEXT}),
        named=json_schema({**JSON_ORDER, "town": {"type": ["string", "null"]}, "n": JSON_INTEGER}),
        at=lambda seconds: datetime.fromtimestamp(seconds, UTC).isoformat(),
        writer=lambda registry, schema: JSONSerializer(schema.text, registry),
    ),
    # The message is not the first of its file, so its index is written.
    "Protobuf": RegistryFormat(
        older=protobuf(PROTO_ORDER.replace("int64", "int32")),
        order=protobuf(PROTO_ORDER),
        newer=protobuf(f"{PROTO_ORDER} optional string note = 9;"),
        shop=protobuf("string town = 1;"),
        named=protobuf(f"{PROTO_ORDER} optional string town = 4; int32 n = 5;"),
        at=lambda seconds: datetime.fromtimestamp(seconds, UTC).isoformat(),
        writer=protobuf_writer,
    ),
}  # fmt: skip
