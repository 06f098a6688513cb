"""Decodes Protobuf in the wire format of a schema registry to Arrow, by ptars in batches.

Behind the schema's id are the indexes of the message in its file: their number and each of them as zigzag varints; or
one zero byte for the first message.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.arrow_types import arrow_type
from penstock.codec.registry_values import (
    ERROR,
    MAX_VALUE_BYTES,
    PARSED,
    Column,
    RegistryValues,
    ValueDecoder,
    WriterSchemas,
    one_array,
)
from penstock.errors import optional_packages
from penstock.model.proto_file import indexes_of, message_at, proto_file
from penstock.model.protobuf import Protobuf, is_map, value_type
from penstock.model.types import Type
from penstock.registry.wire_format import HEADER_BYTES, schema_id

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

MAX_DEPTH = 16
"""Messages around a message."""


class MessageIndexes(NamedTuple):
    """The indexes of a message in its file, and how many bytes they take."""

    path: tuple[int, ...]
    size: int


def read_indexes(data: bytes) -> MessageIndexes | int:
    """The indexes of a message.

    Args:
        data: The bytes behind the schema's id, or the first of them.

    Returns:
        The indexes; or, if bytes are missing, at least how many there must be.

    Raises:
        ValueError: These are none.
    """
    numbers: list[int] = []
    at = number = shift = 0
    count: int | None = None
    while count is None or len(numbers) < count:
        if at == len(data):
            return at + (1 if count is None else count - len(numbers))
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] & 0x80:
            if shift > 28:
                raise ValueError("the indexes of its message are broken")
            continue
        value = number >> 1 ^ -(number & 1)
        number = shift = 0
        if count is not None:
            numbers.append(value)
        elif not 0 <= value <= MAX_DEPTH:
            raise ValueError("the indexes of its message are broken")
        else:
            count = value
    return MessageIndexes(tuple(numbers) or (0,), at)


def written_indexes(message: Descriptor) -> bytes:
    """The indexes of a message as bytes."""
    path = indexes_of(message)
    if path == (0,):
        return b"\x00"
    return b"".join(map(_zigzag, (len(path), *path)))


def _zigzag(number: int) -> bytes:
    number, data = number << 1, b""
    while number > 0x7F:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


# Least and greatest microseconds, as timestamp.proto and duration.proto of Protobuf say.
TIME_RANGES = {
    "google.protobuf.Timestamp": (-62_135_596_800_000_000, 253_402_300_799_999_999),
    "google.protobuf.Duration": (-315_576_000_000_000_000, 315_576_000_000_000_000),
}


class ProtobufDecoder(ValueDecoder):
    """Decodes fields by their numbers, if the writer's schema has the message at the indexes of a value."""

    def __init__(self, values: RegistryValues) -> None:
        assert isinstance(values.schema, Protobuf)
        self._message = values.schema.descriptor
        self._type: Any = arrow_type(Type("struct", fields=values.schema.fields))
        self._schemas = WriterSchemas.of_format(values, proto_file)
        self._handler = handler(self._message, "string")
        self._has_times = _has_times(self._message)

    def columns(self, table: pa.Table) -> dict[str, Column]:
        parsed, errors = self.decode(one_array(table["value"]))
        return {PARSED: parsed, ERROR: errors}

    def decode(self, values: pa.Array[Any]) -> tuple[pa.Array[Any], pa.Array[Any]]:
        """Decode values.

        Args:
            values: BINARY, the values of records; NULL is none.

        Returns:
            The records, a STRUCT of the schema's fields, and for each that could not be decoded the reason. Where a
            value is NULL both are.
        """
        sizes, reasons = self._sizes(values)
        parts: list[Any] = [pa.nulls(1, self._type)]
        # The row of the parts that each value is; the first is none.
        rows, length = np.zeros(len(values), np.int64), 1
        for size in np.unique(sizes[sizes > 0]):
            numbers = np.flatnonzero(sizes == size)
            of_size = values if len(numbers) == len(values) else values.take(numbers)
            decoded = self._decode(pc.binary_slice(of_size, int(size), MAX_VALUE_BYTES), numbers, values, reasons)
            rows[numbers] = np.arange(length, length + len(numbers))
            length += len(numbers)
            parts.append(decoded)
        records = parts[1] if len(parts) == 2 and len(parts[1]) == len(values) else pa.concat_arrays(parts).take(rows)
        return records, pa.array(reasons, pa.string())

    def _sizes(self, values: pa.Array[Any]) -> tuple[np.ndarray[Any, Any], list[str | None]]:
        """How many bytes are before each message, 0 where there is none to decode; and the reasons for which."""
        sizes = np.zeros(len(values), np.int64)
        reasons: list[str | None] = [None] * len(values)
        numbers, length = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)), HEADER_BYTES + 1
        while len(numbers):
            heads: Any = pc.binary_slice(values.take(numbers), 0, length).dictionary_encode()
            results = [self._size(head, length) for head in heads.dictionary.to_pylist()]
            of_row = heads.indices.to_numpy()
            for index, reason in enumerate(results):
                if isinstance(reason, str):
                    for number in numbers[of_row == index]:
                        reasons[number] = reason
            needed = np.array([0 if isinstance(one, str) else one for one in results], np.int64)[of_row]
            sizes[numbers] = np.where(needed <= length, needed, 0)
            numbers = numbers[needed > length]
            length = int(needed.max())
        return sizes, reasons

    def _size(self, head: bytes, length: int) -> int | str:
        """How many bytes are before a message, more than are read if those do not tell; or why it cannot be decoded."""
        file: FileDescriptor | str = self._schemas.of_header(head[:HEADER_BYTES])
        if isinstance(file, str):
            return file
        number = schema_id(head)
        try:
            indexes = read_indexes(head[HEADER_BYTES:])
        except ValueError as e:
            return f"not Protobuf of schema id {number}: {e}"
        if isinstance(indexes, int):
            if len(head) < length:
                return f"not Protobuf of schema id {number}: it ends before its message"
            return HEADER_BYTES + indexes
        message = message_at(file, indexes.path)
        if message is None or message.full_name != self._message.full_name:
            written = message.full_name if message else f"no message at {', '.join(map(str, indexes.path))}"
            return f"not {self._message.full_name}: schema id {number} has {written}"
        return HEADER_BYTES + indexes.size

    def _decode(
        self, messages: Any, numbers: np.ndarray[Any, Any], values: pa.Array[Any], reasons: list[str | None]
    ) -> Any:
        """Messages as records; of those that are none, the reasons. They are found by halving."""
        try:
            batch = self._handler.array_to_record_batch(messages)
        except BaseException as e:
            # A length that overflows makes Rust panic, which Python has as no Exception.
            if not isinstance(e, ValueError) and type(e).__name__ != "PanicException":
                raise
            if len(messages) == 1:
                number = schema_id(values[int(numbers[0])].as_py())
                reason = str(e).rpartition(": ")[2] if isinstance(e, ValueError) else "a length is too large"
                reasons[numbers[0]] = f"not Protobuf of schema id {number}: {reason}"
                return pa.nulls(1, self._type)
            half = len(messages) // 2
            halves = [(messages[:half], numbers[:half]), (messages[half:], numbers[half:])]
            return pa.concat_arrays([self._decode(*one, values, reasons) for one in halves])
        records = batch.to_struct_array()
        numbers_to_merge = np.flatnonzero(_needs_merge(records, self._message))
        if len(numbers_to_merge):
            records = self._merged(records, messages, numbers_to_merge)
        if self._has_times and (out_of_range := _out_of_range(records, self._message)).any():
            for number in numbers[out_of_range]:
                written = schema_id(values[int(number)].as_py())
                reasons[number] = f"not Protobuf of schema id {written}: a Timestamp or Duration is out of its range"
            records = records.take(pa.array(np.arange(len(records)), mask=out_of_range))
        return records.cast(self._type)

    def _merged(self, records: Any, messages: Any, numbers: np.ndarray[Any, Any]) -> Any:
        """Records of which some are decoded as Protobuf's own runtime writes them after it has read them.

        Args:
            records: The records.
            messages: The messages that they were decoded from.
            numbers: Which are decoded so.
        """
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        message_class, anew = GetMessageClass(self._message), []
        for data in messages.take(numbers).to_pylist():
            try:
                anew.append(message_class.FromString(data).SerializeToString(deterministic=True))
            except DecodeError:
                # It is stricter with bytes that belong to no field.
                anew.append(data)
        others = self._handler.array_to_record_batch(pa.array(anew, messages.type)).to_struct_array()
        rows = np.arange(len(records))
        rows[numbers] = len(records) + np.arange(len(numbers))
        return pa.concat_arrays([records, others]).take(rows)


