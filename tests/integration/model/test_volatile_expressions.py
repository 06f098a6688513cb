"""What is volatile is recognised however deep it stands, for every function of the installed Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.model.checks.volatile_expressions import VOLATILE_CLASSES, first_volatile

pytestmark = pytest.mark.integration


def volatile_functions(spark: SparkSession) -> set[str]:
    """The functions of Spark that have the class of a volatile expression."""
    session: Any = spark._jsparkSession
    registry = session.sessionState().functionRegistry()
    functions = registry.listFunction()
    names = set()
    for i in range(functions.size()):
        info = registry.lookupFunction(functions.apply(i)).get()
        if VOLATILE_CLASSES.fullmatch(str(info.getClassName()).rpartition(".")[2]):
            names.add(str(functions.apply(i).funcName()))
    return names


def test_each_function_is_found(spark: SparkSession) -> None:
    functions = volatile_functions(spark)
    assert functions >= {"now", "current_timestamp", "current_date", "localtimestamp", "user"}
    for name in sorted(functions | {"rand", "uuid", "curdate", "unix_timestamp"}):
        rows = spark.range(1).selectExpr(f"struct(upper(string({name}())) AS inner, id AS event_time) AS outer")
        assert first_volatile(rows), name


@pytest.mark.parametrize(
    "text",
    ["timestamp'now'", "TIMESTAMP_NTZ 'today'", "date 'tomorrow'", "'yesterday'::date", "cast('12:30' AS timestamp)"],
)
def test_each_literal_and_cast_is_found(spark: SparkSession, text: str) -> None:
    assert first_volatile(spark.sql(f"SELECT coalesce(string({text}), 'none') AS inner FROM range(1)"))


@pytest.mark.parametrize(
    "text", ["'now'", "timestamp'2026-01-31'", "cast(timestamp_millis(id) AS date)", "date_add('2026-01-31', 1)"]
)
def test_fixed_values_pass(spark: SparkSession, text: str) -> None:
    assert not first_volatile(spark.sql(f"SELECT coalesce(string({text}), 'none') AS inner FROM range(1)"))
