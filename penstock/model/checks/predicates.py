"""Predicates of rules: one syntax and one meaning for the expectations of streams and for the rules of topic quality.

A predicate is a boolean Spark SQL expression over the columns of one row. A row satisfies it if it is true; a row for
which it is false or NULL violates it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.checks.volatile_expressions import first_volatile
from penstock.model.lazy_spark import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from sqlglot import exp

NOT_DETERMINISTIC_HINT = "compare with a field, or with a literal time"


def parse_predicate(what: str, text: str) -> exp.Condition:
    """Parse a predicate, without Spark.

    Args:
        what: What error messages begin with.
        text: The predicate.

    Raises:
        DeclarationError: The text is no predicate over one row. Spark refuses what cannot be known here.
    """
    # Imported here because most declarations have no predicate.
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    from penstock.model.sql.parser import parse_one
    from penstock.model.sql.volatile_functions import momentary

    try:
        tokens = sqlglot.tokenize(text, read="spark")
        predicate = parse_one(text, "spark")
    except SqlglotError as e:
        raise DeclarationError(f"{what}: the rule is not a SQL expression", got=str(e).splitlines()[0]) from e
    if any(first.token_type == second.token_type == sqlglot.TokenType.STRING for first, second in pairwise(tokens)):
        # Spark reads 'a''b' as a text with a quote, the parser as two texts.
        raise DeclarationError(f"{what}: two quoted texts follow each other", hint="write \\' for a quote in a text")
    no_boolean = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Literal)
    if (
        not isinstance(predicate, exp.Condition)
        or predicate.find(exp.Query)
        or isinstance(predicate.unnest(), no_boolean)
    ):
        raise DeclarationError(
            f"{what}: the rule must be one boolean expression",
            got=text.strip(),
            hint="write a comparison of columns, without SELECT and WHERE",
        )
    if found := predicate.find(exp.AggFunc, exp.Window):
        raise DeclarationError(
            f"{what}: the rule aggregates rows, and it is evaluated for one row",
            got=found.sql("spark"),
            hint="compare columns; aggregate in the SELECT",
        )
    if called := next((name for _, name in momentary(tokens, "spark")), ""):
        raise DeclarationError(f"{what}: the rule is not deterministic", got=called, hint=NOT_DETERMINISTIC_HINT)
    return predicate


def predicate_columns(predicate: exp.Condition) -> list[str]:
    """The columns that a predicate names, in lower case; of a field of a struct its column."""
    from sqlglot import exp

    return list(dict.fromkeys(column.parts[0].name.lower() for column in predicate.find_all(exp.Column)))


def satisfies(sql: str) -> Column:
    """BOOLEAN, never NULL: whether a row satisfies a predicate."""
    return F.coalesce(F.expr(sql), F.lit(False))


def check_deterministic(rows: DataFrame, sql: str, what: str) -> None:
    """DeclarationError if a predicate may differ when rows are read again. what: what the error begins with."""
    if expression := first_volatile(rows.select(F.expr(sql))):
        raise DeclarationError(f"{what}: the rule is not deterministic", got=expression, hint=NOT_DETERMINISTIC_HINT)
