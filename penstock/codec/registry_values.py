"""Values in the wire format of a schema registry: what all formats have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UnknownSchema
from penstock.model.registry_schema import RegistrySchema
from penstock.registry import client
from penstock.registry.client import WriterSchema
from penstock.registry.endpoint import RegistryEndpoint
from penstock.registry.wire_format import HEADER_BYTES, schema_id

T = TypeVar("T")
Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
# Names of columns beside the record: its values as text or as a struct, and why it could not be decoded.
TEXT, PARSED, ERROR = "_text", "_parsed", "_error"
# The end of a slice to the end: Arrow needs one, or its number of bytes overflows.
MAX_VALUE_BYTES = 2**31 - 1


# The first and the last number of the years 1 to 9999.
TIME_LIMITS: dict[pa.DataType, tuple[int, int]] = {
    pa.timestamp("us", "UTC"): (-62_135_596_800_000_000, 253_402_300_799_999_999),
    pa.date32(): (-719_162, 2_932_896),
}


@dataclass(frozen=True)
class RegistryValues:
    """What the decoder of a topic's values is told; it is sent to Spark's workers.

    Attributes:
        schema: The schema that reads.
        known: Schemas of writers that need not be looked up: id and text.
        endpoint: The registry that has any other; None for that of this process's settings, which workers of a cluster
            do not have.
        has_decoded: Whether a column `decoded` has the records that Spark has decoded already.
    """

    schema: RegistrySchema
    known: tuple[tuple[int, str], ...] = ()
    endpoint: RegistryEndpoint | None = None
    has_decoded: bool = False


class ValueDecoder(ABC):
    """Decodes the values of a topic. Schemas that are not known are taken from the registry, once."""

    @abstractmethod
    def columns(self, table: pa.Table) -> dict[str, Column]:
        """Decode values in columns.

        Args:
            table: Records, of which this reads `value BINARY`, and `decoded STRUCT` if it is told so.

        Returns:
            By name: `_error STRING`, the reason for each that is not decoded; and `_parsed`, a STRUCT of the schema's
            fields, or `_text STRING`, the value as JSON, if the schema says that values are JSON.

        Raises:
            RegistryError: The registry does not answer, so a schema is not known.
        """


S = TypeVar("S", bound=RegistrySchema)


class EncodedValues(NamedTuple):
    """Rows as values of a topic.

    Attributes:
        values: The values, None where a row has none.
        reasons: By its number, why a row that should have a value has none.
    """

    values: list[bytes | None]
    reasons: dict[int, str]


@dataclass(frozen=True)
class ValueEncoder(ABC, Generic[S]):
    """Encodes the values of a topic, without Spark: captures, backfills and cases in YAML write by it.

    Attributes:
        schema: The schema that writes.
        schema_id: Its id in the registry.
    """

    schema: S
    schema_id: int

    def encode(self, columns: Mapping[str, Column], without: Collection[int] = ()) -> EncodedValues:
        """Encode rows. Those that the schema cannot have are found by halving.

        Args:
            columns: A column of its Arrow type for each field of the schema, all of one length.
            without: Numbers of rows that are not encoded.
        """
        names = [field.name for field in self.schema.fields]
        records: Any = pa.StructArray.from_arrays([one_array(columns[name]) for name in names], names)
        encoded = EncodedValues([None] * len(records), {})
        self._encode(records, [number for number in range(len(records)) if number not in without], encoded)
        return encoded

    def _encode(self, records: Any, numbers: list[int], encoded: EncodedValues) -> None:
        """Encode some of the records into `encoded`. numbers: which ones."""
        some = records if len(numbers) == len(records) else records.take(pa.array(numbers, pa.int64()))
        try:
            check_times(some, "")
            values = self.encode_records(some)
        except (ValueError, OverflowError) as e:
            if len(numbers) == 1:
                encoded.reasons[numbers[0]] = str(e)
                return
            half = len(numbers) // 2
            self._encode(records, numbers[:half], encoded)
            self._encode(records, numbers[half:], encoded)
            return
        for number, value in zip(numbers, values, strict=True):
            encoded.values[number] = value

    @abstractmethod
    def encode_records(self, records: Any) -> list[bytes]:
        """The values of records, with their headers.

        Args:
            records: STRUCT of the schema's fields, none of them NULL, and no slice of a larger array.

        Raises:
            ValueError: A record is none of the schema. It says why, if there is one record.
            OverflowError: A time is beyond Python's calendar.
        """


def check_times(values: Any, where: str) -> None:
    """Raise ValueError if a time or a date is outside of Python's calendar, which is that of Protobuf and of ISO 8601.

    Args:
        values: An Arrow array.
        where: The name of the field.
    """
    of, inner = values.type, f"{where}." if where else ""
    if of in TIME_LIMITS:
        found: Any = pc.min_max(values.cast(pa.int32() if of == pa.date32() else pa.int64()))
        found = found.as_py()
        first, last = TIME_LIMITS[of]
        if found["min"] is not None and (found["min"] < first or found["max"] > last):
            raise ValueError(f"field {where} has a time outside of the years 1 to 9999")
    elif pa.types.is_struct(of):
        for number, column in enumerate(values.flatten()):
            check_times(column, f"{inner}{of.field(number).name}")
    elif pa.types.is_map(of):
        # The items are those of the whole array, also of a slice of it.
        check_times(pa.ListArray.from_arrays(values.offsets, values.items).flatten(), f"{where}[]")
    elif pa.types.is_list(of):
        check_times(values.flatten(), f"{where}[]")


class ValueText(Protocol):
    """Shows the values of a writer's schema to people."""

    def as_json(self, value: bytes) -> bytes:
        """A value, without its header, as JSON."""


