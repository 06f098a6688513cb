"""Which texts are JSON, and how a declared field is read from one: expressions of DuckDB.

docs/records.md says the same in words. DuckDB's parser (yyjson) takes two things for JSON that are none, a comma behind
the last element and the numbers NaN and Infinity; texts that may have one are looked at again without their strings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from json import dumps

from penstock.model.schema import Field, Type

WHITESPACE = r"[ \t\r\n]*"
NAMED_NUMBER = "-?(?i:nan|inf)"
# Each begins with a letter that RE2 can look for alone: together they cost five times as much.
NOT_JSON = (rf",{WHITESPACE}(?:[}}\]]|{NAMED_NUMBER})", rf":{WHITESPACE}{NAMED_NUMBER}")
NAMED_IN_LIST = rf"\[{WHITESPACE}{NAMED_NUMBER}"
NAMED_ALONE = rf"^{WHITESPACE}{NAMED_NUMBER}"
STRINGS = r'"(?:[^"\\]|\\.)*"'
# What to_json of Spark writes for doubles that JSON has no number for.
NAMED_DOUBLES = """('"NaN"', '"Infinity"', '"-Infinity"')"""
INTEGERS = {"tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT"}
REALS = {"float": "FLOAT", "double": "DOUBLE"}
OTHERS = {"string": "VARCHAR", "boolean": "BOOLEAN", "binary": "BLOB", "date": "DATE", "timestamp": "TIMESTAMPTZ"}
KINDS = {**INTEGERS, **REALS, **OTHERS}
# Lists that the parser may read at once: its name for the numbers, and what such a list is written with.
INTEGER_LIST = r"[-0-9, \t\r\n]*"
LISTS = {
    "int": ("INTEGER", INTEGER_LIST),
    "bigint": ("BIGINT", INTEGER_LIST),
    "double": ("DOUBLE", r"[-+0-9.eE, \t\r\n]*"),
}
PLAIN_NAME = re.compile("[A-Za-z0-9_ ]+")
# RFC 3339; the zone may be left out and is then UTC. The parser takes 24:00 and a zone of +99:99 too.
DATE_PATTERN = r"\d{4}-\d\d-\d\d"
TIME_PATTERN = r"(?:[01]\d|2[0-3]):[0-5]\d"
TIMESTAMP_PATTERN = rf"{DATE_PATTERN}[T ]{TIME_PATTERN}:\d\d(?:\.\d+)?(?:Z|[+-]{TIME_PATTERN})?"
# The years that Python has too.
DATE_RANGE = "DATE '0001-01-01' AND DATE '9999-12-31'"
TIMESTAMP_RANGE = "TIMESTAMPTZ '0001-01-01 00:00:00+00' AND TIMESTAMPTZ '9999-12-31 23:59:59.999999+00'"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quote_name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def is_json(text: str, *, plain: bool = True) -> str:
    """BOOLEAN: whether a text is one JSON value as RFC 8259 has it; NULL for NULL.

    plain: whether it may be one plain value; an object or a list is found out a little faster.
    """
    without_strings = f"regexp_replace({text}, {literal(STRINGS)}, '\"\"', 'g')"
    again = f"NOT ({_may_be_invalid(without_strings, plain)})"
    return f"(json_valid({text}) AND CASE WHEN {_may_be_invalid(text, plain)} THEN {again} ELSE true END)"


def _may_be_invalid(text: str, plain: bool) -> str:
    tests = [f"regexp_matches({text}, {literal(one)})" for one in (*NOT_JSON, *([NAMED_ALONE] if plain else []))]
    return " OR ".join([*tests, f"(contains({text}, '[') AND regexp_matches({text}, {literal(NAMED_IN_LIST)}))"])


def is_object(text: str) -> str:
    """BOOLEAN: whether a text that is JSON is an object."""
    return f"(starts_with({text}, '{{') OR regexp_matches({text}, '^{WHITESPACE}\\{{'))"


def parse_record(text: str, fields: Sequence[Field]) -> str:
    """STRUCT: the parts of a text that is a JSON object; NULL for any other text."""
    return f"CASE WHEN {is_object(text)} AND {is_json(text, plain=False)} THEN {parse_fields(text, fields)} END"


def duckdb_type(of: Type) -> str:
    """A type as DuckDB names it."""
    match of.kind:
        case "array":
            assert of.element
            return f"{duckdb_type(of.element)}[]"
        case "map":
            assert of.element
            return f"MAP(VARCHAR, {duckdb_type(of.element)})"
        case "struct":
            return f"STRUCT({', '.join(f'{quote_name(f.name)} {duckdb_type(f.type)}' for f in of.fields)})"
    return KINDS[of.kind]


def parse_fields(text: str, fields: Sequence[Field]) -> str:
    """STRUCT: what lies in an object's fields: of a STRING its value, of a plain list of numbers too, of others their
    JSON; NULL for null and for one that is missing. Of two fields of one name it is the first. The text must be JSON.
    """
    return f"json_transform({text}, {literal(dumps({f.name: _transform_type(f) for f in fields}))})"


def _transform_type(field: Field) -> str | list[str]:
    if field.type.kind == "string":
        return "VARCHAR"
    return [LISTS[_number_list_kind(field)][0]] if _number_list_kind(field) else "JSON"


def _number_list_kind(field: Field) -> str:
    """The kind of the numbers in a list, if the parser may read it and its name needs no escape; else empty."""
    element = field.type.element.kind if field.type.kind == "array" and field.type.element else ""
    return element if element in LISTS and PLAIN_NAME.fullmatch(field.name) else ""


def _is_plain_list(text: str, field: Field) -> str:
    """BOOLEAN: whether a list of numbers can be taken as the parser gives it: it stands there as numbers and nothing
    else, or as null, and its name stands nowhere else in the text."""
    numbers = LISTS[_number_list_kind(field)][1]
    shape = rf'"{field.name}"{WHITESPACE}:{WHITESPACE}(?:null|\[{numbers}\])'
    twice = f'"{field.name}"(?s:.*)"{field.name}"'
    return (
        f"(NOT contains({text}, '\\') AND regexp_matches({text}, {literal(shape)}) "
        f"AND NOT regexp_matches({text}, {literal(twice)}))"
    )


def field_text(k: str, field: Field, text: str) -> str:
    """VARCHAR: a field's value as the text has it, a string without quotes; NULL if it is null or missing."""
    if _number_list_kind(field):
        place = literal("/" + field.name)
        return f"CASE WHEN {k} IS NOT NULL THEN nullif(json_extract({text}, {place})::VARCHAR, 'null') END"
    return f"{k}.{quote_name(field.name)}::VARCHAR"


