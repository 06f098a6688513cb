"""Which texts are JSON, and how a declared field is read from one: expressions of DuckDB.

docs/records.md says the same in words. DuckDB's parser (yyjson) takes two things for JSON that are none, a comma behind
the last element and the numbers NaN and Infinity; texts that may have one are looked at again without their strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps

from penstock.declare.schema import Field, Type

SPACE = r"[ \t\r\n]*"
NAMED = "-?(?i:nan|inf)"
# Each begins with a letter that RE2 can look for alone: together they cost five times as much.
FOREIGN = (rf",{SPACE}(?:[}}\]]|{NAMED})", rf":{SPACE}{NAMED}")
IN_LIST = rf"\[{SPACE}{NAMED}"
ALONE = rf"^{SPACE}{NAMED}"
STRINGS = r'"(?:[^"\\]|\\.)*"'
# What to_json of Spark writes for doubles that JSON has no number for.
NAMED_DOUBLES = """('"NaN"', '"Infinity"', '"-Infinity"')"""
INTEGERS = {"tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT"}
REALS = {"float": "FLOAT", "double": "DOUBLE"}
PLAIN_ARRAY = {"bigint": r"\[[-0-9,]*\]", "int": r"\[[-0-9,]*\]", "double": r"\[[-0-9.,]*\]"}
# RFC 3339, the zone may be left out and is then UTC.
MOMENT = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?"
DAY = r"\d{4}-\d\d-\d\d"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def is_json(text: str, *, plain: bool = True) -> str:
    """BOOLEAN: whether a text is one JSON value as RFC 8259 has it; NULL for NULL.

    plain: whether it may be one plain value; an object or a list is found out a little faster.
    """
    without_strings = f"regexp_replace({text}, {literal(STRINGS)}, '\"\"', 'g')"
    again = f"NOT ({_foreign(without_strings, plain)})"
    return f"(json_valid({text}) AND CASE WHEN {_foreign(text, plain)} THEN {again} ELSE true END)"


def _foreign(text: str, plain: bool) -> str:
    tests = [f"regexp_matches({text}, {literal(one)})" for one in (*FOREIGN, *([ALONE] if plain else []))]
    return " OR ".join([*tests, f"(contains({text}, '[') AND regexp_matches({text}, {literal(IN_LIST)}))"])


def is_object(text: str) -> str:
    """BOOLEAN: whether a text that is JSON is an object."""
    return f"(starts_with({text}, '{{') OR regexp_matches({text}, '^{SPACE}\\{{'))"


def parts(text: str, fields: Sequence[Field]) -> str:
    """STRUCT: the texts of an object's fields: of a STRING its value, of others their JSON; NULL for null and for one
    that is missing. Of two fields of one name it is the first. The text must be JSON."""
    layout = {f.name: "VARCHAR" if f.type.kind == "string" else "JSON" for f in fields}
    return f"json_transform({text}, {literal(dumps(layout))})"


def text_in(k: str, field: Field) -> str:
    """VARCHAR: what `parts` found for a field."""
    return f"{k}.{name(field.name)}::VARCHAR"


def value_in(k: str, field: Field, depth: int = 0) -> str:
    """The value of a field that `parts` found; NULL if it is missing, null, or none of its type."""
    text = text_in(k, field)
    return text if field.type.kind == "string" else value(text, field.type, depth)


def amiss(k: str, field: Field, found: str) -> str:
    """BOOLEAN: whether an object is no record because of a field. found: its value."""
    if field.required:
        return f"{found} IS NULL"
    return "false" if field.type.kind == "string" else f"({found} IS NULL AND {text_in(k, field)} IS NOT NULL)"


def value(x: str, of: Type, depth: int = 0) -> str:
    """The value of a JSON text `x` as a type; NULL if it is null, or none of that type."""
    if of.kind in INTEGERS:
        # 1.0 and 1e2 are numbers and not integers: the parser writes both with a point.
        return f"CASE WHEN NOT contains({x}, '.') THEN try_cast({x} AS {INTEGERS[of.kind]}) END"
    if of.kind in REALS:
        number = f"try_cast({x} AS {REALS[of.kind]})"
        named = f"WHEN {x} IN {NAMED_DOUBLES} THEN try_cast(trim({x}, '\"') AS {REALS[of.kind]})"
        # 1e999 is a number that no double holds.
        return f"CASE WHEN isfinite({number}) THEN {number} {named} END"
    match of.kind:
        case "string":
            unescaped = f"CASE WHEN contains({x}, '\\') THEN json_extract_string({x}, '$') ELSE trim({x}, '\"') END"
            return f"CASE WHEN starts_with({x}, '\"') THEN {unescaped} WHEN {x} <> 'null' THEN {x} END"
        case "boolean":
            return f"CASE {x} WHEN 'true' THEN true WHEN 'false' THEN false END"
        case "date":
            return f"CASE WHEN regexp_full_match({x}, '\"{DAY}\"') THEN try_cast(trim({x}, '\"') AS DATE) END"
        case "timestamp":
            return f"CASE WHEN regexp_full_match({x}, '\"{MOMENT}\"') THEN try_cast(trim({x}, '\"') AS TIMESTAMPTZ) END"
        case "array":
            assert of.element
            return _array(x, of.element, depth)
        case "map":
            assert of.element
            return _map(x, of.element, depth)
    return _struct(x, of.fields, depth)


def wrong(x: str, found: str) -> str:
    """BOOLEAN: whether a JSON text says something, but nothing of its type. found: its value."""
    return f"({found} IS NULL AND {x} IS NOT NULL AND {x} <> 'null')"


def _array(x: str, element: Type, depth: int) -> str:
    e = f"e{depth}"
    each = value(e, element, depth + 1)
    elements = f"json_extract({x}, '$[*]')::VARCHAR[]"
    one_wrong = f"list_bool_or(list_transform({elements}, lambda {e}: {wrong(e, each)}))"
    slow = f"CASE WHEN NOT coalesce({one_wrong}, false) THEN list_transform({elements}, lambda {e}: {each}) END"
    shape = PLAIN_ARRAY.get(element.kind)
    if shape:
        # Plain numbers need no look at each: the parser reads them at once, and what it could not hold shows in a sum.
        kind = literal(f'["{INTEGERS.get(element.kind) or REALS[element.kind]}"]')
        read = f"json_transform({x}, {kind})"
        fits = f"coalesce(isfinite(list_sum({read})::DOUBLE), true) AND NOT list_contains({read}, NULL)"
        slow = f"CASE WHEN regexp_full_match({x}, {literal(shape)}) AND {fits} THEN {read} ELSE {slow} END"
    return f"CASE WHEN starts_with({x}, '[') THEN {slow} END"


def _map(x: str, element: Type, depth: int) -> str:
    e = f"e{depth}"
    each = value(e, element, depth + 1)
    values = f"json_extract({x}, '$.*')::VARCHAR[]"
    one_wrong = f"list_bool_or(list_transform({values}, lambda {e}: {wrong(e, each)}))"
    # A map has each key once: an object that has one twice is no map.
    keys = f"json_keys({x})"
    unique = f"len(list_distinct({keys})) = len({keys})"
    made = f"map({keys}, list_transform({values}, lambda {e}: {each}))"
    return f"CASE WHEN starts_with({x}, '{{') AND {unique} AND NOT coalesce({one_wrong}, false) THEN {made} END"


def _struct(x: str, fields: Sequence[Field], depth: int) -> str:
    # A parameter of a lambda over one element names the fields' texts, so that they are cut out once.
    k = f"k{depth}"
    found = [(f, value_in(k, f, depth + 1)) for f in fields]
    bad = " OR ".join(amiss(k, f, v) for f, v in found)
    packed = ", ".join(f"{name(f.name)} := {v}" for f, v in found)
    made = f"CASE WHEN NOT ({bad}) THEN struct_pack({packed}) END"
    return f"CASE WHEN starts_with({x}, '{{') THEN list_transform([{parts(x, fields)}], lambda {k}: {made})[1] END"
