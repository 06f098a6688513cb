"""Whether and how the state of a stream's fold can be rebuilt from its topics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema

from penstock.codec.heartbeat import heartbeat_signer
from penstock.codec.registry_values import RegistryValues
from penstock.engine.state import fold_query
from penstock.engine.state.restore_query import RecordText, RestoreQuery
from penstock.errors import DeclarationError
from penstock.model.output import TopicOutput, names_of
from penstock.model.schema import schema
from penstock.model.types import Field, quoted
from penstock.registry import client
from penstock.registry.endpoint import find_endpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.engine.state.fold import FoldContext
    from penstock.model.fold import Fold
    from penstock.model.stream import Stream

RESET_HINT = (
    "restore its checkpoint, or begin again with what its topics still hold: `penstock streams reset {name} --to ...`"
)


def restorable_fold(stream: Stream, context: FoldContext) -> Fold:
    """The fold of a plan whose state can be rebuilt; DeclarationError if there is none."""
    what, reset = f"the state of stream {stream.name} cannot be rebuilt", RESET_HINT.format(name=stream.name)
    if not context.folds:
        got = "its state is Spark's own" if stream.stateful_steps else "it keeps no state"
        raise DeclarationError(f"{what}: it has no fold", got=got, hint=reset)
    if not context.can_rebuild:
        raise DeclarationError(
            f"{what}: its fold does not say how its topics hold it",
            got=f"fold {', '.join(context.folds)} without `restore_sql` and `input_retention`",
            hint=f"{reset}; where the output holds all of the state, declare Fold(restore_sql=...); where the inputs "
            "do, Fold(input_retention=...)",
        )
    if len(context.folds) > 1:
        got = f"folds {', '.join(context.folds)}"
        raise DeclarationError(f"{what}: it has several folds", got=got, hint=reset)
    [fold] = context.folds.values()
    return fold


def restore_query_of(stream: Stream, rows: DataFrame, context: FoldContext) -> RestoreQuery:
    """The query that restores the state of a stream's fold from its output.

    Args:
        stream: The stream.
        rows: What its transform returns.
        context: The context of its folds.

    Raises:
        DeclarationError: The state cannot be restored from the output.
    """
    what, reset = f"the state of stream {stream.name} cannot be rebuilt", RESET_HINT.format(name=stream.name)
    fold = restorable_fold(stream, context)
    outputs = [o for o in stream.outputs.values() if isinstance(o, TopicOutput) and o.topic.compacts and o.keyed]
    if len(outputs) != 1:
        raise DeclarationError(
            f"{what}: it needs one output that is compacted",
            got=", ".join(o.name for o in outputs) or f"none of {', '.join(stream.output_names)} is",
            hint=f"{reset}; for the next time, write the state to one Topic(..., compacted=True)",
        )
    (output,) = outputs
    values = [name for name in names_of(output.value) if _reads(fold.restore_sql, name)]
    # A column that is in both has the same value in both.
    keys = [name for name in names_of(output.key) if _reads(fold.restore_sql, name) and name not in values]
    if masked := [mask for mask in output.mask if mask.root in {name.lower() for name in (*keys, *values)}]:
        raise DeclarationError(
            f"{what}: `restore_sql` reads a column that its output masks",
            got=masked[0].text,
            hint="write what the state needs in columns that are not masked, or to a topic of its own; or declare "
            "Fold(input_retention=...)",
        )
    is_text, registry = isinstance(output.value, str), _registry(output)
    value_fields = _fields(stream, rows, values, of_json=not is_text and registry is None)
    texts = (
        RecordText(
            "key",
            _fields(stream, rows, keys, of_json=not isinstance(output.key, str)),
            isinstance(output.key, str),
        ),
        RecordText("value", value_fields, is_text, registry),
    )
    for text in texts:
        if text.plain and any(f.type.kind in ("array", "map", "struct") for f in text.fields):
            raise DeclarationError(
                f"{what}: a list, map or struct that is written as text has no form to be read by",
                got=f"the {text.of} of {output.name} is column {text.fields[0].name}",
                hint=f"{reset}; for the next time, write it as JSON: {text.of}=('{text.fields[0].name}',)",
            )
    schema = to_arrow_schema(context.keys[fold.name], timezone="UTC")
    layout = fold_query.state_schema(fold, schema).remove(0)
    query = RestoreQuery(fold, output.name, texts, layout, heartbeat_signer())
    query.check()
    return query


def _registry(output: TopicOutput) -> RegistryValues | None:
    schema = output.topic.registry_schema
    if schema is None:
        return None
    known = client.subject_schemas(schema.subject_of(output.topic.name), schema.kind)
    return RegistryValues(schema, tuple(known.items()), find_endpoint())


def _reads(sql: str, column: str) -> bool:
    """Whether a query may read a column; columns that it does not read may be missing."""
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    return "*" in sql or not re.fullmatch(r"\w+", column) or column.lower() in words


def _fields(stream: Stream, rows: DataFrame, names: list[str], *, of_json: bool) -> tuple[Field, ...]:
    """Some of the columns that an output writes; DeclarationError if one has a type that cannot be read back."""
    types = {field.name.lower(): field.dataType.simpleString() for field in rows.schema.fields}
    what = f"the output of stream {stream.name}"
    return tuple(schema(f"{quoted(name)} {types[name.lower()]}", what, of_json=of_json)[0] for name in names)
