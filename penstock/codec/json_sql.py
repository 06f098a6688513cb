"""DuckDB SQL that validates JSON and reads declared fields from it, as docs/records.md describes.

DuckDB's parser (yyjson) accepts two things that are no JSON: a comma after the last element, and the numbers NaN and
Infinity. Texts that may contain one are checked again without their strings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from json import dumps

from penstock.model.types import Field, Type

WHITESPACE = r"[ \t\r\n]*"
NON_FINITE = "-?(?i:nan|inf)"
# Separate patterns, each with a fixed first character that RE2 can search for: one pattern is five times slower.
NOT_JSON = (rf",{WHITESPACE}(?:[}}\]]|{NON_FINITE})", rf":{WHITESPACE}{NON_FINITE}")
NON_FINITE_IN_LIST = rf"\[{WHITESPACE}{NON_FINITE}"
NON_FINITE_ALONE = rf"^{WHITESPACE}{NON_FINITE}"
STRINGS = r'"(?:[^"\\]|\\.)*"'
# As Spark's to_json writes doubles that are no JSON numbers.
NON_FINITE_DOUBLES = """('"NaN"', '"Infinity"', '"-Infinity"')"""
INTEGERS = {"tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT"}
REALS = {"float": "FLOAT", "double": "DOUBLE"}
OTHER_TYPES = {"string": "VARCHAR", "boolean": "BOOLEAN", "binary": "BLOB", "date": "DATE", "timestamp": "TIMESTAMPTZ"}
KINDS = {**INTEGERS, **REALS, **OTHER_TYPES}
# Element types of lists that the parser can read directly: its type, and the characters of such a list.
INTEGER_LIST = r"[-0-9, \t\r\n]*"
LISTS = {
    "int": ("INTEGER", INTEGER_LIST),
    "bigint": ("BIGINT", INTEGER_LIST),
    "double": ("DOUBLE", r"[-+0-9.eE, \t\r\n]*"),
}
PLAIN_NAME = re.compile("[A-Za-z0-9_ ]+")
# RFC 3339, without a zone in UTC. DuckDB's casts would also accept 24:00 and +99:99.
DATE_PATTERN = r"\d{4}-\d\d-\d\d"
TIME_PATTERN = r"(?:[01]\d|2[0-3]):[0-5]\d"
TIMESTAMP_PATTERN = rf"{DATE_PATTERN}[T ]{TIME_PATTERN}:\d\d(?:\.\d+)?(?:Z|[+-]{TIME_PATTERN})?"
# The years that Python's datetime supports.
DATE_RANGE = "DATE '0001-01-01' AND DATE '9999-12-31'"
TIMESTAMP_RANGE = "TIMESTAMPTZ '0001-01-01 00:00:00+00' AND TIMESTAMPTZ '9999-12-31 23:59:59.999999+00'"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quote_name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def is_json(text: str, *, plain: bool = True) -> str:
    """BOOLEAN: whether a text is one JSON value (RFC 8259); NULL for NULL.

    Args:
        text: The SQL of the text.
        plain: Whether the value may be a number, a string or a literal; faster without.
    """
    without_strings = f"regexp_replace({text}, {literal(STRINGS)}, '\"\"', 'g')"
    is_strictly_valid = f"NOT ({_may_be_invalid(without_strings, plain)})"
    return f"(json_valid({text}) AND CASE WHEN {_may_be_invalid(text, plain)} THEN {is_strictly_valid} ELSE true END)"


def _may_be_invalid(text: str, plain: bool) -> str:
    tests = [
        f"regexp_matches({text}, {literal(pattern)})" for pattern in (*NOT_JSON, *([NON_FINITE_ALONE] if plain else []))
    ]
    return " OR ".join([*tests, f"(contains({text}, '[') AND regexp_matches({text}, {literal(NON_FINITE_IN_LIST)}))"])


def is_object(text: str) -> str:
    """BOOLEAN: whether a text that is JSON is an object."""
    return f"(starts_with({text}, '{{') OR regexp_matches({text}, '^{WHITESPACE}\\{{'))"


def parse_record(text: str, fields: Sequence[Field]) -> str:
    """STRUCT: the fields of a text that is a JSON object, as `parse_fields`; NULL for any other text."""
    return f"CASE WHEN {is_object(text)} AND {is_json(text, plain=False)} THEN {parse_fields(text, fields)} END"


def duckdb_type(of: Type) -> str:
    """The DuckDB type of a declared type."""
    match of.kind:
        case "array":
            assert of.element
            return f"{duckdb_type(of.element)}[]"
        case "map":
            assert of.element
            return f"MAP(VARCHAR, {duckdb_type(of.element)})"
        case "struct":
            return f"STRUCT({', '.join(f'{quote_name(f.name)} {duckdb_type(f.type)}' for f in of.fields)})"
        case "decimal":
            return f"DECIMAL({of.precision}, {of.scale})"
    return KINDS[of.kind]


def parse_fields(text: str, fields: Sequence[Field]) -> str:
    """STRUCT: the fields of a JSON object: the value of a STRING or of a list of numbers, the JSON text of others.

    Missing fields and nulls are NULL. If a name occurs twice, the first field counts.
    """
    return f"json_transform({text}, {literal(dumps({f.name: _transform_type(f) for f in fields}))})"


def _transform_type(field: Field) -> str | list[str]:
    if field.type.kind == "string":
        return "VARCHAR"
    return [LISTS[_number_list_kind(field)][0]] if _number_list_kind(field) else "JSON"


def _number_list_kind(field: Field) -> str:
    """The element type of a list that the parser can read directly, if the field's name needs no escape; else empty."""
    element = field.type.element.kind if field.type.kind == "array" and field.type.element else ""
    return element if element in LISTS and PLAIN_NAME.fullmatch(field.name) else ""


