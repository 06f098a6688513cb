"""Reads the plan that Spark makes of a frame.

It stands below `engine/jvm`, the only other place that reaches into Spark's JVM, because sinks and event times are
checked when they are declared, where no engine is. `tests/unit/test_imports.py` names both places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NODES: WeakKeyDictionary[DataFrame, list[tuple[str, Any]]] = WeakKeyDictionary()


def analyzed_plan(frame: DataFrame) -> Any:
    """The plan before the optimizer."""
    return frame._jdf.queryExecution().analyzed()


def optimized_plan(frame: DataFrame) -> Any:
    """The plan after the optimizer, which evaluates constant expressions."""
    return frame._jdf.queryExecution().optimizedPlan()


def replaced_plan(frame: DataFrame) -> Any:
    """The analyzed plan, with each function that stands for another replaced by that one."""
    jvm: Any = frame.sparkSession._jvm
    replace = getattr(jvm, "org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions$")
    return getattr(replace, "MODULE$").apply(analyzed_plan(frame))


def inlined_plan(frame: DataFrame) -> Any:
    """The analyzed plan, with each common table expression in each place that names it."""
    jvm: Any = frame.sparkSession._jvm
    return jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False).apply(analyzed_plan(frame))


def column_of(frame: DataFrame, expression: Any) -> Column:
    """A column of an expression in the frame's plan."""
    from pyspark.sql.classic.column import Column

    jvm: Any = frame.sparkSession._jvm
    return Column(getattr(jvm, "org.apache.spark.sql.classic.ExpressionUtils").column(expression))


def analyzed_nodes(frame: DataFrame) -> list[tuple[str, Any]]:
    """The nodes of the plan before the optimizer, each with its name, from the root down; read once for a frame."""
    if (known := _NODES.get(frame)) is None:
        known = _NODES[frame] = [(str(node.nodeName()), node) for node in nodes(analyzed_plan(frame))]
    return known


def elements(seq: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    return (seq.apply(number) for number in range(seq.size()))


def nodes(plan: Any, ends_at: Callable[[Any], bool] = lambda _: False) -> Iterator[Any]:
    """The nodes of a plan from its root down. ends_at: whether a node's children are left out."""
    yield plan
    if not ends_at(plan):
        for child in elements(plan.children()):
            yield from nodes(child, ends_at)
