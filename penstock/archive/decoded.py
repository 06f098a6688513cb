"""Decoded fields in the table of an archive: its columns and partitions follow the declaration, and so do its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as of_arrow
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.transforms import IdentityTransform

from penstock.archive.columns import BOUNDED, DECODED, decoded_names
from penstock.codec.value_fields import FieldsDecoder
from penstock.errors import SinkError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from penstock.archive.stream import ArchiveOutput

PartitionValues: TypeAlias = tuple[str | bool | int | None, ...]
"""Of the fields by which an hour is partitioned, as Iceberg has them: a DATE is its days since 1970."""


def partition_names(table: Table) -> dict[str, str]:
    """The decoded fields by which hours are partitioned, and the names of their partitions."""
    names = decoded_names(table.schema())
    return {names[field.source_id]: field.name for field in table.spec().fields[1:]}


def evolve(table: Table, decoded: pa.StructType | None, partition_by: Sequence[str]) -> None:
    """Add to a table what the declaration has and it lacks: fields, wider types, partitions. A field that is no longer
    declared stays, and is NULL in new files.

    Args:
        table: It is as of the change then.
        decoded: The declared fields; None if nothing is decoded.
        partition_by: The declared partitions.

    Raises:
        SinkError: A field has another type, to which the table's cannot be widened.
    """
    name = ".".join(table.name())
    with table.transaction() as change:
        if decoded is not None:
            try:
                _refuse_text_as_bytes(pa.struct([(DECODED, decoded)]), pa.struct(schema_to_pyarrow(table.schema())), "")
                with change.update_schema() as schema:
                    schema.union_by_name(pa.schema([(DECODED, decoded)]))
            except (ValidationError, ValueError, TypeError) as e:
                raise SinkError(
                    f"table {name} cannot have the fields of the topic's schema",
                    got=str(e)[:300],
                    hint="give the field another name, or remove the table's column with another program: a type is "
                    "only widened (INT to BIGINT, FLOAT to DOUBLE), and the values stay in any case",
                ) from e
        there = partition_names(table)
        with change.update_spec() as spec:
            for field in there.keys() - set(partition_by):
                spec.remove_field(there[field])
            for field in partition_by:
                if field not in there:
                    column = f"{DECODED}.{field}"
                    number = change.table_metadata.schema().find_field(column).field_id
                    # Another field may have the name later, if that of this one is changed.
                    spec.add_field(column, IdentityTransform(), f"{column}_{number}")


def _refuse_text_as_bytes(declared: pa.DataType, there: pa.DataType, name: str) -> None:
    """ValueError if a field is text and is declared as bytes, or the reverse, which the library takes for one type."""
    of_declared, of_table = cast("Any", declared), cast("Any", there)
    if of_arrow.is_struct(declared) and of_arrow.is_struct(there):
        for field in of_declared:
            if (number := of_table.get_field_index(field.name)) >= 0:
                _refuse_text_as_bytes(field.type, of_table.field(number).type, f"{name}.{field.name}".lstrip("."))
    elif _is_list(declared) and _is_list(there):
        _refuse_text_as_bytes(of_declared.value_type, of_table.value_type, f"{name}.element")
    elif of_arrow.is_map(declared) and of_arrow.is_map(there):
        _refuse_text_as_bytes(of_declared.item_type, of_table.item_type, f"{name}.value")
    elif (_is_text(declared), _is_bytes(declared)) == (_is_bytes(there), _is_text(there)) != (False, False):
        raise ValueError(f"Cannot change column type: {name}: {there} -> {declared}")


def _is_list(of: pa.DataType) -> bool:
    return of_arrow.is_list(of) or of_arrow.is_large_list(of)


def _is_text(of: pa.DataType) -> bool:
    return of_arrow.is_string(of) or of_arrow.is_large_string(of)


def _is_bytes(of: pa.DataType) -> bool:
    return of_arrow.is_binary(of) or of_arrow.is_large_binary(of)


@dataclass(frozen=True)
class _Renamed:
    """Rows with other names of their fields, at any depth."""

    rows: pa.RecordBatch
    schema: pa.Schema

    def __arrow_c_array__(self, _: object = None) -> tuple[object, object]:
        return self.schema.__arrow_c_schema__(), cast("Any", self.rows).__arrow_c_array__()[1]


def project(table: Table, rows: pa.RecordBatch, file: pa.Schema) -> pa.Table:
    """Rows of a data file with the columns that the table has now, by the ids of fields. (pyiceberg makes an empty list
    of one that is NULL.)

    Args:
        table: The table.
        rows: Of the file.
        file: The schema of the file, with the ids of fields.
    """
    fields = {number: table.schema().find_field(number).name for number in table.schema().field_ids}
    renamed = pa.schema([_renamed(field, fields) for field in file])
    return as_columns(
        pa.Table.from_batches([pa.record_batch(_Renamed(rows, renamed))]), schema_to_pyarrow(table.schema())
    )


def _renamed(field: pa.Field[Any], names: Mapping[int, str]) -> pa.Field[Any]:
    kind: Any = field.type
    if of_arrow.is_struct(kind):
        kind = pa.struct([_renamed(child, names) for child in kind])
    elif of_arrow.is_list(kind):
        kind = pa.list_(_renamed(kind.value_field, names))
    elif of_arrow.is_map(kind):
        kind = pa.map_(kind.key_type, _renamed(kind.item_field, names))
    number = (field.metadata or {}).get(b"PARQUET:field_id")
    # One that the table has no longer may have the name of another field.
    name = names.get(int(number), f"dropped {int(number)}") if number is not None else field.name
    return pa.field(name, kind, field.nullable)


def row_decoder(output: ArchiveOutput) -> Callable[[pa.Table], pa.Table]:
    """What adds `decoded` to records, if the archive declares that. It raises RegistryError if the schema registry does
    not answer."""
    if output.decode is None:
        return lambda rows: rows
    decoder = FieldsDecoder(output.decode, f"archive {output.archive}")
    return lambda rows: rows.append_column(DECODED, decoder.decode(rows["value"]))


def columns_with_statistics(arrow: pa.Schema) -> list[str]:
    """The columns of which a data file has statistics. Those of FLOAT and DOUBLE leave out NaN, which is the greatest
    number for DuckDB: it would not look into the row group."""
    decoded: Any = arrow.field(DECODED).type if DECODED in arrow.names else ()
    plain = [f"{DECODED}.{f.name}" for f in decoded if not (of_arrow.is_nested(f.type) or of_arrow.is_floating(f.type))]
    return [*BOUNDED, *plain]


def as_columns(rows: pa.Table, arrow: pa.Schema) -> pa.Table:
    """Records with the columns of a table.

    Args:
        rows: As `records.SCHEMA`, perhaps with `decoded`.
        arrow: The columns.
    """
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in arrow
    ]
    return pa.Table.from_arrays(columns, schema=arrow)


def split_by_partition(table: Table, rows: pa.Table) -> Iterator[tuple[PartitionValues, pa.Table]]:
    """Records of an hour by the values of the fields by which it is partitioned; their order is kept."""
    if not (names := partition_names(table)):
        yield (), rows
        return
    rows = as_columns(rows, schema_to_pyarrow(table.schema()))
    decoded: Any = rows.schema.field(DECODED).type
    # A name that begins with a dot would be a path.
    fields = (pc.struct_field(rows[DECODED], [decoded.get_field_index(name)]) for name in names)
    keys = [field.cast(pa.int32()) if field.type == pa.date32() else field for field in fields]
    labels = [f"key {n}" for n in range(len(keys))]
    values = pa.table([*keys, pa.array(range(len(rows)))], [*labels, "row"])
    for group in values.group_by(labels, use_threads=False).aggregate([("row", "list")]).to_pylist():
        yield tuple(group[label] for label in labels), rows.take(group["row_list"])