def _is_plain_list(text: str, field: Field) -> str:
    """BOOLEAN: whether the parser's list of numbers is exact: the text has only numbers or null for it, once."""
    numbers = LISTS[_number_list_kind(field)][1]
    shape = rf'"{field.name}"{WHITESPACE}:{WHITESPACE}(?:null|\[{numbers}\])'
    repeated = f'"{field.name}"(?s:.*)"{field.name}"'
    return (
        f"(NOT contains({text}, '\\') AND regexp_matches({text}, {literal(shape)}) "
        f"AND NOT regexp_matches({text}, {literal(repeated)}))"
    )


def field_text(k: str, field: Field, text: str) -> str:
    """VARCHAR: the JSON text of a field, a string without quotes; NULL if it is null or missing."""
    if _number_list_kind(field):
        path = literal("/" + field.name)
        return f"CASE WHEN {k} IS NOT NULL THEN nullif(json_extract({text}, {path})::VARCHAR, 'null') END"
    return f"{k}.{quote_name(field.name)}::VARCHAR"


def field_value(k: str, field: Field, text: str, depth: int = 0) -> str:
    """The value of a field of `parse_fields`; NULL if it is missing, null, or of another type."""
    text_value = field_text(k, field, text)
    if field.type.kind == "string":
        return text_value
    slow = json_value(text_value, field.type, depth)
    if not _number_list_kind(field):
        return slow
    list_value = f"{k}.{quote_name(field.name)}"
    # The parser returns NULL or infinity for a number that does not fit the type.
    is_exact = f"isfinite(coalesce(list_sum({list_value}), 0)::DOUBLE) AND list_count({list_value}) = len({list_value})"
    is_usable = f"{_is_plain_list(text, field)} AND ({list_value} IS NULL OR ({is_exact}))"
    return f"CASE WHEN {is_usable} THEN {list_value} ELSE {slow} END"


def is_field_invalid(k: str, field: Field, value: str, text: str) -> str:
    """BOOLEAN: whether a field, whose SQL is `value`, makes its object invalid."""
    if field.required:
        return f"{value} IS NULL"
    if field.type.kind == "string":
        return "false"
    has_text = f"{field_text(k, field, text)} IS NOT NULL"
    if not _number_list_kind(field):
        return f"({value} IS NULL AND {has_text})"
    missing = f"{_is_plain_list(text, field)} AND {k}.{quote_name(field.name)} IS NULL"
    return f"(CASE WHEN {value} IS NOT NULL OR ({missing}) THEN false ELSE {has_text} END)"