class WriterSchemas(Generic[T]):
    """What the headers of records stand for; each id is looked up once.

    Args:
        prepare: Makes what decodes records of a writer's schema. ValueError: it cannot; the text is what the schema is.
        endpoint: The registry; None for that of this process's settings.
        known: Schemas that need not be looked up, by id.
    """

    def __init__(
        self,
        prepare: Callable[[WriterSchema], T],
        endpoint: RegistryEndpoint | None,
        known: Mapping[int, WriterSchema] | None = None,
    ) -> None:
        self._prepare, self._endpoint, self._known = prepare, endpoint, known or {}
        self._prepared = dict[int, T | str]()

    @classmethod
    def of_format(cls, values: RegistryValues, prepare: Callable[[str], T]) -> WriterSchemas[T]:
        """Schemas of the format of a topic, of which others are refused. prepare: from the text of a schema."""
        kind, name = values.schema.kind, type(values.schema).__name__

        def prepare_one(writer: WriterSchema) -> T:
            try:
                if writer.kind != kind:
                    raise ValueError(f"it is {writer.kind}")
                if writer.references:
                    raise ValueError(f"it refers to {', '.join(writer.references)}, and only whole schemas are read")
                return prepare(writer.text)
            except ValueError as e:
                raise ValueError(f"no {name} schema: {e}") from e

        return cls(prepare_one, values.endpoint, {number: WriterSchema(text, kind) for number, text in values.known})

    def of_header(self, header: bytes) -> T | str:
        """What decodes the records that begin with a header; or why none can be decoded."""
        number = schema_id(header)
        if number is None:
            got = f"it begins with 0x{header.hex()}" if header else "it is empty"
            return f"not in the wire format of a schema registry: {got}"
        if number not in self._prepared:
            try:
                writer = self._known.get(number) or client.schema_of(number, self._endpoint)
                self._prepared[number] = self._prepare(writer)
            except UnknownSchema:
                # It may be registered later.
                return f"schema id {number} is not in the registry"
            except ValueError as e:
                self._prepared[number] = f"schema id {number} is {e}"
        return self._prepared[number]


def one_array(column: Column) -> pa.Array[Any]:
    """A column as one array."""
    if isinstance(column, pa.Array):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def headers_of(values: pa.Array[Any]) -> tuple[list[bytes], pa.Array[Any]]:
    """The first bytes of values, each once, and for each value the number of its own; NULL if it has no value."""
    headers: Any = pc.binary_slice(values, 0, HEADER_BYTES).dictionary_encode()
    return headers.dictionary.to_pylist(), headers.indices
