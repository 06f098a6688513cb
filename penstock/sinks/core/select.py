"""The SELECT of a sink, run by Spark over views that are named as its topics."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import DeclarationError
from penstock.model.checks.volatile_expressions import MOMENT, moment_of, moments, plan_of
from penstock.model.lazy_spark import F, T
from penstock.model.schema import quoted
from penstock.model.sink import NUMBER, WAY, WHOLE, Sink
from penstock.model.sql.sink_select import ALONE, STREAM

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# Two statements over one session must not see each other's views.
LOCK = threading.Lock()
# Nodes of Spark's plan that work on one row at a time.
ROWS = {
    "Project", "Filter", "Union", "SubqueryAlias", "Generate", "WithCTE", "CTERelationDef", "CTERelationRef", "View",
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
GROUPED = ("MISSING_GROUP_BY", "MISSING_AGGREGATION", "UNSUPPORTED_EXPR_FOR_WINDOW", "GROUP_BY_AGGREGATE")
FIXES = {
    **dict.fromkeys(GROUPED, STREAM),
    "AMBIGUOUS_REFERENCE": f"say of which table; {ALONE}, so of two topics take UNION ALL",
    "ASSIGNMENT_ARITY_MISMATCH": "give columns their names in the SELECT, by AS",
    "TABLE_OR_VIEW_NOT_FOUND": "name a topic of READ, in backticks if it has a dot or '-'",
    "UNRESOLVED_COLUMN": f"take a field that READ names, or a part of `{WHOLE}`; its own columns, in another clause",
}
STEADY = f"leave it out, or take a field of the record, {WHOLE}.timestamp or {WHOLE}.offset"
LINES = re.compile(r"\(line (\d+), pos (\d+)\)")


def selected(sink: Sink, views: Mapping[str, DataFrame]) -> tuple[DataFrame, bool]:
    """What the SELECT makes of the records, by topic, and whether it makes several rows of one.

    Each row has `record` and the way it took behind its own columns. DeclarationError, with the place, if Spark or a
    sink refuses it.
    """
    from pyspark.errors import PySparkException

    spark = next(iter(views.values())).sparkSession
    with LOCK:
        for topic, frame in views.items():
            frame.createOrReplaceTempView(quoted(topic))
        try:
            rows = spark.sql(sink.spliced.sql)
            plan = list(_nodes(plan_of(rows)))
            nodes = {node.nodeName() for node in plan}
            own = [node for node in plan if node.nodeName() != "View"]
            moving = next((found for node in own for found in moments(node)), None)
            shown = next((found for node in own for found in _ways(node)), None)
        except PySparkException as e:
            raise refusal(place_of(sink, e), e) from e
        finally:
            for topic in views:
                spark.catalog.dropTempView(topic)
    if other := sorted(nodes - ROWS):
        what = REASONS.get(other[0], f"{ALONE}, and Spark makes {other[0]} of this")
        raise DeclarationError(f"{sink.at('SELECT')}: {what}", got=", ".join(other), hint=STREAM)
    if moving:
        said, at = moving
        place = sink.in_select(at) if at >= 0 else sink.at("SELECT")
        raise DeclarationError(f"{place}: {MOMENT}", got=said, hint=STEADY)
    names = [name.lower() for name in rows.columns]
    if names[-2:] != [WHOLE, WAY]:
        raise DeclarationError(
            f"{sink.at('SELECT')}: it cannot be followed which record a row comes from",
            got=", ".join(rows.columns),
            hint="let every SELECT read a topic that READ names, or a SELECT that does",
        )
    if shown:
        hint = "name the columns one by one"
        raise DeclarationError(f"{sink.at('SELECT')}: here a star has the sink's own columns too", got=shown, hint=hint)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        hint = "give each a name of its own by AS; the record itself is no part of a document, but record.offset may be"
        raise DeclarationError(f"{sink.at('SELECT')}: two columns have one name", got=", ".join(twice), hint=hint)
    if NUMBER in names:
        hint = "give it another name by AS"
        raise DeclarationError(f"{sink.at('SELECT')}: a column has a name of the sink's own", got=NUMBER, hint=hint)
    if unnamed := [name for name in rows.columns if "(" in name]:
        hint = "give it a name by AS: what Spark calls it changes with its version"
        raise DeclarationError(f"{sink.at('SELECT')}: a column has no name", got=unnamed[0], hint=hint)
    if len(names) == 2:
        raise DeclarationError(f"{sink.at('SELECT')}: the document has no field", hint="select a column")
    return rows, "Generate" in nodes


def expression(
    sink: Sink, clause: str, frame: DataFrame, text: str, to: DataType | None = None
) -> tuple[Column, DataType]:
    """A clause's expression over a frame, and its type; DeclarationError, with the clause's place, if it is none.

    to: what it is made, if that is wanted: NULL where it cannot be.
    """
    from pyspark.errors import PySparkException

    try:
        found = F.expr(text)
        made = frame.select(found)
        kind = made.schema.fields[0].dataType
        if moment := moment_of(made):
            raise DeclarationError(f"{sink.at(clause)}: {MOMENT}", got=moment, hint=STEADY)
        if to is not None:
            text_of_bytes = isinstance(kind, T.BinaryType) and not isinstance(to, T.BinaryType)
            found = (found.cast("string") if text_of_bytes else found).try_cast(to)
            kind = frame.select(found).schema.fields[0].dataType
        return found, kind
    except PySparkException as e:
        raise refusal(sink.at(clause), e) from e


def _nodes(plan: Any) -> Iterator[Any]:
    """Those of the statement itself, down to the views of its topics."""
    yield plan
    if plan.nodeName() == "View":
        return
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _ways(node: Any) -> Iterator[str]:
    """Its expressions that have a column of the sink's own in them, beside that column itself."""
    found = node.expressions()
    for number in range(found.size()):
        expression = found.apply(number)
        names = [expression.references().toSeq().apply(n).name() for n in range(expression.references().size())]
        named = expression.nodeName() in ("Alias", "AttributeReference") and expression.name() == WAY
        if WAY in names and not named:
            yield str(expression.sql()).replace(f", {WAY}", "")


def refusal(place: str, e: PySparkException) -> DeclarationError:
    """What Spark says, without the text that it was given and what was put into that."""
    said, condition = str(e.getMessage()), e.getCondition() or ""
    what = f"{ALONE}: no aggregates" if condition.startswith(GROUPED) else "Spark does not take this"
    got = said.split("\n")[0].split(" SQLSTATE:")[0].replace(f", `{WAY}`", "").replace(f"`{WAY}`, ", "")
    hint = next((hint for name, hint in FIXES.items() if condition.startswith(name)), "mend the SQL")
    return DeclarationError(f"{place}: {what}", got=got, hint=hint)


def place_of(sink: Sink, e: PySparkException) -> str:
    starts = [context.startIndex() for context in e.getQueryContext() or () if context.contextType().name == "SQL"]
    if starts and starts[0] >= 0:
        return sink.in_select(starts[0])
    if found := LINES.search(str(e)):
        line, column = int(found[1]), int(found[2])
        before = sink.spliced.sql.split("\n")[: line - 1]
        return sink.in_select(sum(len(one) + 1 for one in before) + column)
    return sink.at("SELECT")
