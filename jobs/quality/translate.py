"""Predicates that mean the same in DuckDB and in Spark; only those are judged where records are decoded.

What is taken: AND, OR, NOT, comparisons of a field with a literal of its kind, IN, BETWEEN, IS NULL, and RLIKE with a
pattern of which Java and RE2 accept the same texts. Both engines order text by its bytes and NaN above all numbers.
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
# One element of a pattern: a character that means itself, an escaped one, or a class of such; then how often.
PLAIN = r"[A-Za-z0-9 _:;,/@#%&=<>~!'\"-]"
CLASS = r"\[\^?(?:[A-Za-z0-9 _:;,/@#%=<>~!.+*?(){}|$-]|\\[\]\-.^])+\]"
ITEM = rf"(?:{PLAIN}|\\[.\-+*?()\[\]{{}}|^$/]|{CLASS})"
# To RE2 a count with a zero before it is none, and its brace a character.
TIMES = r"(?:0|[1-9]\d?)"
PATTERN = re.compile(rf"\^?(?:{ITEM}(?:[*+?]|\{{{TIMES}(?:,{TIMES}?)?\}})?)*\$?")
# RE2 has no room for some that are longer.
LONGEST = 200
# Java's $ also stands before one line end at the end of the text.
JAVA_END = r"(?:\r\n|[\n\r\x{85}\x{2028}\x{2029}])?\z"


def to_duckdb(rule: Rule) -> str | None:
    """A rule's predicate in SQL of DuckDB; None if it is not certain to mean the same there."""
    if rule.format == "text" and not isinstance(rule.predicate, exp.Boolean):
        return None
    kinds = {f.name.lower(): (f.name, f.type.kind) for f in rule.fields}
    try:
        return _sql(rule.predicate, kinds)
    except _Unsure:
        return None


class _Unsure(Exception):
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
                raise _Unsure
            return f"regexp_matches({name}, {json_sql.literal(_pattern(node.expression.this))})"
        case exp.Column():
            name, kind = _field(node, kinds)
            if kind != "boolean":
                raise _Unsure
            return name
    if type(node) in COMPARED:
        name, kind = _field(node.this, kinds)
        return f"({name} {COMPARED[type(node)]} {_literal(node.expression, kind)})"
    raise _Unsure


def _field(node: exp.Expr, kinds: dict[str, tuple[str, str]]) -> tuple[str, str]:
    if not isinstance(node, exp.Column) or len(node.parts) != 1 or node.name.lower() not in kinds:
        raise _Unsure
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
    raise _Unsure


def _pattern(pattern: str) -> str:
    if len(pattern) > LONGEST or not PATTERN.fullmatch(pattern):
        raise _Unsure
    try:
        with warnings.catch_warnings(action="error"):
            re.compile(pattern)
    except (re.error, FutureWarning):  # [z-a] and x{2,1}; [a--b]
        raise _Unsure from None
    if not pattern.endswith("$") or pattern.endswith(r"\$"):
        return pattern
    if "[^" in pattern:
        # It may match the \r of a last \r\n; Java's $ does not stand between the two.
        raise _Unsure
    return pattern[:-1] + JAVA_END