def handler(message: Descriptor, enums: Literal["string", "int32"]) -> Any:
    """What converts messages. enums: how they are in Arrow."""
    with optional_packages():
        from ptars import HandlerPool, PtarsConfig
    config = PtarsConfig(
        timestamp_unit="us", duration_unit="us", enum_repr=enums, list_value_name="element", list_nullable=True,
        map_nullable=True, list_value_nullable=True, map_value_nullable=True,
    )  # fmt: skip
    return HandlerPool([message.file], config).get_for_message(message)


def _needs_merge(records: Any, message: Descriptor) -> np.ndarray[Any, Any]:
    """Whether records have two fields of a oneof, a key of a map twice, or a key without a value.

    Protobuf's own readers take the last one, and an empty value. Messages are so where bytes of several are joined.
    """
    result = np.zeros(len(records), np.bool_)
    for oneof in message.oneofs:
        values = [records.field(field.name).is_valid().to_numpy(zero_copy_only=False) for field in oneof.fields]
        if len(values) > 1:
            result |= np.sum(values, axis=0, dtype=np.int64) > 1
    for field in message.fields:
        array = records.field(field.name)
        if is_map(field):
            result[_parents(array)[_map_needs_merge(array, field)]] = True
        elif not _is_struct(field):
            continue
        elif field.is_repeated:
            result[_parents(array)[_needs_merge(array.values, field.message_type)]] = True
        else:
            result |= _needs_merge(array, field.message_type)
    return result


