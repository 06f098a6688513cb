"""Which fields of the inputs a transform's columns are made of, by the plan that Spark makes of it.

A column is left out where the plan does not say: what a fold, a combiner or a Python function over whole rows makes,
what comes from a subquery or a generator, and what is made of the record itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.codec.columnar import EVENT_TIME
from penstock.lineage.stream_lineage import FrameColumn
from penstock.model.checks.spark_plan import analyzed_plan, elements, nodes
from penstock.model.sql.parser import parse_one

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from penstock.lineage.stream_lineage import FrameColumns
    from penstock.model.input import Input
    from penstock.model.stream import Stream

# The metrics that the frames of inputs observe: see `penstock.engine.query.source`.
INPUT_METRIC = re.compile(r"(?:bad|beats)_(.+)")
# Fields of inputs, by the input's name; None if they are not known.
Fields = frozenset[tuple[str, str]] | None


def frame_columns(stream: Stream, rows: DataFrame, tables: Mapping[str, DataFrame]) -> FrameColumns:
    """The columns of a transform's rows, and of its structs the fields.

    Args:
        stream: The stream.
        rows: What its transform made.
        tables: The frames of its tables, which the transform got.
    """
    plan = analyzed_plan(rows)
    reader = _PlanReader(stream, plan, tables)
    columns: dict[str, FrameColumn] = {}
    for field, attribute in zip(rows.schema.fields, elements(plan.output()), strict=True):
        identity = attribute.exprId().id()
        columns[field.name] = FrameColumn(field.dataType.simpleString(), reader.fields_of(identity) or frozenset())
        if isinstance(field.dataType, StructType):
            for number, inner in enumerate(field.dataType.fields):
                inputs = reader.fields_of_struct(identity, number) or frozenset()
                columns[f"{field.name}.{inner.name}"] = FrameColumn(inner.dataType.simpleString(), inputs)
    return columns


class _PlanReader:
    """Follows the ids of a plan's columns down to the inputs."""

    def __init__(self, stream: Stream, plan: Any, tables: Mapping[str, DataFrame]) -> None:
        self._sources: dict[int, Fields] = {}
        self._definitions: dict[int, list[Any]] = defaultdict(list)
        # What comes beside a column's own definition: the columns of a union's other branches.
        self._united: dict[int, list[int]] = defaultdict(list)
        self._known: dict[int, Fields] = {}
        for name, table in tables.items():
            for attribute in elements(analyzed_plan(table).output()):
                self._sources[attribute.exprId().id()] = frozenset({(name, str(attribute.name()))})
        for node in nodes(plan, lambda node: _input_name(node) in stream.sources):
            if (name := _input_name(node)) in stream.sources:
                for attribute in elements(node.output()):
                    self._sources[attribute.exprId().id()] = _input_fields(
                        name, stream.sources[name], str(attribute.name())
                    )
            elif node.nodeName() == "Union":
                first, *others = [[a.exprId().id() for a in elements(c.output())] for c in elements(node.children())]
                for identity, *united in zip(first, *others, strict=True):
                    self._united[identity] += united
                    if len(stream.outputs) > 1:
                        # Its branches may be of different outputs.
                        self._known[identity] = None
            else:
                for expression in elements(node.expressions()):
                    if expression.nodeName() == "Alias":
                        self._definitions[expression.exprId().id()].append(expression.child())

    def fields_of(self, identity: int) -> Fields:
        """The fields of the inputs that a column is made of."""
        if identity not in self._known:
            # Of a column that is made of itself, nothing is known.
            self._known[identity] = None
            parts = [self._sources[identity]] if identity in self._sources else []
            parts += [self._of_expression(definition) for definition in self._definitions[identity]]
            united = [self.fields_of(one) for one in self._united[identity]]
            self._known[identity] = _union([*parts, *united]) if parts else None
        return self._known[identity]

    def fields_of_struct(self, identity: int, number: int) -> Fields:
        """The fields of the inputs that a field of a struct is made of."""
        if identity in self._sources:
            return None
        of_definitions: list[Fields] = []
        for definition in self._definitions[identity]:
            if definition.nodeName() == "CreateNamedStruct":
                of_definitions.append(self._of_expression(definition.valExprs().apply(number)))
            elif definition.nodeName() == "AttributeReference":
                of_definitions.append(self.fields_of_struct(definition.exprId().id(), number))
            else:
                return None
        united = [self.fields_of_struct(one, number) for one in self._united[identity]]
        return _union([*of_definitions, *united]) if of_definitions else None

    def _of_expression(self, expression: Any) -> Fields:
        if _has_subquery(expression):
            return None
        return _union([self.fields_of(a.exprId().id()) for a in elements(expression.references().toSeq())])


def _input_name(node: Any) -> str:
    """The input whose frame a node is part of; empty if it is none."""
    if node.nodeName() != "CollectMetrics":
        return ""
    match = INPUT_METRIC.fullmatch(str(node.name()))
    return match[1] if match else ""


def _input_fields(name: str, input_: Input, column: str) -> Fields:
    """The fields of an input's records that a column of its frame is made of."""
    if not input_.schema or input_.combine:
        return None
    declared = {field.name.lower(): field.name for field in input_.fields}
    if column.lower() in declared:
        return frozenset({(name, declared[column.lower()])})
    if column != EVENT_TIME:
        return None
    try:
        parsed = parse_one(input_.event_time, "spark")
    except SqlglotError:
        return None
    used = {c.parts[0].name.lower() for c in parsed.find_all(exp.Column)}
    if parsed.find(exp.Lambda) or not used <= declared.keys():
        return None
    return frozenset((name, declared[field]) for field in used)


def _has_subquery(expression: Any) -> bool:
    return any(_is_subquery(e) for e in _expressions(expression))


def _is_subquery(expression: Any) -> bool:
    """Whether it reads other rows than those of the plan; the keys of masks are constants."""
    if not str(expression.getClass().getSimpleName()).endswith("Subquery"):
        return False
    return any(leaf.nodeName() != "LocalRelation" for leaf in elements(expression.plan().collectLeaves()))


def _expressions(expression: Any) -> Iterator[Any]:
    yield expression
    for child in elements(expression.children()):
        yield from _expressions(child)


def _union(parts: list[Fields]) -> Fields:
    """All fields; None if a part is not known."""
    known = [part for part in parts if part is not None]
    return frozenset().union(*known) if len(known) == len(parts) else None