def field_value(k: str, field: Field, text: str, depth: int = 0) -> str:
    """The value of a field that `parts` found in a text; NULL if it is missing, null, or none of its type."""
    found = field_text(k, field, text)
    if field.type.kind == "string":
        return found
    slow = json_value(found, field.type, depth)
    if not _number_list_kind(field):
        return slow
    given = f"{k}.{quote_name(field.name)}"
    # A number that its type cannot hold is NULL or infinite here.
    held = f"isfinite(coalesce(list_sum({given}), 0)::DOUBLE) AND list_count({given}) = len({given})"
    return f"CASE WHEN {_is_plain_list(text, field)} AND ({given} IS NULL OR ({held})) THEN {given} ELSE {slow} END"


def is_field_invalid(k: str, field: Field, found: str, text: str) -> str:
    """BOOLEAN: whether an object is no record because of a field. found: its value."""
    if field.required:
        return f"{found} IS NULL"
    if field.type.kind == "string":
        return "false"
    said = f"{field_text(k, field, text)} IS NOT NULL"
    if not _number_list_kind(field):
        return f"({found} IS NULL AND {said})"
    missing = f"{_is_plain_list(text, field)} AND {k}.{quote_name(field.name)} IS NULL"
    return f"(CASE WHEN {found} IS NOT NULL OR ({missing}) THEN false ELSE {said} END)"


def json_value(x: str, of: Type, depth: int = 0) -> str:
    """The value of a JSON text `x` as a type; NULL if it is null, or none of that type."""
    if of.kind in INTEGERS:
        # 1.0 and 1e2 are numbers and not integers: the parser writes both with a point, and 1e-7 with an e.
        whole = f"NOT contains({x}, '.') AND NOT contains({x}, 'e')"
        return f"CASE WHEN {whole} THEN try_cast({x} AS {INTEGERS[of.kind]}) END"
    if of.kind in REALS:
        number = f"try_cast({x} AS DOUBLE)"
        if of.kind == "float":
            number = f"try_cast({number} AS FLOAT)"
        named = f"WHEN {x} IN {NAMED_DOUBLES} THEN try_cast(trim({x}, '\"') AS {REALS[of.kind]})"
        # 1e999 is a number that no double holds.
        return f"CASE WHEN isfinite({number}) THEN {number} {named} END"
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


def is_wrong_type(x: str, found: str) -> str:
    """BOOLEAN: whether a JSON text says something, but nothing of its type. found: its value."""
    return f"({found} IS NULL AND {x} IS NOT NULL AND {x} <> 'null')"


def _array_value(x: str, element: Type, depth: int) -> str:
    found, one_wrong = _element_values(f"json_extract({x}, '$[*]')::VARCHAR[]", element, depth)
    return f"CASE WHEN starts_with({x}, '[') THEN CASE WHEN NOT {one_wrong} THEN {found} END END"


def _map_value(x: str, element: Type, depth: int) -> str:
    found, one_wrong = _element_values(f"json_extract({x}, '$.*')::VARCHAR[]", element, depth)
    # A map has each key once: an object that has one twice is no map.
    keys = f"json_keys({x})"
    unique = f"len(list_distinct({keys})) = len({keys})"
    return f"CASE WHEN starts_with({x}, '{{') AND {unique} AND NOT {one_wrong} THEN map({keys}, {found}) END"


def _element_values(texts: str, element: Type, depth: int) -> tuple[str, str]:
    """The values of a list of JSON texts, and BOOLEAN: whether one of them is none of its type."""
    e = f"e{depth}"
    each = json_value(e, element, depth + 1)
    one_wrong = f"list_bool_or(list_transform({texts}, lambda {e}: {is_wrong_type(e, each)}))"
    return f"list_transform({texts}, lambda {e}: {each})", f"coalesce({one_wrong}, false)"


def _struct_value(x: str, fields: Sequence[Field], depth: int) -> str:
    # A parameter of a lambda over one element names the fields' texts, so that they are cut out once.
    k = f"k{depth}"
    found = [(f, field_value(k, f, x, depth + 1)) for f in fields]
    bad = " OR ".join(is_field_invalid(k, f, v, x) for f, v in found)
    packed = ", ".join(f"{quote_name(f.name)} := {v}" for f, v in found)
    made = f"CASE WHEN NOT ({bad}) THEN struct_pack({packed}) END"
    return (
        f"CASE WHEN starts_with({x}, '{{') THEN list_transform([{parse_fields(x, fields)}], lambda {k}: {made})[1] END"
    )
