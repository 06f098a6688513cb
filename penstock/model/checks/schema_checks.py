"""What an output to a topic of a schema registry is refused for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.mask import dropped_columns
from penstock.model.output import TopicOutput

if TYPE_CHECKING:
    from penstock.model.registry_schema import RegistrySchema
    from penstock.model.stream import Stream


COLUMNS_NOT_OF_SCHEMA = "the SELECT has not the columns that the schema of its topic has as fields"
SELECT_FIELDS = "name each field once as a column, by AS, or change the schema"


def column_mismatch(schema: RegistrySchema, columns: Iterable[str]) -> str:
    """Which columns have no field of a schema, and which fields no column; empty if all fit."""
    names, fields = list(columns), [field.name for field in schema.fields]
    parts = [f"column {name} is no field" for name in names if name not in fields]
    parts += [f"field {name} is no column" for name in fields if name not in names]
    return "; ".join(parts)


def schema_fits(stream: Stream) -> None:
    """Raise DeclarationError if a value has not exactly the fields of its topic's schema."""
    for output in stream.outputs.values():
        if isinstance(output, TopicOutput) and output.topic.registry_schema:
            _check_masks(stream, output, output.topic.registry_schema)
            check_value_fields(f"stream {stream.name}", output)


def check_value_fields(what: str, output: TopicOutput) -> None:
    """Raise DeclarationError if a value has not exactly the fields of its topic's schema. what: who writes."""
    schema = output.topic.registry_schema
    if schema is None:
        return
    fields, dropped = [field.name for field in schema.fields], dropped_columns(output.mask)
    written = [name for name in output.value if name.lower() not in dropped]
    if isinstance(output.value, str) or sorted(written) != sorted(fields):
        raise DeclarationError(
            f"{what}: the value for topic {output.topic.name} has not the fields of its {type(schema).__name__} schema",
            got=", ".join((output.value,) if isinstance(output.value, str) else output.value),
            hint=f"give value=({', '.join(map(repr, fields))},), and return these columns",
        )


def _check_masks(stream: Stream, output: TopicOutput, schema: RegistrySchema) -> None:
    """Raise DeclarationError if a field of the schema cannot hold what a mask makes of it."""
    for mask in output.mask:
        form = schema.form_of(mask.path)
        # A column of the key alone has no field.
        if form is None or (mask.method != "dropped" and form.holds_any):
            continue
        raise DeclarationError(
            f"stream {stream.name}: the {type(schema).__name__} schema of topic {output.topic.name} does not fit a "
            "mask",
            got=f"{mask.text}; {'.'.join(mask.path)} is {form.name}",
            hint="leave the field out of the schema"
            if mask.method == "dropped"
            else "declare the field as string, or as bytes if the column is BINARY",
        )
