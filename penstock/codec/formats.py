"""The formats of values that a schema registry knows: what decodes, encodes and shows each."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from time import monotonic
from typing import Any, NamedTuple

from penstock.codec.avro import AvroDecoder, AvroText
from penstock.codec.avro_encoder import AvroEncoder
from penstock.codec.json_schema import JsonSchemaDecoder, JsonText
from penstock.codec.json_schema_encoder import JsonSchemaEncoder
from penstock.codec.protobuf import ProtobufDecoder, ProtobufText
from penstock.codec.protobuf_encoder import ProtobufEncoder
from penstock.codec.registry_values import RegistryValues, ValueDecoder, ValueEncoder, ValueText
from penstock.errors import PenstockError
from penstock.model.registry_schema import RegistrySchema
from penstock.registry import client
from penstock.registry.client import WriterSchema
from penstock.registry.wire_format import HEADER_BYTES, schema_id

ASK_AGAIN = 60.0
"""Seconds after which a schema that could not be read is asked for again."""


class ValueFormat(NamedTuple):
    """A format of values.

    Attributes:
        decoder: Decodes the values of a topic.
        encoder: Encodes the values of a topic, without Spark, by a schema of this format and its id.
        text: Shows values of a writer's schema, which it is given as text, as JSON.
    """

    decoder: Callable[[RegistryValues], ValueDecoder]
    encoder: Callable[[Any, int], ValueEncoder[Any]]
    text: Callable[[str], ValueText]


FORMATS = {
    "AVRO": ValueFormat(AvroDecoder, AvroEncoder, AvroText),
    "JSON": ValueFormat(JsonSchemaDecoder, JsonSchemaEncoder, JsonText),
    "PROTOBUF": ValueFormat(ProtobufDecoder, ProtobufEncoder, ProtobufText),
}


def value_decoder(values: RegistryValues) -> ValueDecoder:
    """The decoder of a topic's values."""
    return FORMATS[values.schema.kind].decoder(values)


def value_encoder(schema: RegistrySchema, schema_id: int) -> ValueEncoder[Any]:
    """The encoder of a topic's values, without Spark.

    Args:
        schema: The schema that writes.
        schema_id: Its id in the registry.
    """
    return FORMATS[schema.kind].encoder(schema, schema_id)


def readable(value: bytes | None) -> bytes | None:
    """A value as JSON, by the schema of its writer; as it is, if it is not of a schema that the registry has.

    Args:
        value: The value of a record.
    """
    number = None if value is None else schema_id(value)
    text = None if number is None else _text_of(number, int(monotonic() // ASK_AGAIN))
    if value is None or text is None:
        return value
    try:
        return text.as_json(value[HEADER_BYTES:])
    except Exception:
        return value


@lru_cache(maxsize=1000)
def _text_of(number: int, _: int) -> ValueText | None:
    """What shows the values of a schema; None if it cannot be read now, or is not of these formats.

    Args:
        number: The id of the schema.
        _: The number of the interval of ASK_AGAIN seconds, in which it is asked for once.
    """
    try:
        return writer_text(client.schema_of(number))
    except (PenstockError, ValueError):
        return None


def writer_text(writer: WriterSchema) -> ValueText | None:
    """What shows the values of a writer's schema; None if it is of another format.

    Raises:
        ValueError: It is no schema of its format.
    """
    try:
        return FORMATS[writer.kind].text(writer.text) if writer.kind in FORMATS else None
    except (PenstockError, ValueError, TypeError, KeyError) as e:
        raise ValueError("no schema that can be read") from e
