"""Evaluates the expectations of a stream on the rows of its transform, in Spark, with the encoding of the rows."""

from __future__ import annotations

import logging
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, get_args

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from penstock.errors import DeclarationError
from penstock.model.checks.predicates import check_deterministic, satisfies
from penstock.model.expectation import OnViolation
from penstock.model.sql.spark_select import error_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

    from penstock.model.expectation import Expectation
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# The column `<prefix><number>` of encoded rows says whether a row violates the rule of that number.
VIOLATION_PREFIX = "_violates_"
# The rows that violate some rule that makes dead letters, in the metric of `accepted_rows`; no rule has this name.
DEAD_ROWS = "dead rows"


def check_expectations(stream: Stream, rows: DataFrame) -> None:
    """Check the rules of a stream on the rows that its transform returned, before any batch.

    Raises:
        DeclarationError: A rule names an unknown column, is not boolean or not deterministic, or is no expression over
            one row.
    """
    for rule in stream.expectations:
        what = f"{rule.location}: expectation {rule.name} of stream {stream.name}"
        try:
            kind = rows.select(F.expr(rule.predicate)).schema.fields[0].dataType.simpleString()
            if kind != "boolean":
                got, hint = f"{rule.text}: {kind}", "write a comparison, as amount > 0"
                raise DeclarationError(f"{what}: its predicate is not boolean", got=got, hint=hint)
            # Spark refuses an aggregate beside other columns, and a generator within another expression.
            rows.select("*", satisfies(rule.predicate))
            check_deterministic(rows, rule.predicate, what)
        except PySparkException as e:
            raise DeclarationError(
                f"{what}: Spark does not take its predicate",
                got=error_text(e),
                hint=f"write a boolean expression over the columns {', '.join(rows.columns)}",
            ) from e


def violation_columns(stream: Stream) -> list[Column]:
    """BOOLEAN columns, never NULL, that say of a row of the transform which rules it violates."""
    return [
        (~satisfies(rule.predicate)).alias(f"{VIOLATION_PREFIX}{number}")
        for number, rule in enumerate(stream.expectations)
    ]


def accepted_rows(stream: Stream, encoded: DataFrame, metric: Observation) -> DataFrame:
    """Leave the rows out that are dead letters, and the columns of violations. A metric counts rows by rule.

    For a run apart from the stream, which writes no dead letters and whose rows do not come to the driver.
    """
    if not stream.expectations:
        return encoded
    counts = [F.count_if(column).alias(rule.name) for column, rule in rule_columns(stream, *get_args(OnViolation))]
    is_dead = reduce(or_, (F.col(column) for column, _ in rule_columns(stream, "dead letter")), F.lit(False))
    own = [column for column in encoded.columns if not column.startswith(VIOLATION_PREFIX)]
    observed = encoded.observe(metric, *counts, F.count_if(is_dead).alias(DEAD_ROWS))
    return observed.where(~is_dead).select(*own)


def dead_rows(stream: Stream, metric: Observation) -> tuple[int, str]:
    """How many rows `accepted_rows` left out, and by which rule some of them.

    Raises:
        DeclarationError: A row violates a rule by which its batch would fail.
    """
    if not stream.expectations:
        return 0, ""
    violations = metric.get
    violated = [rule for rule in stream.expectations if violations[rule.name]]
    for rule in violated:
        log.warning(
            "stream %s: %d rows violate %s: %s", stream.name, violations[rule.name], rule.name, rule.on_violation
        )
        if rule.on_violation == "fail":
            raise DeclarationError(
                f"stream {stream.name} makes rows that violate its expectation {rule.name}, which fails them",
                got=f"{violations[rule.name]:,} rows, {rule.text}",
                hint="correct the transform or the rule, or choose KEEP or DEAD LETTER",
            )
    reasons = (reason_text(rule) for rule in violated if rule.on_violation == "dead letter")
    return int(violations[DEAD_ROWS]), next(reasons, "")


def rule_columns(stream: Stream, *actions: str) -> list[tuple[str, Expectation]]:
    """The rules with one of these actions, each with its column of encoded rows."""
    rules = ((f"{VIOLATION_PREFIX}{number}", rule) for number, rule in enumerate(stream.expectations))
    return [(column, rule) for column, rule in rules if rule.on_violation in actions]


def reason_text(rule: Expectation) -> str:
    """Why a row is a dead letter."""
    return f"the row violates {rule.name}: {rule.text}"
