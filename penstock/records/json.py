"""Which texts are JSON, and how a declared field is read from one: expressions of DuckDB.

docs/records.md says the same in words. DuckDB's parser (yyjson) takes two things for JSON that are none, a comma behind
the last element and the numbers NaN and Infinity; texts that may have one are looked at again without their strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.declare.schema import Field, Type

SPACE = r"[ \t\r\n]*"
NAMED = "-?(?i:nan|inf)"
# Each begins with a letter that RE2 can look for alone: together they cost five times as much.
FOREIGN = (rf",{SPACE}(?:[}}\]]|{NAMED})", rf":{SPACE}{NAMED}", rf"\[{SPACE}{NAMED}", rf"^{SPACE}{NAMED}")
STRINGS = r'"(?:[^"\\]|\\.)*"'
# What to_json of Spark writes for doubles that JSON has no number for.
NAMED_DOUBLES = """('"NaN"', '"Infinity"', '"-Infinity"')"""
INTEGERS = {"tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT"}
REALS = {"float": "FLOAT", "double": "DOUBLE"}
PLAIN_ARRAY = {"bigint": r"\[[-0-9,]*\]", "int": r"\[[-0-9,]*\]", "double": r"\[[-0-9.,]*\]"}
# RFC 3339; the zone may be left out and is then UTC. The parser takes 24:00 and a zone of +99:99 too.
DAY = r"\d{4}-\d\d-\d\d"
CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d"
MOMENT = rf"{DAY}[T ]{CLOCK}:\d\d(?:\.\d+)?(?:Z|[+-]{CLOCK})?"
# The years that Python has too.
DAYS = "DATE '0001-01-01' AND DATE '9999-12-31'"
MOMENTS = "TIMESTAMPTZ '0001-01-01 00:00:00+00' AND TIMESTAMPTZ '9999-12-31 23:59:59.999999+00'"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def is_json(text: str) -> str:
    """BOOLEAN: whether a text is one JSON value as RFC 8259 has it; NULL for NULL."""
    again = f"regexp_replace({text}, {literal(STRINGS)}, '\"\"', 'g')"
    return f"(json_valid({text}) AND CASE WHEN {_foreign(text)} THEN NOT ({_foreign(again)}) ELSE true END)"


def _foreign(text: str) -> str:
    return " OR ".join(f"regexp_matches({text}, {literal(one)})" for one in FOREIGN)


def is_object(text: str) -> str:
    """BOOLEAN: whether a text that is JSON is an object."""
    return f"(starts_with({text}, '{{') OR regexp_matches({text}, '^{SPACE}\\{{'))"


def pointers(fields: Iterable[Field]) -> str:
    """The places of fields in an object, as json_extract takes them."""
    return "[" + ", ".join(literal("/" + f.name.replace("~", "~0").replace("/", "~1")) for f in fields) + "]"


def record(text: str, fields: Sequence[Field]) -> str:
    """VARCHAR[]: the JSON texts of the fields of a text that is a JSON object; NULL for any other text."""
    return f"CASE WHEN {is_object(text)} AND {is_json(text)} THEN {parts(text, fields)} END"


def parts(text: str, fields: Iterable[Field]) -> str:
    """VARCHAR[]: the JSON texts of an object's fields, in order; NULL for one that is missing. Of two fields of one
    name it is the first."""
    return f"json_extract({text}, {pointers(fields)})::VARCHAR[]"


def value(x: str, of: Type, depth: int = 0) -> str:
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
            return f"CASE WHEN starts_with({x}, '\"') THEN {unescaped} WHEN {x} <> 'null' THEN {x} END"
        case "boolean":
            return f"CASE {x} WHEN 'true' THEN true WHEN 'false' THEN false END"
        case "date":
            return _time(x, DAY, "DATE", DAYS)
        case "timestamp":
            return _time(x, MOMENT, "TIMESTAMPTZ", MOMENTS)
        case "array":
            assert of.element
            return _array(x, of.element, depth)
        case "map":
            assert of.element
            return _map(x, of.element, depth)
    return _struct(x, of.fields, depth)


def _time(x: str, shape: str, kind: str, span: str) -> str:
    time = f"try_cast(trim({x}, '\"') AS {kind})"
    return f"CASE WHEN regexp_full_match({x}, '\"{shape}\"') AND {time} BETWEEN {span} THEN {time} END"


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
        fits = f"coalesce(isfinite(list_sum({read})::DOUBLE), true) AND list_count({read}) = len({read})"
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
    found = [value(f"{k}[{i}]", f.type, depth + 1) for i, f in enumerate(fields, 1)]
    bad = [
        f"{v} IS NULL" if f.required else wrong(f"{k}[{i}]", v)
        for i, (f, v) in enumerate(zip(fields, found, strict=True), 1)
    ]
    packed = ", ".join(f"{name(f.name)} := {v}" for f, v in zip(fields, found, strict=True))
    made = f"CASE WHEN NOT coalesce({' OR '.join(bad)}, false) THEN struct_pack({packed}) END"
    return f"CASE WHEN starts_with({x}, '{{') THEN list_transform([{parts(x, fields)}], lambda {k}: {made})[1] END"
