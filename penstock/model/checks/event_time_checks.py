"""An expression for the event time, looked at before Spark sees it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.errors import DeclarationError
from penstock.model.sql.parser import parse_one
from penstock.model.types import Field

# Of a field alone; what is text or a day Spark makes a time of.
TIMES = ("timestamp", "date", "string")


def check_event_time(what: str, expression: str, fields: Sequence[Field]) -> None:
    """DeclarationError if it names a field that is not there, or is one that holds no time.

    What cannot be read here may yet be Spark's SQL: it is left to Spark.
    """
    if not expression.strip():
        raise DeclarationError(f"{what} has an empty event time", hint='event_time="timestamp_millis(field)"')
    try:
        read = parse_one(expression, "spark")
    except SqlglotError:
        return
    by_name = {field.name.lower(): field for field in fields}
    # The parameters of a function in it look like columns.
    named = [] if read.find(exp.Lambda) else [column.parts[0].name for column in read.find_all(exp.Column)]
    if unknown := sorted({name for name in named if name.lower() not in by_name}):
        raise DeclarationError(
            f"{what}: its event time names what is no field of it",
            got=f"{', '.join(unknown)} in {expression}",
            hint=f"take one of: {', '.join(field.name for field in fields)}",
        )
    if isinstance(read, exp.Column) and len(read.parts) == 1:
        kind = by_name[read.name.lower()].type.kind
        if kind not in TIMES:
            raise DeclarationError(
                f"{what}: its event time is a field that holds no time",
                got=f"{read.name} {kind.upper()}",
                hint=f'event_time="timestamp_millis({read.name})", or timestamp_seconds or timestamp_micros of it',
            )
