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

from penstock.archive.columns import BOUNDED, DECODED
from penstock.codec.value_fields import FieldsDecoder
from penstock.errors import SinkError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from penstock.archive.stream import ArchiveOutput

PartitionValues: TypeAlias = tuple[str | bool | int | None, ...]
"""Of the fields by which an hour is partitioned, as Iceberg has them: a DATE is its days since 1970."""


def partition_names(table: Table) -> list[str]:
    """The decoded fields by which hours are partitioned."""
    names = (table.schema().find_column_name(field.source_id) or "" for field in table.spec().fields[1:])
    return [name.removeprefix(f"{DECODED}.") for name in names]


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
            for field in set(there) - set(partition_by):
                spec.remove_field(f"{DECODED}.{field}")
            for field in partition_by:
                if field not in there:
                    spec.add_identity(f"{DECODED}.{field}")


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
    return as_columns(table, pa.Table.from_batches([pa.record_batch(_Renamed(rows, renamed))]))


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


def as_columns(table: Table, rows: pa.Table) -> pa.Table:
    """Records with the columns of a table. rows: as `records.SCHEMA`, perhaps with `decoded`."""
    arrow = schema_to_pyarrow(table.schema())
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
    rows = as_columns(table, rows)
    fields = (pc.struct_field(rows[DECODED], name) for name in names)
    keys = [field.cast(pa.int32()) if field.type == pa.date32() else field for field in fields]
    labels = [f"key {n}" for n in range(len(keys))]
    values = pa.table([*keys, pa.array(range(len(rows)))], [*labels, "row"])
    for group in values.group_by(labels, use_threads=False).aggregate([("row", "list")]).to_pylist():
        yield tuple(group[label] for label in labels), rows.take(group["row_list"])
