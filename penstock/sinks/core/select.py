"""Runs the SELECT of a sink in Spark, over views that have the names of its topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import DeclarationError
from penstock.model.checks.spark_plan import elements
from penstock.model.checks.volatile_expressions import VOLATILE_HINT, first_volatile, volatile_expressions
from penstock.model.lazy_spark import F, T
from penstock.model.sink import INDEX_COLUMN, PATH_COLUMN, RECORD_COLUMN, Sink
from penstock.model.sql.sink_select import ALONE, STREAM
from penstock.model.sql.spark_select import error_offset, error_text, select_nodes, temporary_views

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# Nodes of Spark's plan that process one row at a time.
ROW_NODES = {
    "Project", "Filter", "Union", "SubqueryAlias", "Generate", "WithCTE", "CTERelationDef", "CTERelationRef",
    "UnresolvedHint", "ResolvedHint", "OneRowRelation",
}  # fmt: skip
REASONS = {
    "Aggregate": f"{ALONE}: no aggregates",
    "Join": f"{ALONE}: no joins",
    "LateralJoin": f"{ALONE}: no joins",
    "Window": f"{ALONE}: no windows",
    "Sort": f"{ALONE}: no order",
    "Distinct": f"{ALONE}: no DISTINCT",
}
AGGREGATE_ERRORS = ("MISSING_GROUP_BY", "MISSING_AGGREGATION", "UNSUPPORTED_EXPR_FOR_WINDOW", "GROUP_BY_AGGREGATE")
HINTS = {
    **dict.fromkeys(AGGREGATE_ERRORS, STREAM),
    "AMBIGUOUS_REFERENCE": f"say of which table; {ALONE}, so of two topics take UNION ALL",
    "ASSIGNMENT_ARITY_MISMATCH": "give columns their names in the SELECT, by AS",
    "TABLE_OR_VIEW_NOT_FOUND": "name a topic of READ, in backticks if it has a dot or '-'",
    "UNRESOLVED_COLUMN": f"take a field of READ, or a part of `{RECORD_COLUMN}`; its own columns, in another clause",
}
DETERMINISTIC_HINT = f"leave it out, or take a field of the record, {RECORD_COLUMN}.timestamp or {RECORD_COLUMN}.offset"


def run_select(sink: Sink, views: Mapping[str, DataFrame]) -> tuple[DataFrame, bool]:
    """Run the SELECT.

    Args:
        sink: its declaration.
        views: the records of each topic.

    Returns:
        The rows, with `record` and the number of the SELECT that made them as last columns; and whether a record may
        make several rows.

    Raises:
        DeclarationError: with the location, if Spark or a sink does not take the SELECT.
    """
    from pyspark.errors import PySparkException

    with temporary_views(views) as spark:
        try:
            rows = spark.sql(sink.rewritten.sql)
            own = select_nodes(rows)
            names_of_nodes = {node.nodeName() for node in own}
            volatile = next((moment for node in own for moment in volatile_expressions(node)), None)
            exposed = next((text for node in own for text in _exposed_columns(node)), None)
        except PySparkException as e:
            raise spark_error(error_location(sink, e), e) from e
    if other := sorted(names_of_nodes - ROW_NODES):
        what = REASONS.get(other[0], f"{ALONE}, and Spark makes {other[0]} of this")
        raise _select_error(sink, what, ", ".join(other), STREAM)
    if volatile:
        text, at = volatile
        place = sink.select_location(at) if at >= 0 else sink.at("SELECT")
        raise DeclarationError(f"{place}: {VOLATILE_HINT}", got=text, hint=DETERMINISTIC_HINT)
    names = [name.lower() for name in rows.columns]
    if names[-2:] != [RECORD_COLUMN, PATH_COLUMN]:
        hint = "let every SELECT read a topic that READ names, or a SELECT that does"
        raise _select_error(sink, "the record that a row comes from is not known", ", ".join(rows.columns), hint)
    if exposed:
        raise _select_error(
            sink, "a star here also selects the sink's own columns", exposed, "name the columns one by one"
        )
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        hint = "rename one by AS; the record itself is not part of a document, but record.offset may be"
        raise _select_error(sink, "two columns have the same name", ", ".join(duplicates), hint)
    if INDEX_COLUMN in names:
        raise _select_error(sink, "a column has a name that the sink itself uses", INDEX_COLUMN, "rename it by AS")
    if unnamed := [name for name in rows.columns if "(" in name]:
        hint = "give it a name by AS: the name that Spark gives it may change with Spark's version"
        raise _select_error(sink, "a column has no name", unnamed[0], hint)
    if len(names) == 2:
        raise _select_error(sink, "the document has no field", None, "select a column")
    return rows, "Generate" in names_of_nodes


def _select_error(sink: Sink, what: str, got: str | None, hint: str) -> DeclarationError:
    return DeclarationError(f"{sink.at('SELECT')}: {what}", got=got, hint=hint)


def resolve_expression(
    sink: Sink, clause: str, frame: DataFrame, text: str, to: DataType | None = None
) -> tuple[Column, DataType]:
    """A clause's expression over a frame, and its type.

    Args:
        sink: its declaration.
        clause: for errors.
        frame: whose columns the expression may name.
        text: the expression.
        to: type to cast it to, if any; NULL where that fails.

    Raises:
        DeclarationError: with the clause's location, if Spark does not take the expression.
    """
    from pyspark.errors import PySparkException

    try:
        column = F.expr(text)
        selected = frame.select(column)
        kind = selected.schema.fields[0].dataType
        if moment := first_volatile(selected):
            raise DeclarationError(f"{sink.at(clause)}: {VOLATILE_HINT}", got=moment, hint=DETERMINISTIC_HINT)
        if to is not None:
            text_of_bytes = isinstance(kind, T.BinaryType) and not isinstance(to, T.BinaryType)
            column = (column.cast("string") if text_of_bytes else column).try_cast(to)
            kind = frame.select(column).schema.fields[0].dataType
        return column, kind
    except PySparkException as e:
        raise spark_error(sink.at(clause), e) from e


def _exposed_columns(node: Any) -> Iterator[str]:
    """The expressions of a node that contain a column of the sink's own, other than that column itself."""
    for expression in elements(node.expressions()):
        names = [reference.name() for reference in elements(expression.references().toSeq())]
        named = expression.nodeName() in ("Alias", "AttributeReference") and expression.name() == PATH_COLUMN
        if PATH_COLUMN in names and not named:
            yield str(expression.sql()).replace(f", {PATH_COLUMN}", "")


def spark_error(place: str, e: PySparkException) -> DeclarationError:
    """Spark's error, without the text of the statement and what the sink added to it."""
    condition = e.getCondition() or ""
    what = f"{ALONE}: no aggregates" if condition.startswith(AGGREGATE_ERRORS) else "Spark does not take this"
    got = error_text(e).replace(f", `{PATH_COLUMN}`", "").replace(f"`{PATH_COLUMN}`, ", "")
    hint = next((hint for name, hint in HINTS.items() if condition.startswith(name)), "correct the SQL")
    return DeclarationError(f"{place}: {what}", got=got, hint=hint)


def error_location(sink: Sink, e: PySparkException) -> str:
    at = error_offset(sink.rewritten.sql, e)
    return sink.at("SELECT") if at is None else sink.select_location(at)
