"""Values in the wire format of a schema registry as JSON, for people."""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from io import BytesIO
from typing import Any

import orjson

from penstock.errors import PenstockError, optional_packages
from penstock.registry import client
from penstock.registry.wire_format import HEADER_BYTES, schema_id


def readable(value: bytes | None) -> bytes | None:
    """A value as JSON, by the schema of its writer; as it is, if it is not Avro of a schema that the registry has.

    Args:
        value: The value of a record.
    """
    number = None if value is None else schema_id(value)
    if value is None or number is None:
        return value
    schema = _schema(number)
    if schema is None:
        return value
    from fastavro import schemaless_reader

    stream = BytesIO(value)
    stream.seek(HEADER_BYTES)
    try:
        return orjson.dumps(schemaless_reader(stream, schema, None), default=_text)
    except Exception:
        return value


@cache
def _schema(number: int) -> Any:
    """The parsed schema of an id; None if there is none, or it is not Avro. The registry is asked once."""
    with optional_packages():
        from fastavro import parse_schema
    try:
        return parse_schema(json.loads(client.schema_text(number)))
    except (PenstockError, ValueError, TypeError, KeyError):
        return None


def _text(value: Any) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)
