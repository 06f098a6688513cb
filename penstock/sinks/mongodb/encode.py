"""Rows in columns to documents in BSON.

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
from penstock.sinks.core.spark_types import own_kind
from penstock.sinks.mongodb.config import AT, LIMITS, MARKED, OWN, VERSION

DAY_MS = 24 * 60 * 60 * 1000
PLAIN = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string,
    pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_timestamp, pa.types.is_date32,
    pa.types.is_decimal128,
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A row's document, or why it is none."""

    document: bytes = b""
    refused: str = ""


@dataclass(frozen=True)
class Head:
    """What a document has beside its columns. at_ms: None where none is kept; marked: as deleted."""

    id: str
    version: int
    at_ms: int | None = None
    marked: bool = False


def fits(kind: Any, name: str) -> None:
    """SinkError if documents of this type can never be stored. name: of the output."""
    if wrong := next(_unfit(kind, "", 1), ""):
        raise SinkError(
            f"what the SELECT of {name} gives is no document of MongoDB",
            got=wrong,
            hint="name columns and fields otherwise (AS), or cast them, as to STRING, and release the sink",
        )
    if taken := [field.name for field in kind if field.name in OWN]:
        raise SinkError(
            f"the SELECT of {name} gives a column that the sink itself writes",
            got=taken[0],
            hint="name it otherwise (AS), and release the sink",
        )


def encoded(doc: Any, heads: Sequence[Head]) -> list[Made]:
    """The documents of rows, an array of structs, in their order."""
    try:
        return [_made(fields or {}, head) for fields, head in zip(_values(doc), heads, strict=True)]
    except (ValueError, ArithmeticError, BSONError) as e:
        if len(heads) == 1:
            return [Made(refused=_reason(e))]
    half = len(heads) // 2
    return encoded(doc[:half], heads[:half]) + encoded(doc[half:], heads[half:])


def _made(fields: dict[str, Any], head: Head) -> Made:
    more: dict[str, Any] = {MARKED: True} if head.marked else {}
    if head.at_ms is not None:
        more[AT] = DatetimeMS(head.at_ms)
    document = bson.encode({"_id": head.id, **fields, **more, VERSION: Int64(head.version)})
    if len(document) > LIMITS.document_bytes:
        return Made(refused=f"the document has {len(document)} bytes, MongoDB takes {LIMITS.document_bytes}")
    return Made(document)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "a text is not UTF-8"
    if isinstance(error, ArithmeticError):
        return f"a number has more than {LIMITS.decimal_digits} digits"
    return f"no document of MongoDB: {error}"


def _unfit(kind: pa.DataType, place: str, depth: int) -> Iterator[str]:
    """What of a type no document can hold."""
    if depth > LIMITS.depth and pa.types.is_nested(kind):
        yield f"{place.split('.')[0]} is nested deeper than {LIMITS.depth}"
        return
    if own := own_kind(kind):
        yield f"{place} is of type {own}"
    elif pa.types.is_struct(kind):
        for field in kind:
            if wrong := _misnamed(field.name):
                yield wrong
            yield from _unfit(field.type, f"{place}.{field.name}".lstrip("."), depth + 1)
        if len({field.name for field in kind}) < kind.num_fields:
            yield f"{place or 'the document'} has two fields of one name"
    elif pa.types.is_map(kind):
        if not (pa.types.is_string(kind.key_type) or pa.types.is_integer(kind.key_type)):
            yield f"{place} is a map by {kind.key_type}"
        yield from _unfit(kind.item_type, place, depth + 1)
    elif pa.types.is_list(kind):
        yield from _unfit(kind.value_type, place, depth + 1)
    elif not any(fits(kind) for fits in PLAIN):
        yield f"{place} is of type {kind}"


def _misnamed(name: str) -> str:
    """Why a name is none of a field: to MongoDB a dot is a path and a dollar sign an operator."""
    if not name:
        return "a field without a name"
    if name.startswith("$") or "." in name or "\0" in name:
        return f"field name {name[:100]!r}"
    return ""


def _values(array: Any) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [_values(array.field(at)) for at in range(kind.num_fields)]
        rows = zip(*columns, strict=True) if columns else ([] for _ in range(len(array)))
        return _where_valid(array, [dict(zip(names, row, strict=True)) for row in rows])
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        offsets = array.offsets.to_pylist()
        first, last = offsets[0], offsets[-1]
        cuts = [slice(start - first, end - first) for start, end in pairwise(offsets)]
        if pa.types.is_list(kind):
            flat = _values(array.values[first:last])
            return _where_valid(array, [flat[cut] for cut in cuts])
        keys = [_key(key) for key in array.keys[first:last].to_pylist()]
        pairs = list(zip(keys, _values(array.items[first:last]), strict=True))
        return _where_valid(array, [dict(pairs[cut]) for cut in cuts])
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


def _key(key: object) -> str:
    if wrong := _misnamed(name := str(key)):
        raise ValueError(wrong)
    return name


def _where_valid(array: Any, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]
