"""Encodes rows in columns as documents in BSON.

Types keep their meaning: BIGINT is a 64-bit integer however small, DECIMAL a Decimal128, DATE and TIMESTAMP a date in
ms (rounded down), BINARY binary data, STRUCT and MAP documents, ARRAY an array; NaN and infinity are stored as they
are, and so is NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import bson
import pyarrow as pa
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.errors import BSONError
from bson.int64 import Int64

from penstock.errors import SinkError
from penstock.sinks.core.spark_types import spark_only_type
from penstock.sinks.mongodb.config import AT, DELETED_FIELD, LIMITS, OWN_FIELDS, VERSION

DAY_MS = 24 * 60 * 60 * 1000
SIMPLE_TYPES = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string,
    pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_timestamp, pa.types.is_date32,
    pa.types.is_decimal128,
)  # fmt: skip


@dataclass(frozen=True)
class EncodedDocument:
    """A row's document, or why it has none."""

    document: bytes = b""
    error: str = ""


@dataclass(frozen=True)
class DocumentHeader:
    """What a document has besides its columns. at_ms: its time, if that is kept; deleted: whether it is marked so."""

    id: str
    version: int
    at_ms: int | None = None
    deleted: bool = False


def check_type(kind: Any, name: str) -> None:
    """SinkError if documents of this type can never be stored. name: of the output."""
    if wrong := next(_type_errors(kind, "", 1), ""):
        raise SinkError(
            f"the SELECT of {name} makes no valid document of MongoDB",
            got=wrong,
            hint="rename columns and fields (AS), or cast them, as to STRING, and release the sink",
        )
    if taken := [field.name for field in kind if field.name in OWN_FIELDS]:
        raise SinkError(
            f"the SELECT of {name} has a column that the sink itself writes",
            got=taken[0],
            hint="rename it (AS), and release the sink",
        )


def encode_documents(doc: Any, headers: Sequence[DocumentHeader]) -> list[EncodedDocument]:
    """The documents of rows, in order. doc: an array of structs."""
    try:
        return [
            _encode_document(fields or {}, header) for fields, header in zip(_python_values(doc), headers, strict=True)
        ]
    except (ValueError, ArithmeticError, BSONError) as e:
        if len(headers) == 1:
            return [EncodedDocument(error=_reason(e))]
    half = len(headers) // 2
    return encode_documents(doc[:half], headers[:half]) + encode_documents(doc[half:], headers[half:])


def _encode_document(fields: dict[str, Any], header: DocumentHeader) -> EncodedDocument:
    more: dict[str, Any] = {DELETED_FIELD: True} if header.deleted else {}
    if header.at_ms is not None:
        more[AT] = DatetimeMS(header.at_ms)
    document = bson.encode({"_id": header.id, **fields, **more, VERSION: Int64(header.version)})
    if len(document) > LIMITS.document_bytes:
        return EncodedDocument(error=f"the document has {len(document)} bytes, MongoDB takes {LIMITS.document_bytes}")
    return EncodedDocument(document)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "a text is not UTF-8"
    if isinstance(error, ArithmeticError):
        return f"a number has more than {LIMITS.decimal_digits} digits"
    return f"no document of MongoDB: {error}"


def _type_errors(kind: pa.DataType, place: str, depth: int) -> Iterator[str]:
    """What a document cannot hold of a type."""
    if depth > LIMITS.depth and pa.types.is_nested(kind):
        yield f"{place.split('.')[0]} is nested deeper than {LIMITS.depth}"
        return
    if own := spark_only_type(kind):
        yield f"{place} is of type {own}"
    elif pa.types.is_struct(kind):
        for field in kind:
            if wrong := _name_error(field.name):
                yield wrong
            yield from _type_errors(field.type, f"{place}.{field.name}".lstrip("."), depth + 1)
        if len({field.name for field in kind}) < kind.num_fields:
            yield f"{place or 'the document'} has two fields of one name"
    elif pa.types.is_map(kind):
        if not (pa.types.is_string(kind.key_type) or pa.types.is_integer(kind.key_type)):
            yield f"{place} is a map by {kind.key_type}"
        yield from _type_errors(kind.item_type, place, depth + 1)
    elif pa.types.is_list(kind):
        yield from _type_errors(kind.value_type, place, depth + 1)
    elif not any(fits(kind) for fits in SIMPLE_TYPES):
        yield f"{place} is of type {kind}"


def _name_error(name: str) -> str:
    """Why a field cannot have a name: to MongoDB a dot is a path and a dollar sign an operator."""
    if not name:
        return "a field without a name"
    if name.startswith("$") or "." in name or "\0" in name:
        return f"field name {name[:100]!r}"
    return ""


def _python_values(array: Any) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [_python_values(array.field(at)) for at in range(kind.num_fields)]
        rows = zip(*columns, strict=True) if columns else ([] for _ in range(len(array)))
        return _with_nulls(array, [dict(zip(names, row, strict=True)) for row in rows])
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        offsets = array.offsets.to_pylist()
        first, last = offsets[0], offsets[-1]
        cuts = [slice(start - first, end - first) for start, end in pairwise(offsets)]
        if pa.types.is_list(kind):
            flat = _python_values(array.values[first:last])
            return _with_nulls(array, [flat[cut] for cut in cuts])
        keys = [_map_key(key) for key in array.keys[first:last].to_pylist()]
        pairs = list(zip(keys, _python_values(array.items[first:last]), strict=True))
        return _with_nulls(array, [dict(pairs[cut]) for cut in cuts])
    if pa.types.is_timestamp(kind):
        micros = array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()
        return [None if value is None else DatetimeMS(value // 1000) for value in micros]
    if pa.types.is_date32(kind):
        return [None if day is None else DatetimeMS(day * DAY_MS) for day in array.cast(pa.int32()).to_pylist()]
    if pa.types.is_int64(kind):
        return [None if value is None else Int64(value) for value in array.to_pylist()]
    if pa.types.is_decimal128(kind):
        return [None if value is None else Decimal128(value) for value in array.to_pylist()]
    return list(array.to_pylist())


def _map_key(key: object) -> str:
    if wrong := _name_error(name := str(key)):
        raise ValueError(wrong)
    return name


def _with_nulls(array: Any, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]