def _has_times(message: Descriptor) -> bool:
    """Whether a message has a field of TIME_RANGES at any depth."""
    inner = [field.message_type for field in message.fields if field.message_type]
    return any(one.full_name in TIME_RANGES or _has_times(one) for one in inner)


def _out_of_range(records: Any, message: Descriptor) -> np.ndarray[Any, Any]:
    """Whether records have a value of TIME_RANGES out of its range, which the decoder clamps or takes."""
    result = np.zeros(len(records), np.bool_)
    for field in message.fields:
        array = records.field(field.name)
        if is_map(field):
            result[_parents(array)[_is_out_of_range(array.items, field.message_type.fields_by_name["value"])]] = True
        elif field.is_repeated:
            result[_parents(array)[_is_out_of_range(array.values, field)]] = True
        else:
            result |= _is_out_of_range(array, field)
    return result


def _is_out_of_range(array: Any, field: FieldDescriptor) -> np.ndarray[Any, Any]:
    """As `_out_of_range`, of the values of a field."""
    if field.message_type and (limits := TIME_RANGES.get(field.message_type.full_name)):
        microseconds = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray((microseconds < limits[0]) | (microseconds > limits[1]))
    return _out_of_range(array, field.message_type) if _is_struct(field) else np.zeros(len(array), np.bool_)


def _is_struct(field: FieldDescriptor) -> bool:
    return bool(field.message_type) and value_type(field) is None


def _map_needs_merge(array: Any, field: FieldDescriptor) -> np.ndarray[Any, Any]:
    """As `_needs_merge`, of the entries of maps."""
    value, keys = field.message_type.fields_by_name["value"], array.keys.dictionary_encode()
    result: np.ndarray[Any, Any] = array.items.is_null().to_numpy(zero_copy_only=False)
    if _is_struct(value):
        result |= _needs_merge(array.items, value.message_type)
    pairs = _parents(array) * len(keys.dictionary) + keys.indices.to_numpy()
    if pc.count_distinct(pa.array(pairs)).as_py() < len(pairs):
        _, numbers, counts = np.unique(pairs, return_index=True, return_counts=True)
        result[numbers[counts > 1]] = True
    return result


def _parents(array: Any) -> np.ndarray[Any, Any]:
    """The number of the list or map that each value belongs to."""
    return np.repeat(np.arange(len(array)), np.diff(array.offsets.to_numpy()))


class ProtobufText:
    """Shows values as Protobuf's JSON, by the schema of their writer."""

    def __init__(self, text: str) -> None:
        self._file = proto_file(text)

    def as_json(self, value: bytes) -> bytes:
        """A value without its header."""
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message_factory import GetMessageClass

        indexes = read_indexes(value)
        if isinstance(indexes, int) or (message := message_at(self._file, indexes.path)) is None:
            raise ValueError("it is no message of this schema")
        parsed = GetMessageClass(message).FromString(value[indexes.size :])
        return orjson.dumps(MessageToDict(parsed, preserving_proto_field_name=True))
