"""Encodes records in Arrow to Protobuf in the wire format of a schema registry, by ptars in batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.protobuf import handler, written_indexes
from penstock.codec.registry_values import ValueEncoder
from penstock.model.protobuf import Protobuf, is_map, type_name
from penstock.registry.wire_format import header

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor


class MessageEncoder:
    """Encodes records as messages, behind the indexes of their message, in batches.

    Args:
        schema: The schema that they are written by.
    """

    def __init__(self, schema: Protobuf) -> None:
        self._message = schema.descriptor
        self._handler = handler(self._message, "int32")
        self._indexes = pa.scalar(written_indexes(self._message))

    def encode(self, records: Any) -> Any:
        """BINARY: the values of records, without the header; NULL of NULL.

        Args:
            records: STRUCT of the schema's fields.

        Raises:
            ValueError: A field is NULL that every message has, an enum has no such name, or a number is too large.
        """
        valid = records.filter(records.is_valid())
        batch = _batch(valid, self._message, self._handler.schema(), "")
        messages = self._handler.record_batch_to_array(batch)
        joined = pc.binary_join_element_wise(self._indexes, messages, b"")
        return _spread(joined, records)


@cache
def message_encoder(schema: Protobuf) -> MessageEncoder:
    """The encoder of a schema, one in a process."""
    return MessageEncoder(schema)


@dataclass(frozen=True)
class ProtobufEncoder(ValueEncoder[Protobuf]):
    """Encodes the values of a topic, without Spark."""

    def encode_records(self, records: pa.StructArray) -> list[bytes]:
        messages, start = message_encoder(self.schema).encode(records), header(self.schema_id)
        return [start + message for message in messages.to_pylist()]


def _batch(records: Any, message: Descriptor, layout: pa.Schema, where: str) -> pa.RecordBatch:
    """Records as the columns that messages are made of."""
    for oneof in message.oneofs:
        values = [records.field(field.name).is_valid().to_numpy(zero_copy_only=False) for field in oneof.fields]
        if (np.sum(values, axis=0, dtype=np.int64) > 1).any():
            names = ", ".join(field.name for field in oneof.fields)
            raise ValueError(f"more than one field of oneof {where}{oneof.name} has a value: {names}")
    columns = [
        _column(records.field(field.name), field, layout.field(field.name).type, f"{where}{field.name}")
        for field in message.fields
    ]
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in message.fields])


def _column(array: Any, field: FieldDescriptor, want: Any, where: str) -> Any:
    """The values of a field as a type of messages."""
    if array.null_count and (field.is_repeated or not field.has_presence):
        raise ValueError(f"field {where} is NULL, which Protobuf does not have for it")
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        items = _values(array.items, value, want.item_type, f"{where}[]")
        return pa.MapArray.from_arrays(array.offsets, array.keys, items)
    if field.is_repeated:
        values = _values(array.values, field, want.value_type, f"{where}[]")
        return pa.ListArray.from_arrays(array.offsets, values)
    return _values(array, field, want, where, nullable=True)


def _values(array: Any, field: FieldDescriptor, want: Any, where: str, *, nullable: bool = False) -> Any:
    if array.null_count and not nullable:
        raise ValueError(f"field {where} is NULL, which Protobuf does not have for it")
    if type_name(field) == "ENUM":
        return _enum_numbers(array, field, where)
    if pa.types.is_struct(want):
        return _structs(array, field, want, where)
    try:
        return array.cast(want)
    except pa.ArrowInvalid as e:
        raise ValueError(f"field {where}: {e}") from e


def _structs(array: Any, field: FieldDescriptor, want: Any, where: str) -> Any:
    """Structs as those of messages; the fields of one that is NULL are not looked at."""
    batch = _batch(array.filter(array.is_valid()), field.message_type, pa.schema(list(want)), f"{where}.")
    return _spread(batch.to_struct_array(), array)


def _spread(values: Any, array: Any) -> Any:
    """Values of an array's valid rows, for all of its rows."""
    if not array.null_count:
        return values
    is_valid = array.is_valid().to_numpy(zero_copy_only=False)
    return values.take(pa.array(np.cumsum(is_valid) - 1, mask=~is_valid))


def _enum_numbers(array: Any, field: FieldDescriptor, where: str) -> Any:
    """The numbers of an enum's names; a name that is a number is of a value that the enum does not have."""
    values = field.enum_type.values_by_name
    names, numbers = pa.array([*values], pa.string()), pa.array([one.number for one in values.values()], pa.int32())
    declared: Any = numbers.take(pc.index_in(array, names))
    unknown = pc.and_(pc.is_valid(array), pc.is_null(declared))
    if not pc.any(unknown).as_py():
        return declared
    try:
        return pc.coalesce(declared, pc.if_else(unknown, array, None).cast(pa.int32()))
    except pa.ArrowInvalid as e:
        raise ValueError(f"field {where}: {field.enum_type.full_name} has no such value; {e}") from e
