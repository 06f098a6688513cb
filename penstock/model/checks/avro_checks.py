"""What an output to a topic of Avro is refused for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.avro import Avro, AvroType
from penstock.model.mask import dropped_columns
from penstock.model.output import TopicOutput

if TYPE_CHECKING:
    from penstock.model.stream import Stream

MISSING = AvroType("null")

COLUMNS_NOT_OF_SCHEMA = "the SELECT has not the columns that the Avro schema of its topic has as fields"
SELECT_FIELDS = "name each field once as a column, by AS, or change the schema"


def column_mismatch(schema: Avro, columns: Iterable[str]) -> str:
    """Which columns have no field of a schema, and which fields no column; empty if all fit."""
    names, fields = list(columns), [name for name, _ in schema.record.fields]
    parts = [f"column {name} is no field" for name in names if name not in fields]
    parts += [f"field {name} is no column" for name in fields if name not in names]
    return "; ".join(parts)


def avro_fits(stream: Stream) -> None:
    """Raise DeclarationError if a value has not exactly the fields of its topic's schema."""
    for output in stream.outputs.values():
        if not isinstance(output, TopicOutput) or output.topic.avro is None:
            continue
        _check_masks(stream, output, output.topic.avro)
        check_value_fields(f"stream {stream.name}", output)


def check_value_fields(what: str, output: TopicOutput) -> None:
    """Raise DeclarationError if a value has not exactly the fields of its topic's Avro schema. what: who writes."""
    if output.topic.avro is None:
        return
    fields, dropped = [name for name, _ in output.topic.avro.record.fields], dropped_columns(output.mask)
    written = [name for name in output.value if name.lower() not in dropped]
    if isinstance(output.value, str) or sorted(written) != sorted(fields):
        raise DeclarationError(
            f"{what}: the value for topic {output.topic.name} has not the fields of its Avro schema",
            got=", ".join((output.value,) if isinstance(output.value, str) else output.value),
            hint=f"give value=({', '.join(map(repr, fields))},), and return these columns",
        )


def _check_masks(stream: Stream, output: TopicOutput, schema: Avro) -> None:
    """Raise DeclarationError if a field of the schema cannot hold what a mask makes of it."""
    for mask in output.mask:
        path, of = mask.path, schema.record
        for name in path:
            of = {field.lower(): kind for field, kind in of.fields}.get(name.lower(), MISSING)
        is_written = of is not MISSING
        if mask.method == "dropped":
            fits, hint = not is_written, "leave the field out of the schema"
        else:
            # A column of the key alone has no field.
            fits = not is_written or (of.name in ("string", "bytes") and not of.logical)
            hint = "declare the field as string, or as bytes if the column is BINARY"
        if not fits:
            raise DeclarationError(
                f"stream {stream.name}: the Avro schema of topic {output.topic.name} does not fit a mask",
                got=f"{mask.text}; {'.'.join(path)} is {of.logical or of.name}",
                hint=hint,
            )
