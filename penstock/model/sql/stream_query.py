"""Makes a stream of a declaration in SQL: its inputs, its output, and a transform that runs the SELECT."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from penstock.errors import DeclarationError
from penstock.model.checks.volatile_expressions import volatile_expressions
from penstock.model.input import Input, Table
from penstock.model.output import TopicOutput
from penstock.model.sql.error_translation import told_in_sql
from penstock.model.sql.spark_select import error_offset, error_text, select_nodes, temporary_views
from penstock.model.sql_stream import SqlStream, StreamRead
from penstock.model.stream import Stream
from penstock.model.topic import OF_TOPIC, Topic

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

VOLATILE = "this has another value each time, and records that are read again must make the same rows"
HINTS = {
    "TABLE_OR_VIEW_NOT_FOUND": "name a topic of READ, in backticks if it has a dot or '-'",
    "UNRESOLVED_COLUMN": "take a field of READ, or event_time",
    "MISSING_GROUP_BY": "write GROUP BY with a window: GROUP BY key, window(event_time, '1 minute')",
}


@dataclass(frozen=True)
class SqlTransform:
    """The transform of a stream in SQL: from the frames of its inputs, by name or in order, to the SELECT's rows."""

    declared: SqlStream

    @property
    def __signature__(self) -> Signature:
        return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in input_names(self.declared)])

    def __call__(self, *positional: DataFrame, **named: DataFrame) -> DataFrame:
        names = input_names(self.declared)
        given = [*positional, *(named[name] for name in names[len(positional) :])]
        frames = {read.topic: frame for read, frame in zip(self.declared.reads, given, strict=True)}
        for one in self.declared.folds:
            read = _run_select(one.source, one.source_location, frames) if one.is_select else frames[one.source]
            frames[one.fold.name] = one.fold(read)
        rows = _run_select(self.declared.sql, self.declared.select_location, frames)
        _check_columns(self.declared, rows)
        return rows


def declared_in_sql(stream: Stream) -> SqlStream | None:
    """The declaration of a stream in SQL; None for one in Python."""
    return stream.transform.declared if isinstance(stream.transform, SqlTransform) else None


def input_names(declared: SqlStream) -> list[str]:
    """The names of its inputs, in order: those of the topics, as Python writes names."""
    names = [re.sub(r"\W", "_", read.topic, flags=re.ASCII) for read in declared.reads]
    return [f"_{name}" if name[0].isdigit() or iskeyword(name) else name for name in names]


def sql_stream(declared: SqlStream, topics: Mapping[str, Topic]) -> Stream:
    """The stream of a declaration.

    Args:
        declared: The declaration.
        topics: Those that the project declares, by name.

    Raises:
        DeclarationError: Its clauses do not go together; with the location in the file.
    """
    known = topics.get(declared.target.name)
    target = _target(declared, known) if known else declared.target
    _check_restores(declared, target)
    inputs: dict[str, Input | Table] = {}
    for name, read in zip(input_names(declared), declared.reads, strict=True):
        with told_in_sql(declared, f"READ {read.topic}"):
            if name in inputs:
                raise DeclarationError("two topics have names that are alike", got=name, hint="read one of them")
            inputs[name] = _input(read, topics.get(read.topic))
    with told_in_sql(declared, "INTO"):
        output = TopicOutput(target, key=declared.key, value=declared.value)
    with told_in_sql(declared, "MASK"):
        output = replace(output, mask=declared.mask)
    with told_in_sql(declared, "INTO"):
        stream = Stream(
            name=declared.name, app=declared.app, inputs=inputs, transform=SqlTransform(declared),
            output=output, output_mode=declared.output_mode, shuffle_partitions=declared.shuffle_partitions,
            every=declared.every.total_seconds(), steps=declared.steps, partition=declared.partition,
        )  # fmt: skip
    for expectation in declared.expectations:
        with told_in_sql(declared, f"EXPECT {expectation.name}"):
            stream = replace(stream, expectations=(*stream.expectations, expectation))
    # The location of the statement, not of this file.
    object.__setattr__(stream, "location", declared.at("INTO"))
    return stream


def _check_restores(declared: SqlStream, target: Topic) -> None:
    """A fold that is restored from the topic of the rows is the only one, and the topic is compacted."""
    for one in declared.folds:
        if not one.fold.restore_sql or (target.compacts and len(declared.folds) == 1):
            continue
        what, got, hint = "RESTORE is of a stream with one fold", f"{len(declared.folds)} folds", "leave it out"
        if len(declared.folds) == 1:
            what, hint = "RESTORE needs the newest record of each key", "write COMPACTED, so that the topic keeps it"
            got = f"topic {target.name}, which is not compacted"
        raise DeclarationError(f"{one.fold.query_location('restore_sql')}: {what}", got=got, hint=hint)


def _target(declared: SqlStream, known: Topic) -> Topic:
    """The topic of its rows as another declaration has it; what the file says of it stays, to be compared."""
    if any(clause in declared.locations for clause in ("PARTITIONS", "RETENTION", "COMPACTED", "WITH")):
        return replace(declared.target, schema=known.schema, config={**known.config, **declared.target.config})
    return known


def _input(read: StreamRead, topic: Topic | None) -> Input | Table:
    if read.schema == OF_TOPIC and not (topic and topic.ddl):
        raise DeclarationError(
            f"topic {read.topic} declares no schema",
            got="READ without AS",
            hint="write AS JSON (id BIGINT NOT NULL, name STRING), or declare Topic(..., schema=...) in jobs/",
        )
    if read.is_table:
        return Table(topic or Topic(read.topic, compacted=True), read.schema)
    own: dict[str, Any] = {"event_time": read.event_time} if read.event_time else {}
    if read.ahead is not None:
        own["max_ahead"] = read.ahead
    return Input(
        topic or Topic(read.topic), schema=read.schema, late_records="keep" if read.keeps_late else None,
        record=read.has_record, **own,
    )  # fmt: skip


def _run_select(sql: str, location: Callable[[int], str], frames: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of a SELECT.

    Args:
        sql: The SELECT.
        location: File, line and column of a character of it.
        frames: What it reads, by name.

    Raises:
        DeclarationError: Spark does not take it, or it has another value each time.
    """
    from pyspark.errors import PySparkException

    with temporary_views(frames) as spark:
        try:
            rows = spark.sql(sql)
            volatile = next((one for node in select_nodes(rows) for one in volatile_expressions(node)), None)
        except PySparkException as e:
            raise _spark_error(sql, location, e) from e
    if volatile:
        text, at = volatile
        raise DeclarationError(f"{location(max(at, 0))}: {VOLATILE}", got=text, hint="take event_time or a field")
    return rows


def _check_columns(declared: SqlStream, rows: DataFrame) -> None:
    present = {name.lower() for name in rows.columns}
    for clause, columns in (("KEY", declared.key), ("VALUE", declared.value)):
        names = filter(None, (columns,) if isinstance(columns, str) else columns)
        if missing := [name for name in names if name.lower() not in present]:
            what = f"{declared.at(clause)}: {clause} names a column that is not selected"
            raise DeclarationError(what, got=missing[0], hint=f"take one of: {', '.join(rows.columns)}")


def _spark_error(sql: str, location: Callable[[int], str], e: PySparkException) -> DeclarationError:
    at, condition = error_offset(sql, e), e.getCondition() or ""
    hint = next((hint for name, hint in HINTS.items() if condition.startswith(name)), "correct the SELECT")
    return DeclarationError(f"{location(at or 0)}: Spark does not take this", got=error_text(e), hint=hint)
