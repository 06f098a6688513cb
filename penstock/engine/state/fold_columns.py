"""Whether the columns that a query of a fold gives are those that the fold declares."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyarrow import types

from penstock.engine.state.state_part import HASH
from penstock.errors import DeclarationError
from penstock.model.fold import QUERY_NAMES, Fold

FAMILIES: dict[str, Callable[[pa.DataType], bool]] = {
    "integer": types.is_integer,
    "decimal": types.is_decimal,
    "real": types.is_floating,
    "text": types.is_string,
    "binary": types.is_binary,
    "boolean": types.is_boolean,
    "date": types.is_date,
    "timestamp": types.is_timestamp,
}
# Casts that keep the meaning of each value. An integer may be too large, as a sum may; no cast reads a text, drops a
# fraction or a time of day, or takes a number for a time.
CASTS = {
    "integer": {"integer", "decimal", "real", "text"},
    "decimal": {"decimal", "real", "text"},
    "real": {"real", "text"},
    "text": {"text", "binary"},
    "boolean": {"boolean", "integer", "text"},
    "date": {"date", "timestamp", "text"},
    "timestamp": {"timestamp", "text"},
}


def cast_result(fold: Fold, query: str, rows: pa.Table, to: pa.Schema) -> pa.Table:
    """Cast the rows of a fold's query to the declared columns.

    Args:
        fold: The fold.
        query: The attribute of the query.
        rows: What it gave.
        to: The declared columns.

    Raises:
        DeclarationError: A column is missing or of another type, or a value is out of the range of its type.
    """
    columns = check_result(fold, query, rows.schema, to)
    try:
        return rows.select(columns).rename_columns(to.names).cast(to)
    except (ValueError, pa.ArrowException) as e:
        raise _other_columns(fold, query, str(e).splitlines()[0], to) from e


def check_result(fold: Fold, query: str, result: pa.Schema, to: pa.Schema) -> list[int]:
    """The numbers of the declared columns among those that a query gives; raises as `cast_result`, before any row."""
    names, columns = [name.lower() for name in result.names], list[int]()
    for field in to:
        # Names of SQL do not differ in case alone.
        if (times := names.count(field.name.lower())) != 1:
            got = f"{field.name} twice" if times else f"no {field.name} among {', '.join(result.names)}"
            raise _other_columns(fold, query, got, to)
        columns.append(names.index(field.name.lower()))
        kind = result.field(columns[-1]).type
        # The key of a row is looked up among those of the records, as the type of theirs.
        is_key = field.name in fold.key
        if not _is_castable(kind, field.type) or (is_key and not _is_castable(field.type, kind)):
            raise _other_columns(fold, query, f"{field.name} {kind}, declared {field.type}", to)
    return columns


def _other_columns(fold: Fold, query: str, got: str, to: pa.Schema) -> DeclarationError:
    wanted = ", ".join(f"{field.name} {field.type}" for field in to if field.name != HASH)
    return DeclarationError(
        f"{fold.query_location(query)}: {QUERY_NAMES[query]} of fold {fold.name} gives other columns than declared",
        got=got,
        hint=f"let it give {wanted}",
    )


def _is_castable(source: pa.DataType, to: pa.DataType) -> bool:
    """Whether Arrow casts a type to another, and each value keeps its meaning."""
    if source == to or types.is_null(source):
        return True
    if types.is_struct(to):
        # Arrow would make NULL of a field that is missing.
        return (
            types.is_struct(source)
            and {field.name for field in source} == {field.name for field in to}
            and all(_is_castable(source.field(field.name).type, field.type) for field in to)
        )
    if types.is_map(to):
        return types.is_map(source) and all(
            _is_castable(*pair) for pair in ((source.key_type, to.key_type), (source.item_type, to.item_type))
        )
    if types.is_list(to):
        return types.is_list(source) and _is_castable(source.value_type, to.value_type)
    if types.is_dictionary(source):
        return _is_castable(source.value_type, to)
    if types.is_decimal(source) and source.scale == 0 and types.is_integer(to):
        return True
    if _family(to) not in CASTS.get(_family(source), ()):
        return False
    try:
        pa.array([], source).cast(to)
    except pa.ArrowException:
        return False
    return not (types.is_decimal(source) and types.is_decimal(to) and source.scale > to.scale)


def _family(kind: pa.DataType) -> str:
    return next((name for name, is_of in FAMILIES.items() if is_of(kind)), "")
