"""Expressions of Spark's analysed plan that give another value each time they run, as `now()` and `rand()` do.

A record that is read again must make the same rows. The plan is asked before the optimizer replaces moments by values;
only a typed literal (`timestamp'now'`) is a value already then, and is told by the text it was written as.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MOMENT = "this says another thing each time, and a record that is read again must make the same document"
# Classes of expressions that Spark takes for deterministic, as they are so within one query.
CURRENT = re.compile(r"Current[A-Z]\w*|Now|LocalTimestamp")
TIMES = ("date", "timestamp", "timestamp_ntz")
# Of text that Spark makes a date or a timestamp of: what begins with a year is the same each time. `now`, `today` and
# their like are not, nor is a time alone, which is one of today.
SAME = re.compile(r"\s*(?:[+-]?[0-9]{4}|epoch\b)", re.IGNORECASE)
MOVING = re.compile(r"\s*(?:now|today|tomorrow|yesterday)\b|\s*T?[0-9]{1,2}:", re.IGNORECASE)
# The same in Java's words, of a record's text: Spark makes of it a time of the day on which it is read.
DAYLESS = r"^[\s\p{Cntrl}]*(T|[0-9]{1,2}:)"
COMMENT = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)
TYPED = re.compile(r"\s*(?:date|timestamp\w*)\s*[rR]?['\"]", re.IGNORECASE)


def plan_of(rows: DataFrame) -> Any:
    """The analysed plan, with functions that stand for others replaced by those."""
    jvm: Any = rows.sparkSession._jvm
    replace = getattr(jvm.org.apache.spark.sql.catalyst.optimizer, "ReplaceExpressions$")
    return getattr(replace, "MODULE$").apply(rows._jdf.queryExecution().analyzed())


def moments(node: Any) -> Iterator[tuple[str, int]]:
    """The expressions of one node of a plan that give another value each time: as SQL, and the first character's number
    in the text they were read from (-1 if it is not known)."""
    for expression in _each(node.expressions()):
        yield from _within(expression)


def moment_of(rows: DataFrame) -> str:
    """What the uppermost SELECT of a frame says otherwise each time, as SQL; empty if nothing."""
    return next((said for said, _ in moments(plan_of(rows))), "")


def texts_of(rows: DataFrame) -> list[Column]:
    """The texts of records that the uppermost SELECT of a frame makes a TIMESTAMP of."""
    from pyspark.sql.classic.column import Column

    jvm: Any = rows.sparkSession._jvm
    made = jvm.org.apache.spark.sql.classic.ExpressionUtils
    found = (text for expression in _each(plan_of(rows).expressions()) for text in _texts(expression))
    return [Column(made.column(text)) for text in found]


def _texts(expression: Any) -> Iterator[Any]:
    if expression.nodeName() == "Cast" and expression.dataType().typeName() == "timestamp":
        text = expression.child()
        if text.dataType().typeName() == "string" and not text.foldable():
            yield text
    for child in _each(expression.children()):
        yield from _texts(child)


def _within(expression: Any) -> Iterator[tuple[str, int]]:
    inner = [found for child in _each(expression.children()) for found in _within(child)]
    if inner:
        yield from inner
    elif not expression.deterministic() or CURRENT.fullmatch(expression.getClass().getSimpleName()):
        yield _told(expression, str(expression.sql()))
    elif expression.nodeName() in ("Literal", "Cast") and expression.dataType().typeName() in TIMES:
        written = _written(expression)
        plain = COMMENT.sub(" ", written)
        if expression.nodeName() == "Cast":
            moves = _moves(expression.child())
        else:
            moves = (typed := TYPED.match(plain)) is not None and not SAME.match(plain[typed.end() :])
        if moves:
            yield _told(expression, written or str(expression.sql()))


def _moves(text: Any) -> bool:
    """Whether text that is the same for all records is one of a moment."""
    if text.dataType().typeName() != "string" or not text.foldable():
        return False
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        value = text.eval(None)
    except (Py4JError, PySparkException):
        # Spark says so itself, when it makes its value.
        return False
    return value is not None and MOVING.match(str(value)) is not None


def _written(expression: Any) -> str:
    origin = expression.origin()
    if origin.sqlText().isEmpty() or origin.startIndex().isEmpty() or origin.stopIndex().isEmpty():
        return ""
    return str(origin.sqlText().get())[origin.startIndex().get() : origin.stopIndex().get() + 1]


def _told(expression: Any, said: str) -> tuple[str, int]:
    start = expression.origin().startIndex()
    return said, -1 if start.isEmpty() else int(start.get())


def _each(found: Any) -> Iterator[Any]:
    return (found.apply(number) for number in range(found.size()))