def json_value(x: str, of: Type, depth: int = 0) -> str:
    """The value of a JSON text `x` as a type; NULL if it is null or of another type."""
    if of.kind in INTEGERS:
        # 1.0 and 1e2 are no integers: the parser writes both with a point, and 1e-7 with an e.
        is_integer = f"NOT contains({x}, '.') AND NOT contains({x}, 'e')"
        return f"CASE WHEN {is_integer} THEN try_cast({x} AS {INTEGERS[of.kind]}) END"
    if of.kind in REALS:
        number = f"try_cast({x} AS DOUBLE)"
        if of.kind == "float":
            number = f"try_cast({number} AS FLOAT)"
        named_double = f"WHEN {x} IN {NON_FINITE_DOUBLES} THEN try_cast(trim({x}, '\"') AS {REALS[of.kind]})"
        # 1e999 does not fit a double.
        return f"CASE WHEN isfinite({number}) THEN {number} {named_double} END"
    match of.kind:
        case "string":
            unescaped = f"CASE WHEN contains({x}, '\\') THEN json_extract_string({x}, '$') ELSE trim({x}, '\"') END"
            other = f"json_transform({x}, '\"VARCHAR\"')"
            return f"CASE WHEN starts_with({x}, '\"') THEN {unescaped} WHEN {x} <> 'null' THEN {other} END"
        case "boolean":
            return f"CASE {x} WHEN 'true' THEN true WHEN 'false' THEN false END"
        case "date":
            return _time_value(x, DATE_PATTERN, "DATE", DATE_RANGE)
        case "timestamp":
            return _time_value(x, TIMESTAMP_PATTERN, "TIMESTAMPTZ", TIMESTAMP_RANGE)
        case "array":
            assert of.element
            return _array_value(x, of.element, depth)
        case "map":
            assert of.element
            return _map_value(x, of.element, depth)
    return _struct_value(x, of.fields, depth)


def _time_value(x: str, shape: str, kind: str, span: str) -> str:
    time = f"try_cast(trim({x}, '\"') AS {kind})"
    return f"CASE WHEN regexp_full_match({x}, '\"{shape}\"') AND {time} BETWEEN {span} THEN {time} END"


def is_wrong_type(x: str, value: str) -> str:
    """BOOLEAN: whether a JSON text is neither null nor of its type; `value` is its value as the type."""
    return f"({value} IS NULL AND {x} IS NOT NULL AND {x} <> 'null')"


def _array_value(x: str, element: Type, depth: int) -> str:
    values, any_invalid = _element_values(f"json_extract({x}, '$[*]')::VARCHAR[]", element, depth)
    return f"CASE WHEN starts_with({x}, '[') THEN CASE WHEN NOT {any_invalid} THEN {values} END END"


def _map_value(x: str, element: Type, depth: int) -> str:
    values, any_invalid = _element_values(f"json_extract({x}, '$.*')::VARCHAR[]", element, depth)
    # An object with a repeated key is no map.
    keys = f"json_keys({x})"
    unique = f"len(list_distinct({keys})) = len({keys})"
    return f"CASE WHEN starts_with({x}, '{{') AND {unique} AND NOT {any_invalid} THEN map({keys}, {values}) END"


def _element_values(texts: str, element: Type, depth: int) -> tuple[str, str]:
    """The values of a list of JSON texts, and BOOLEAN: whether one of them is of another type."""
    e = f"e{depth}"
    value = json_value(e, element, depth + 1)
    any_invalid = f"list_bool_or(list_transform({texts}, lambda {e}: {is_wrong_type(e, value)}))"
    return f"list_transform({texts}, lambda {e}: {value})", f"coalesce({any_invalid}, false)"


def _struct_value(x: str, fields: Sequence[Field], depth: int) -> str:
    # A lambda over one element names the parsed fields, so that they are parsed once.
    k = f"k{depth}"
    values = [(f, field_value(k, f, x, depth + 1)) for f in fields]
    is_bad = " OR ".join(is_field_invalid(k, f, v, x) for f, v in values)
    packed = ", ".join(f"{quote_name(f.name)} := {v}" for f, v in values)
    struct = f"CASE WHEN NOT ({is_bad}) THEN struct_pack({packed}) END"
    transformed = f"list_transform([{parse_fields(x, fields)}], lambda {k}: {struct})[1]"
    return f"CASE WHEN starts_with({x}, '{{') THEN {transformed} END"
