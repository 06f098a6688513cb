"""Expressions that give another value each time they run, as `now()` and `rand()` do.

A record that is read again must make the same rows. The plan is read before the optimizer replaces such expressions by
values; only a typed literal (`timestamp'now'`) is a value already then, and is recognised by the text of the SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.model.checks.spark_plan import column_of, elements, replaced_plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VOLATILE_HINT = "this says another thing each time, and a record that is read again must make the same document"
# Classes of expressions that Spark takes for deterministic, as they are so within one query.
VOLATILE_CLASSES = re.compile(r"Current[A-Z]\w*|Now|LocalTimestamp")
TIME_TYPES = ("date", "timestamp", "timestamp_ntz")
# The SQL of what may be volatile, however deep it stands. Spark writes the literals and casts of times so.
VOLATILE_SQL = re.compile(
    r"current_|now\(|localtimestamp|user\(|\b(DATE|TIMESTAMP\w*) '| AS (DATE|TIMESTAMP)", re.IGNORECASE
)
# Text that Spark casts to a date or a timestamp: with a year it is the same each time; `now`, `today` and the like are
# not, nor is a time without a day, which is a time of today.
FIXED_TEXT = re.compile(r"\s*(?:[+-]?[0-9]{4}|epoch\b)", re.IGNORECASE)
VOLATILE_TEXT = re.compile(r"\s*(?:now|today|tomorrow|yesterday)\b|\s*T?[0-9]{1,2}:", re.IGNORECASE)
# A time without a day, as a regular expression of Java's: Spark casts it to a time of the day on which it is read.
TIME_WITHOUT_DAY = r"^[\s\p{Cntrl}]*(T|[0-9]{1,2}:)"
COMMENT = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)
TYPED_LITERAL = re.compile(r"\s*(?:date|timestamp\w*)\s*[rR]?['\"]", re.IGNORECASE)


def volatile_expressions(node: Any) -> Iterator[tuple[str, int]]:
    """The volatile expressions of one node of a plan: the SQL, and its first character's number in the text that was
    parsed (-1 if it is not known)."""
    for expression in elements(node.expressions()):
        # To walk an expression costs a hundred calls to the JVM.
        if not expression.deterministic() or VOLATILE_SQL.search(str(expression.sql())):
            yield from _volatile(expression)


def first_volatile(rows: DataFrame) -> str:
    """The first volatile expression of a frame's uppermost SELECT, as SQL; empty if there is none."""
    return next((sql for sql, _ in volatile_expressions(replaced_plan(rows))), "")


def texts_cast_to_timestamp(rows: DataFrame) -> list[Column]:
    """The texts of records that a frame's uppermost SELECT casts to TIMESTAMP."""
    casts = (text for expression in elements(replaced_plan(rows).expressions()) for text in _texts(expression))
    return [column_of(rows, text) for text in casts]


def _texts(expression: Any) -> Iterator[Any]:
    if expression.nodeName() == "Cast" and expression.dataType().typeName() == "timestamp":
        text = expression.child()
        if text.dataType().typeName() == "string" and not text.foldable():
            yield text
    for child in elements(expression.children()):
        yield from _texts(child)


def _volatile(expression: Any) -> Iterator[tuple[str, int]]:
    inner = [nested for child in elements(expression.children()) for nested in _volatile(child)]
    if inner:
        yield from inner
    elif not expression.deterministic() or VOLATILE_CLASSES.fullmatch(expression.getClass().getSimpleName()):
        yield _with_start(expression, str(expression.sql()))
    elif expression.nodeName() in ("Literal", "Cast") and expression.dataType().typeName() in TIME_TYPES:
        written = _source_text(expression)
        plain = COMMENT.sub(" ", written)
        if expression.nodeName() == "Cast":
            moves = _is_volatile_text(expression.child())
        else:
            moves = (typed := TYPED_LITERAL.match(plain)) is not None and not FIXED_TEXT.match(plain[typed.end() :])
        if moves:
            yield _with_start(expression, written or str(expression.sql()))


def _is_volatile_text(text: Any) -> bool:
    """Whether a constant text is a volatile time."""
    if text.dataType().typeName() != "string" or not text.foldable():
        return False
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        value = text.eval(None)
    except (Py4JError, PySparkException):
        # Spark says so itself, when it makes its value.
        return False
    return value is not None and VOLATILE_TEXT.match(str(value)) is not None


def _source_text(expression: Any) -> str:
    origin = expression.origin()
    if origin.sqlText().isEmpty() or origin.startIndex().isEmpty() or origin.stopIndex().isEmpty():
        return ""
    return str(origin.sqlText().get())[origin.startIndex().get() : origin.stopIndex().get() + 1]


def _with_start(expression: Any, text: str) -> tuple[str, int]:
    start = expression.origin().startIndex()
    return text, -1 if start.isEmpty() else int(start.get())
