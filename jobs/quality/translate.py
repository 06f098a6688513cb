"""Translates predicates to DuckDB, if they certainly mean the same there as in Spark.

Translated are AND, OR, NOT, comparisons of a field with a literal of its type, IN, BETWEEN, IS NULL, and RLIKE with a
pattern that matches the same texts in Java and RE2. Both engines order text by bytes, and NaN above all numbers.
"""

from __future__ import annotations

import re
import warnings

from sqlglot import exp

from jobs.quality.rules import Rule
from penstock.codec import json_sql

NUMBERS = {"tinyint", "smallint", "int", "bigint", "float", "double"}
COMPARED: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
}
NUMBER = re.compile(r"\d{1,15}(\.\d{1,6})?")
# An item of a pattern is a literal character, an escaped one, or a class of such; a quantifier may follow.
PLAIN = r"[A-Za-z0-9 _:;,/@#%&=<>~!'\"-]"
CLASS = r"\[\^?(?:[A-Za-z0-9 _:;,/@#%=<>~!.+*?(){}|$-]|\\[\]\-.^])+\]"
ITEM = rf"(?:{PLAIN}|\\[.\-+*?()\[\]{{}}|^$/]|{CLASS})"
# In RE2 a quantifier with a leading zero is literal text.
QUANTITY = r"(?:0|[1-9]\d?)"
PATTERN = re.compile(rf"\^?(?:{ITEM}(?:[*+?]|\{{{QUANTITY}(?:,{QUANTITY}?)?\}})?)*\$?")
# RE2 may run out of memory for longer patterns.
MAX_PATTERN_LENGTH = 200
# In Java, $ also matches before a line end at the end of the text.
JAVA_END = r"(?:\r\n|[\n\r\x{85}\x{2028}\x{2029}])?\z"


def to_duckdb(rule: Rule) -> str | None:
    """The predicate of a rule as DuckDB SQL; None if it may mean something else there."""
    if rule.format == "text" and not isinstance(rule.predicate, exp.Boolean):
        return None
    kinds = {f.name.lower(): (f.name, f.type.kind) for f in rule.fields}
    try:
        return _sql(rule.predicate, kinds)
    except _NotTranslatable:
        return None


class _NotTranslatable(Exception):
    pass


def _sql(node: exp.Expr, kinds: dict[str, tuple[str, str]]) -> str:
    match node:
        case exp.Boolean():
            return "true" if node.this else "false"
        case exp.Paren():
            return f"({_sql(node.this, kinds)})"
        case exp.Not():
            return f"(NOT {_sql(node.this, kinds)})"
        case exp.And() | exp.Or():
            word = "AND" if isinstance(node, exp.And) else "OR"
            return f"({_sql(node.left, kinds)} {word} {_sql(node.right, kinds)})"
        case exp.Is() if isinstance(node.expression, exp.Null):
            return f"({_field(node.this, kinds)[0]} IS NULL)"
        case exp.In() if node.expressions and not node.args.get("query"):
            name, kind = _field(node.this, kinds)
            return f"({name} IN ({', '.join(_literal(e, kind) for e in node.expressions)}))"
        case exp.Between() if not node.args.get("symmetric"):
            name, kind = _field(node.this, kinds)
            return f"({name} BETWEEN {_literal(node.args['low'], kind)} AND {_literal(node.args['high'], kind)})"
        case exp.RegexpLike() if not node.args.get("flag"):
            name, kind = _field(node.this, kinds)
            if kind != "string" or not isinstance(node.expression, exp.Literal):
                raise _NotTranslatable
            return f"regexp_matches({name}, {json_sql.literal(_pattern(node.expression.this))})"
        case exp.Column():
            name, kind = _field(node, kinds)
            if kind != "boolean":
                raise _NotTranslatable
            return name
    if type(node) in COMPARED:
        name, kind = _field(node.this, kinds)
        return f"({name} {COMPARED[type(node)]} {_literal(node.expression, kind)})"
    raise _NotTranslatable


def _field(node: exp.Expr, kinds: dict[str, tuple[str, str]]) -> tuple[str, str]:
    if not isinstance(node, exp.Column) or len(node.parts) != 1 or node.name.lower() not in kinds:
        raise _NotTranslatable
    name, kind = kinds[node.name.lower()]
    # Spark compares a FLOAT with a decimal as doubles, DuckDB as floats.
    return json_sql.quote_name(name) + ("::DOUBLE" if kind == "float" else ""), kind


def _literal(node: exp.Expr, kind: str) -> str:
    sign = ""
    if isinstance(node, exp.Neg):
        sign, node = "-", node.this
    if isinstance(node, exp.Boolean) and kind == "boolean" and not sign:
        return "true" if node.this else "false"
    if isinstance(node, exp.Literal):
        if node.is_string and kind == "string" and not sign:
            return json_sql.literal(node.this)
        if not node.is_string and kind in NUMBERS and NUMBER.fullmatch(node.this):
            return sign + str(node.this)
    raise _NotTranslatable


def _pattern(pattern: str) -> str:
    if len(pattern) > MAX_PATTERN_LENGTH or not PATTERN.fullmatch(pattern):
        raise _NotTranslatable
    try:
        with warnings.catch_warnings(action="error"):
            re.compile(pattern)
    except (re.error, FutureWarning):  # [z-a] and x{2,1}; [a--b]
        raise _NotTranslatable from None
    if not pattern.endswith("$") or pattern.endswith(r"\$"):
        return pattern
    if "[^" in pattern:
        # The class may match the \r of a final \r\n, between which Java's $ does not match.
        raise _NotTranslatable
    return pattern[:-1] + JAVA_END
