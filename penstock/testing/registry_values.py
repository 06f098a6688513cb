"""Values of topics whose schemas a registry keeps, as fields; ids are those of a table, and no registry is asked."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.codec.arrow_types import arrow_type
from penstock.codec.avro import NOT_FINITE
from penstock.codec.avro_encoder import AvroEncoder
from penstock.codec.formats import FORMATS
from penstock.codec.protobuf import written_indexes
from penstock.errors import DeclarationError
from penstock.model.avro import Avro, AvroType
from penstock.model.protobuf import Protobuf
from penstock.model.topic import Topic
from penstock.registry.endpoint import RegistryEndpoint, in_place_of_settings
from penstock.registry.wire_format import HEADER_BYTES, header, schema_id
from penstock.testing.strict_yaml import epoch_ms


class RegistryTopics:
    """The topics of a project whose schemas a registry keeps.

    Args:
        topics: All topics, by name.

    Attributes:
        endpoint: The schemas by their ids, in the place of a registry.
    """

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        declared = {name: topic.registry_schema for name, topic in sorted(topics.items())}
        self._schemas = {name: schema for name, schema in declared.items() if schema}
        self._ids = {name: number for number, name in enumerate(self._schemas, 1)}
        table = ((schema.subject_of(name), schema.text, schema.kind) for name, schema in self._schemas.items())
        self.endpoint = RegistryEndpoint("", table=tuple(table))
        self._texts = {
            self._ids[name]: FORMATS[schema.kind].text(schema.text) for name, schema in self._schemas.items()
        }

    def in_place(self) -> AbstractContextManager[None]:
        """Let this process find them in the place of a registry; if there are none, that of the settings remains."""
        return in_place_of_settings(self.endpoint) if self._schemas else nullcontext()

    def to_bytes(self, topic: str, value: Any, label: str = "") -> bytes | None:
        """A value as a record has it: a mapping by the topic's schema; None for any other, which is sent as text.

        Args:
            topic: The topic.
            value: The value.
            label: What a message calls the place of the value.

        Raises:
            DeclarationError: The fields do not fit the schema.
        """
        try:
            return self._to_bytes(topic, value)
        except DeclarationError as e:
            if label:
                e.restate(f"{label}: {e.what}")
            raise

    def _to_bytes(self, topic: str, value: Any) -> bytes | None:
        schema = self._schemas.get(topic)
        if schema is None or not isinstance(value, Mapping):
            return None
        if unknown := [name for name in value if name not in {field.name for field in schema.fields}]:
            raise _no_fit(
                ", ".join(map(str, unknown)), f"the fields are {', '.join(field.name for field in schema.fields)}"
            )
        if isinstance(schema, Avro):
            return _avro(schema, self._ids[topic], value)
        if isinstance(schema, Protobuf):
            return _protobuf(schema, self._ids[topic], value)
        return header(self._ids[topic]) + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def text(self, value: bytes | None) -> str | None:
        """A value as JSON, if it is of one of the topics; else its text."""
        text = self._texts.get(schema_id(value) or 0) if value else None
        if value and text:
            with suppress(Exception):
                value = text.as_json(value[HEADER_BYTES:])
        return None if value is None else value.decode(errors="replace")

    def expected(self, value: Any, topics: Sequence[str], label: str = "") -> str | None:
        """What `text` says of a value that is expected.

        Args:
            value: A mapping of fields, or a value as in other topics.
            topics: The topics of which it may be.
            label: As for `to_bytes`.

        Raises:
            DeclarationError: The fields do not fit the schema.
        """
        if isinstance(value, Mapping):
            for topic in topics:
                schema = self._schemas.get(topic)
                if schema and {field.name for field in schema.fields}.issuperset(value):
                    return self.text(self.to_bytes(topic, value, label))
        if value is None or isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _avro(schema: Avro, number: int, fields: Mapping[str, Any]) -> bytes:
    """A record as Avro in the wire format."""
    columns: dict[str, pa.Array[Any]] = {}
    for name, of in schema.record.fields:
        try:
            columns[name] = pa.array([_value(fields.get(name), of)], arrow_type(of.type))
        except (ValueError, TypeError, ArithmeticError, OverflowError, pa.ArrowException) as e:
            raise _no_fit(f"{name}: {fields.get(name)!r} ({e})", f"it is {of.logical or of.name}") from e
    [value], reasons = AvroEncoder(schema, number).encode(columns)
    if value is None:
        raise _no_fit(reasons[0], "give it a value of its type")
    return value


def _protobuf(schema: Protobuf, number: int, fields: Mapping[str, Any]) -> bytes:
    """A message of Protobuf's JSON in the wire format."""
    from google.protobuf.json_format import ParseDict, ParseError
    from google.protobuf.message_factory import GetMessageClass

    message = GetMessageClass(schema.descriptor)()
    try:
        ParseDict(fields, message)
    except ParseError as e:
        raise _no_fit(str(e), "see https://protobuf.dev/programming-guides/json") from e
    return header(number) + written_indexes(schema.descriptor) + bytes(message.SerializeToString(deterministic=True))


def _no_fit(got: str, hint: str) -> DeclarationError:
    return DeclarationError("a value does not fit the schema of its topic", got=got, hint=hint)


def _value(value: Any, of: AvroType) -> Any:
    """A value of JSON as its type; ValueError, or what the type raises, if it is none."""
    if value is None:
        return None
    if of.name in ("record", "map") and not isinstance(value, Mapping):
        raise ValueError("it has no fields")
    if of.name in ("int", "long") and isinstance(value, float) and not value.is_integer():
        # Arrow would leave out the fraction.
        raise ValueError("it is no whole number")
    if of.name == "record":
        names = [name for name, _ in of.fields]
        if unknown := [name for name in value if name not in names]:
            raise ValueError(f"no fields {', '.join(map(str, unknown))}")
        return {name: _value(value.get(name), inner) for name, inner in of.fields}
    if of.element:
        if of.name == "map":
            return {key: _value(one, of.element) for key, one in value.items()}
        if not isinstance(value, list):
            # Arrow would make a list of a text's characters.
            raise ValueError("it is no list")
        return [_value(one, of.element) for one in value]
    match of.type.kind:
        case "timestamp" if isinstance(value, str):
            at = datetime.fromisoformat(value)
            return at if at.tzinfo else at.replace(tzinfo=UTC)
        case "timestamp":
            return epoch_ms(value) * 1000
        case "date":
            return date.fromisoformat(value)
        case "decimal":
            return Decimal(str(value))
        case "binary":
            return b64decode(value, validate=True)
        case "float" | "double" if value in NOT_FINITE.values():
            return float(value)
    return value
