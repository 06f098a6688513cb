"""Values in the wire format of a schema registry: what decoders of all formats have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UnknownSchema
from penstock.model.registry_schema import RegistrySchema
from penstock.registry import client
from penstock.registry.endpoint import RegistryEndpoint
from penstock.registry.wire_format import HEADER_BYTES, schema_id

T = TypeVar("T")
Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
# Names of columns beside the record: its values as text or as a struct, and why it could not be decoded.
TEXT, PARSED, ERROR = "_text", "_parsed", "_error"
# The end of a slice to the end: Arrow needs one, or its number of bytes overflows.
MAX_VALUE_BYTES = 2**31 - 1


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


class ValueText(Protocol):
    """Shows the values of a writer's schema to people."""

    def as_json(self, value: bytes) -> bytes:
        """A value, without its header, as JSON."""


class WriterSchemas(Generic[T]):
    """What the headers of records stand for; each id is looked up once.

    Args:
        values: How values are decoded.
        prepare: Makes what decodes records of a writer's schema, from its text; ValueError if it is none of the format.
    """

    def __init__(self, values: RegistryValues, prepare: Callable[[str], T]) -> None:
        self._kind, self._known, self._endpoint = values.schema.kind, dict(values.known), values.endpoint
        self._name = type(values.schema).__name__
        self._prepare, self._prepared = prepare, dict[int, T | str]()

    def of_header(self, header: bytes) -> T | str:
        """What decodes the records that begin with a header; or why none can be decoded."""
        number = schema_id(header)
        if number is None:
            got = f"it begins with 0x{header.hex()}" if header else "it is empty"
            return f"not in the wire format of a schema registry: {got}"
        if number not in self._prepared:
            text = self._known.get(number)
            if text is None:
                try:
                    text, kind = client.schema_of(number, self._endpoint)
                except UnknownSchema:
                    # It may be registered later.
                    return f"schema id {number} is not in the registry"
                if kind != self._kind:
                    self._prepared[number] = f"schema id {number} is no {self._name} schema: it is {kind}"
                    return self._prepared[number]
            try:
                self._prepared[number] = self._prepare(text)
            except ValueError as e:
                self._prepared[number] = f"schema id {number} is no {self._name} schema: {e}"
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
