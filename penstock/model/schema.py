"""The schema of a value, given as Spark DDL, read without Spark."""

from __future__ import annotations

from functools import cache

from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.errors import DeclarationError
from penstock.model.sql.parser import parse_one
from penstock.model.types import Field, Type, check_field_names

PLAIN = {
    "TEXT": "string",
    "VARCHAR": "string",
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INT": "int",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamp",
}
IGNORED_CONSTRAINTS = (exp.NotNullColumnConstraint, exp.CommentColumnConstraint)
TYPE_NAMES = (
    "STRING, BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DATE, TIMESTAMP, ARRAY, STRUCT and MAP<STRING, …>"
)


@cache
def schema(ddl: str, what: str, *, of_json: bool = True) -> tuple[Field, ...]:
    """The fields of a schema; DeclarationError, naming whose it is, if it is none or, of_json, not read from JSON."""
    try:
        table = parse_one(f"CREATE TABLE t ({ddl})", "spark").this
    except SqlglotError as e:
        raise DeclarationError(
            f"the schema of {what} is no Spark DDL",
            got=ddl,
            hint=str(e).splitlines()[0] + " Write: name TYPE, name TYPE",
        ) from e
    columns = table.expressions if isinstance(table, exp.Schema) else []
    if not columns or not all(isinstance(c, exp.ColumnDef) and c.kind for c in columns):
        raise DeclarationError(f"the schema of {what} is no Spark DDL", got=ddl, hint="write: name TYPE, name TYPE")
    parsed = _fields(columns, what, of_json)
    check_field_names(parsed, what)
    return parsed


def _fields(columns: list[exp.ColumnDef], what: str, of_json: bool) -> tuple[Field, ...]:
    """The fields of the schema or of a struct in it."""
    return tuple(_field(column, what, of_json) for column in columns)


def _field(column: exp.ColumnDef, what: str, of_json: bool) -> Field:
    constraints = [c.kind for c in column.args.get("constraints") or ()]
    if other := [c for c in constraints if not isinstance(c, IGNORED_CONSTRAINTS)]:
        raise DeclarationError(
            f"the schema of {what}: field {column.name} declares more than a type and NOT NULL",
            got=", ".join(c.sql("spark") for c in other),
            hint="leave it out: a missing field is NULL, for which the transform may set a default",
        )
    required = any(isinstance(c, exp.NotNullColumnConstraint) for c in constraints)
    return Field(column.name, _type(column.args["kind"], what, column.name, of_json), required)


def _type(parsed: exp.DataType, what: str, where: str, of_json: bool) -> Type:
    name = parsed.this.name if isinstance(parsed.this, exp.DataType.Type) else str(parsed.this)
    inner = parsed.expressions
    match name:
        case "ARRAY" | "LIST" if inner:
            return Type("array", _type(inner[0], what, f"{where}[]", of_json))
        case "STRUCT" if inner:
            return Type("struct", fields=_fields(inner, what, of_json))
        case "MAP" if len(inner) == 2 and _type(inner[0], what, where, of_json).kind == "string":
            return Type("map", _type(inner[1], what, f"{where}[]", of_json))
    if name in PLAIN:
        return Type(PLAIN[name])
    if name == "BINARY" and not of_json:
        return Type("binary")
    if name == "DECIMAL" and not of_json:
        digits = [int(parameter.name) for parameter in inner]
        precision, scale = (*digits, 10, 0)[:2] if len(digits) != 1 else (digits[0], 0)
        return Type("decimal", precision=precision, scale=scale)
    raise DeclarationError(
        f"the schema of {what}: field {where} has a type that is not read from JSON",
        got=parsed.sql("spark"),
        hint=f"declare one of {TYPE_NAMES}; a number with more than a double's digits is written and declared as "
        "STRING and cast in the transform",
    )
