"""Schemas of topics in Protobuf, read without a registry and without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from penstock.errors import DeclarationError
from penstock.model.proto_file import WELL_KNOWN, message_at, proto_file
from penstock.model.registry_schema import RegistrySchema
from penstock.model.types import Field, FieldForm, Type

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

UINT64 = Type("decimal", precision=20)
# By the names that protoc gives types.
PLAIN = {
    "DOUBLE": Type("double"), "FLOAT": Type("float"), "INT64": Type("bigint"), "UINT64": UINT64, "INT32": Type("int"),
    "FIXED64": UINT64, "FIXED32": Type("bigint"), "BOOL": Type("boolean"), "STRING": Type("string"),
    "BYTES": Type("binary"), "UINT32": Type("bigint"), "ENUM": Type("string"), "SFIXED32": Type("int"),
    "SFIXED64": Type("bigint"), "SINT32": Type("int"), "SINT64": Type("bigint"),
}  # fmt: skip
# Well-known messages that are one value. A duration is a number of microseconds.
VALUES = {
    "Timestamp": Type("timestamp"), "Duration": Type("bigint"), "DoubleValue": Type("double"),
    "FloatValue": Type("float"), "Int64Value": Type("bigint"), "UInt64Value": UINT64, "Int32Value": Type("int"),
    "UInt32Value": Type("bigint"), "BoolValue": Type("boolean"), "StringValue": Type("string"),
    "BytesValue": Type("binary"),
}  # fmt: skip
TAKE_OUT = "take the field out of the schema that is read"


@dataclass(frozen=True)
class Protobuf(RegistrySchema):
    """The values of a topic are Protobuf in the wire format of a schema registry.

    The schema's id is followed by the indexes of the message in its file. Fields are read by their numbers, whatever
    version of the subject wrote them.

    Attributes:
        text: The text of a `.proto` file, which imports nothing but `google/protobuf/*.proto`.
        subject: Its name in the registry; empty for `<topic>-value`.
        message: The message that values are, with or without its package; empty for the first one.
    """

    message: str = ""
    kind: ClassVar[str] = "PROTOBUF"

    def __post_init__(self) -> None:
        self.fields  # noqa: B018

    @classmethod
    def read(cls, path: Path, subject: str = "", message: str = "") -> Self:
        """The schema in a `.proto` file.

        Args:
            path: The file.
            subject: Its name in the registry; empty for `<topic>-value`.
            message: The message that values are; empty for the first one.

        Raises:
            DeclarationError: The file cannot be read, is no `.proto` file, lacks the message, or has a type that is not
                read.
        """
        return cls(cls.read_text(path), subject, message)

    @property
    def descriptor(self) -> Descriptor:
        """The message that values are.

        Raises:
            DeclarationError: The text is no `.proto` file, or has no such message.
        """
        return _message(self.text, self.message)

    @property
    def fields(self) -> tuple[Field, ...]:
        return _fields_of(self.text, self.message)


PACKAGE = WELL_KNOWN.replace("/", ".")


def type_name(field: FieldDescriptor) -> str:
    """What protoc calls the type of a field: `INT64`, `MESSAGE`, ..."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_")


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def value_type(field: FieldDescriptor) -> Type | None:
    """The type of a field that is one value, or of each value of a repeated one; None of another message."""
    if not field.message_type:
        return PLAIN.get(type_name(field))
    name = field.message_type.full_name
    return VALUES.get(name.removeprefix(PACKAGE)) if name.startswith(PACKAGE) else None


@cache
def _message(text: str, name: str) -> Descriptor:
    try:
        file = proto_file(text)
    except ValueError as e:
        hint = "correct it; it imports nothing but google/protobuf/*.proto, so move other messages into it"
        raise DeclarationError("this is no .proto file", got=str(e), hint=hint) from e
    if not name:
        if first := message_at(file, (0,)):
            return first
        raise DeclarationError("a .proto file has no message", got=text[:200], hint="declare one")
    full = name if not file.package or name.startswith(f"{file.package}.") else f"{file.package}.{name}"
    messages = [*file.message_types_by_name.values()]
    for message in messages:
        if message.full_name == full:
            return message
        messages += message.nested_types
    raise DeclarationError(
        "a .proto file has no such message", got=name, hint=f"take one of: {', '.join(m.full_name for m in messages)}"
    )


@cache
def _fields_of(text: str, name: str) -> tuple[Field, ...]:
    return _fields(_message(text, name), "", ())


def _fields(message: Descriptor, where: str, within: tuple[str, ...]) -> tuple[Field, ...]:
    name = message.full_name
    if name in within:
        raise _not_read(where, f"{name} within itself", TAKE_OUT)
    if name.startswith(PACKAGE) or not message.fields:
        raise _not_read(where, f"{name}, which has no fields of its own" if message.fields else name, TAKE_OUT)
    return tuple(_field(one, f"{where}.{one.name}".lstrip("."), (*within, name)) for one in message.fields)


def _field(field: FieldDescriptor, where: str, within: tuple[str, ...]) -> Field:
    if field.is_required:
        raise _not_read(where, "required", "declare it optional, which is the same on the wire")
    if field.has_default_value:
        raise _not_read(where, "a default", "take the default out: a field that is missing is NULL")
    if is_map(field):
        key, value = field.message_type.fields
        if type_name(key) != "STRING":
            raise _not_read(where, f"a map with keys of {type_name(key).lower()}", TAKE_OUT)
        return Field(field.name, Type("map", _type(value, f"{where}[]", within)), required=True, form=_form(field))
    of = _type(field, where, within)
    if field.is_repeated:
        return Field(field.name, Type("array", of), required=True, form=_form(field))
    return Field(field.name, of, required=not field.has_presence, form=_form(field))


def _form(field: FieldDescriptor) -> FieldForm:
    name = field.message_type.full_name if field.message_type else type_name(field).lower()
    texts = ("string", "bytes", f"{PACKAGE}StringValue", f"{PACKAGE}BytesValue")
    return FieldForm(name, not field.is_repeated and name in texts)


def _type(field: FieldDescriptor, where: str, within: tuple[str, ...]) -> Type:
    if (of := value_type(field)) is not None:
        return of
    if type_name(field) != "MESSAGE":
        raise _not_read(where, type_name(field).lower(), TAKE_OUT)
    return Type("struct", fields=_fields(field.message_type, where, within))


def _not_read(where: str, got: str, hint: str) -> DeclarationError:
    what: Any = where or "the message"
    return DeclarationError(f"Protobuf: field {what} has a type that is not read", got=got, hint=hint)
