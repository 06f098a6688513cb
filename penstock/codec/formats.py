"""The formats of values that a schema registry knows: what decodes each, and shows it to people."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from time import monotonic
from typing import NamedTuple

from penstock.codec.avro import AvroDecoder, AvroText
from penstock.codec.json_schema import JsonSchemaDecoder, JsonText
from penstock.codec.protobuf import ProtobufDecoder, ProtobufText
from penstock.codec.registry_values import RegistryValues, ValueDecoder, ValueText
from penstock.errors import PenstockError
from penstock.registry import client
from penstock.registry.wire_format import HEADER_BYTES, schema_id

ASK_AGAIN = 60.0
"""Seconds after which a schema that could not be read is asked for again."""


class ValueFormat(NamedTuple):
    """A format of values.

    Attributes:
        decoder: Decodes the values of a topic.
        text: Shows values of a writer's schema, which it is given as text, as JSON.
    """

    decoder: Callable[[RegistryValues], ValueDecoder]
    text: Callable[[str], ValueText]


FORMATS = {
    "AVRO": ValueFormat(AvroDecoder, AvroText),
    "JSON": ValueFormat(JsonSchemaDecoder, JsonText),
    "PROTOBUF": ValueFormat(ProtobufDecoder, ProtobufText),
}


def value_decoder(values: RegistryValues) -> ValueDecoder:
    """The decoder of a topic's values."""
    return FORMATS[values.schema.kind].decoder(values)


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
        text, kind = client.schema_of(number)
        return FORMATS[kind].text(text)
    except (PenstockError, ValueError, TypeError, KeyError):
        return None
