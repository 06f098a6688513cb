"""A column of the inputs that a transform does not see, put back into the plan that it has made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.model.checks.spark_plan import analyzed_plan, elements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Operators whose rows are each made of one row of a child, and do not depend on how many columns there are. A join is
# one of them if only one side has the column.
ROW_BY_ROW = {
    "Filter", "SubqueryAlias", "View", "ResolvedHint", "CollectMetrics", "EventTimeWatermark", "Generate", "Join",
    "Repartition", "RepartitionByExpression",
}  # fmt: skip


class _Carried(NamedTuple):
    """A plan, and its column."""

    plan: Any
    attribute: Any


def with_hidden_column(frame: DataFrame, name: str) -> DataFrame | None:
    """The frame with a further column that its inputs have and its operators dropped.

    Args:
        frame: The frame.
        name: The column in the inputs, and in the result.

    Returns:
        None if the plan has operators that are not row by row.
    """
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    session: Any = frame.sparkSession
    carried = _Rewriter(session._jvm, name).carried(analyzed_plan(frame))
    if carried is None:
        return None
    rows = getattr(session._jvm, "org.apache.spark.sql.classic.Dataset").ofRows(session._jsparkSession, carried.plan)
    return ClassicDataFrame(rows, session)


def _attribute(plan: Any, name: str) -> Any:
    return next((a for a in elements(plan.output()) if str(a.name()) == name), None)


class _Rewriter:
    def __init__(self, jvm: Any, name: str) -> None:
        self._jvm, self._name = jvm, name

    def carried(self, node: Any) -> _Carried | None:
        """The node with the column behind its own; None if its rows are not of one row each."""
        if (attribute := _attribute(node, self._name)) is not None:
            return _Carried(node, attribute)
        children = [self.carried(child) for child in elements(node.children())]
        having = [child for child in children if child is not None]
        kind = str(node.nodeName())
        if kind == "Union" and len(having) == len(children):
            branches = [
                self._project(child.output(), one) for child, one in zip(elements(node.children()), having, strict=True)
            ]
            return self._with(node.withNewChildren(self._seq(branches)))
        if len(having) != 1:
            return None
        [carried] = having
        if kind == "Project":
            return _Carried(self._project(node.projectList(), carried), carried.attribute)
        if kind not in ROW_BY_ROW:
            return None
        new = [
            old if child is None else child.plan for old, child in zip(elements(node.children()), children, strict=True)
        ]
        return self._with(node.withNewChildren(self._seq(new)))

    def _with(self, plan: Any) -> _Carried | None:
        attribute = _attribute(plan, self._name)
        return None if attribute is None else _Carried(plan, attribute)

    def _project(self, columns: Any, child: _Carried) -> Any:
        project = getattr(self._jvm, "org.apache.spark.sql.catalyst.plans.logical.Project")
        return project(columns.appended(child.attribute), child.plan)

    def _seq(self, plans: Sequence[Any]) -> Any:
        java_list = getattr(self._jvm, "java.util.ArrayList")()
        for plan in plans:
            java_list.add(plan)
        return getattr(self._jvm, "scala.jdk.javaapi.CollectionConverters").asScala(java_list).toSeq()
