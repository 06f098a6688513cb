"""Applies validity rules to records.

A topic without a rule of its own whose subject, `<topic>-value`, is in the schema registry is judged by the registry: a
record is valid if it is in the wire format and can be decoded by the schema of its id. Others are judged by rules.

Most rules are evaluated in DuckDB, where records are decoded, so that only counts reach Spark. Rules that DuckDB cannot
evaluate, and those of Avro topics, are evaluated in Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jobs.quality.rules import EVERY, Rule, avro_fields, required_fields
from jobs.quality.translate import to_duckdb
from penstock.codec import json_sql
from penstock.codec.event_time import window_number
from penstock.model.checks.predicates import check_deterministic, satisfies
from penstock.model.types import quoted
from penstock.streams import Combiner, F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SECOND = 1_000_000
COUNT_COLUMNS = "topic STRING NOT NULL, status STRING, n BIGINT NOT NULL"
# Columns for the rules that Spark evaluates, NULL in all other rows.
SPARK_COLUMNS = "key BINARY, value BINARY"
RAW = "topic AS _topic, event_time, value AS _value, text AS _text"
# The key is read only for rules that Spark evaluates.
RAW_WITH_KEY = f"{RAW}, key AS _key"
REGISTRY = ", registered AS _registered, registry_error AS _registry_error"
OF_REGISTRY = "WHEN _registered THEN CASE WHEN _registry_error IS NULL THEN 'valid' ELSE 'invalid' END"


def combiner(rules: Mapping[str, Rule], *, by_registry: bool = False) -> Combiner:
    """A combiner that counts records by topic, second and status.

    Records whose rule Spark evaluates are one row each, with the status NULL.

    Args:
        rules: The rules, by topic.
        by_registry: Whether there is a schema registry.
    """
    topic_rules = [rule for topic, rule in rules.items() if topic != EVERY]
    others = " AND ".join(f"topic <> {json_sql.literal(rule.topic)}" for rule in topic_rules) or "true"
    in_spark = [(number, rule) for number, rule in enumerate([*topic_rules, rules[EVERY]]) if _in_spark(rule)]
    columns = [COUNT_COLUMNS]
    if in_spark:
        columns.append(SPARK_COLUMNS)
        columns += [f"{_column(number)} STRUCT<{_ddl(rule)}>" for number, rule in in_spark if rule.fields]
    null_fields = [f"NULL AS {_column(number)}" for number, rule in in_spark if rule.fields]
    nulls = "".join(
        f", {column}" for column in (["NULL::BLOB AS key", "NULL::BLOB AS value", *null_fields] if in_spark else [])
    )
    branches = []
    for number, rule in enumerate([*topic_rules, rules[EVERY]]):
        where = others if rule.topic == EVERY else f"topic = {json_sql.literal(rule.topic)}"
        judged = by_registry and rule.topic == EVERY
        if _in_spark(rule):
            numbers = [n for n, r in in_spark if r.fields]
            branches.append(_select_for_spark(number, rule, where, numbers, by_registry=judged))
            continue
        branches.append(
            f"SELECT topic, status, count(*) AS n, max(event_time) AS event_time{nulls} FROM ("
            f"SELECT _topic AS topic, event_time, {_status(rule, by_registry=judged)} AS status "
            f"FROM ({_read(rule, where, by_registry=judged)}))"
            f" GROUP BY topic, {window_number('event_time', SECOND)}, status"
        )
    reads = (*(("key",) if in_spark else ()), *(("registry",) if by_registry else ()))
    return Combiner(", ".join(columns), " UNION ALL BY NAME ".join(branches), reads=reads)


def add_status(combined: DataFrame, rules: Mapping[str, Rule]) -> DataFrame:
    """The rows of `combiner`, each with the status `valid` or `invalid`."""
    topic_rules = [rule for topic, rule in rules.items() if topic != EVERY]
    others = ~F.col("topic").isin([rule.topic for rule in topic_rules]) if topic_rules else F.lit(True)
    is_valid: Column | None = None
    rows = combined
    for number, rule in enumerate([*topic_rules, rules[EVERY]]):
        if not _in_spark(rule):
            continue
        applies = others if rule.topic == EVERY else F.col("topic") == rule.topic
        applies = applies & F.col("status").isNull()
        prefix = f"_{_column(number)}_"
        rows, parses = _add_fields(rows, rule, applies, number, prefix)
        check_deterministic(rows, rule.sql(prefix), f"topic {rule.topic}")
        valid = F.coalesce(parses, F.lit(False)) & satisfies(rule.sql(prefix))
        is_valid = is_valid.when(applies, valid) if is_valid is not None else F.when(applies, valid)
    if is_valid is None:
        return combined
    status = F.coalesce("status", F.when(is_valid, "valid").otherwise("invalid"))
    return rows.withColumn("status", status).select("topic", "status", "n", "event_time")


def _in_spark(rule: Rule) -> bool:
    return rule.format == "avro" or to_duckdb(rule) is None


def _column(number: int) -> str:
    return f"rule_{number}"


def _ddl(rule: Rule) -> str:
    return ", ".join(f"{quoted(f.name)}: {f.type.ddl}" for f in rule.fields)


def _read(rule: Rule, where: str, *, by_registry: bool) -> str:
    """The records of a rule with its fields, and `_parses BOOLEAN`."""
    raw = f"{RAW_WITH_KEY if _in_spark(rule) else RAW}{REGISTRY if by_registry else ''}"
    if rule.fields:
        named = ", ".join(
            f"{json_sql.field_value('_k', f, '_text')} AS {json_sql.quote_name(f.name)}" for f in rule.fields
        )
        return (
            f"SELECT *, {_fields_are_valid(rule)} AS _parses FROM (SELECT *, {named} FROM ("
            f"SELECT {raw}, {json_sql.parse_record('text', rule.fields)} AS _k FROM records WHERE {where}))"
        )
    parses = "text IS NOT NULL" if rule.format == "text" else f"coalesce({json_sql.is_json('text')}, false)"
    return f"SELECT {raw}, {parses} AS _parses FROM records WHERE {where}"


def _fields_are_valid(rule: Rule) -> str:
    tests = [f"NOT {json_sql.is_field_invalid('_k', f, json_sql.quote_name(f.name), '_text')}" for f in rule.fields]
    return f"(_k IS NOT NULL AND {' AND '.join(tests)})"


def _status(rule: Rule, *, by_registry: bool) -> str:
    # A tombstone is valid.
    first = f"WHEN _value IS NULL THEN 'valid' {OF_REGISTRY if by_registry else ''}"
    return f"CASE {first} WHEN _parses AND {to_duckdb(rule)} THEN 'valid' ELSE 'invalid' END"


def _select_for_spark(number: int, rule: Rule, where: str, numbers: list[int], *, by_registry: bool) -> str:
    """The records of a rule that Spark evaluates; tombstones and JSON that does not parse already have a status."""
    columns = {f"NULL AS {_column(n)}" for n in numbers if n != number}
    if rule.fields:
        packed = ", ".join(f"{json_sql.quote_name(f.name)} := {json_sql.quote_name(f.name)}" for f in rule.fields)
        columns.add(f"struct_pack({packed}) AS {_column(number)}")
    parses = OF_REGISTRY if by_registry else ""
    parses += " WHEN NOT _parses THEN 'invalid'" if rule.format != "avro" else ""
    others = "".join(f", {column}" for column in sorted(columns))
    return (
        f"SELECT _topic AS topic, CASE WHEN _value IS NULL THEN 'valid' {parses} END AS status, 1::BIGINT AS n, "
        f"event_time, _key AS key, _value AS value{others} FROM ({_read(rule, where, by_registry=by_registry)})"
    )


def _add_fields(rows: DataFrame, rule: Rule, applies: Column, number: int, prefix: str) -> tuple[DataFrame, Column]:
    """Add a rule's fields as columns `<prefix><field>`; also returns whether a record can be parsed."""
    if rule.format != "avro":
        fields = {prefix + f.name: F.col(_column(number))[f.name] for f in rule.fields}
        return rows.withColumns(fields) if fields else rows, F.lit(True)
    # Imported here because declarations are read without Spark.
    from pyspark.sql.avro.functions import from_avro

    data = F.substring("value", 6, 2**31 - 1) if rule.framed else F.col("value")
    rows = rows.withColumn(prefix, F.when(applies, from_avro(data, rule.schema, {"mode": "PERMISSIVE"})))
    rows = rows.withColumns({prefix + name: F.col(prefix)[name] for name in avro_fields(rule.schema)})
    parses = F.substring("value", 1, 1) == F.lit(bytes(1)) if rule.framed else F.lit(True)
    for name in required_fields(rule.schema):
        parses = parses & F.col(prefix + name).isNotNull()
    return rows, parses
