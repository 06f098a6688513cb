"""What is wrong in a query of a fold is told with its place, in SQL and in Python."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.state.fold_query import check_queries
from penstock.errors import DeclarationError
from penstock.model.fold import Fold
from penstock.model.sql.stream_file import parse

RECORDS = pa.table({"shop": ["n"], "amount": [1.0], "event_time": [datetime(2026, 1, 1, tzinfo=UTC)]}).schema
UPDATE = "SELECT shop, sum(amount) AS total FROM records GROUP BY shop"
EMIT = "SELECT shop, total FROM folded"
HOUR = timedelta(hours=1)
# Longer than what DuckDB quotes of a line.
LONG = ", ".join(f"amount + {n} AS amount_{n}" for n in range(30))
REFUSED = [
    (f"{UPDATE}\n  HAVING nothing > 1", EMIT, "false", "6:10: the update query of fold sums is refused by DuckDB"),
    ("SELECT\n  shop,\n  FROM FROM records", EMIT, "false", "7:8: the update query of fold sums is refused by DuckDB"),
    (f"SELECT shop, {LONG}, foo(1) AS total\nFROM records", EMIT, "false", f"5:{len(LONG) + 16}: the update query"),
    ("SELECT shop FROM records", EMIT, "false", "5:1: the update query of fold sums is refused by DuckDB"),
    (UPDATE, "SELECT shop,\n total FROM fold", "false", "9:13: the emit query of fold sums is refused by DuckDB"),
    (UPDATE, "SELECT shop FROM folded", "false", "8:1: the emit query of fold sums gives other columns than declared"),
    (UPDATE, f"{EMIT}; SELECT 'x' AS shop, 0.0 AS total", "false", "8:1: the emit query of fold sums is more"),
    (UPDATE, f"{EMIT}\nWHERE random() < 1", "false", "9:7: the emit query of fold sums has another result"),
    (UPDATE, EMIT, "total < 1\n OR current_date > 'x'", "11:5: the condition of expiry of fold sums has an"),
    (f"{UPDATE}, strptime('2020', '%Q')", EMIT, "false", "5:1: the update query of fold sums is refused by DuckDB"),
    (UPDATE, "SELECT shop, [total] AS total FROM folded", "false", "8:1: the emit query of fold sums gives other"),
    (UPDATE, EMIT, "total < 1\n OR since > 0", "11:5: the condition of expiry of fold sums is refused by DuckDB"),
]


def fold_in_sql(update: str, emit: str, expires: str) -> Fold:
    """The fold of a file whose queries begin in lines 5, 8 and 10, if they have one line."""
    text = f"""STREAM INTO t READ orders AS JSON (shop STRING, amount DOUBLE, timestamp TIMESTAMP)
FOLD sums FROM orders BY shop STATE (total DOUBLE)
ROWS (shop STRING, total DOUBLE)
UPDATE AS (
{update}
)
EMIT AS (
{emit}
) EXPIRES WHEN (
{expires}
) AS SELECT shop FROM sums"""
    return parse(text, Path("sums.sql")).folds[0].fold


def refusal(fold: Fold) -> str:
    with pytest.raises(DeclarationError) as told:
        check_queries(fold, RECORDS)
    return str(told.value)


@pytest.mark.parametrize(("update", "emit", "expires", "message"), REFUSED, ids=[one[3] for one in REFUSED])
def test_a_query_of_a_file_is_refused_with_its_line_and_column(
    update: str, emit: str, expires: str, message: str
) -> None:
    assert refusal(fold_in_sql(update, emit, expires)).startswith(f"sums.sql:{message}")


def test_a_query_in_python_is_refused_with_the_place_of_its_fold() -> None:
    fold = replace(fold_in_sql(UPDATE, EMIT, "false"), emit_sql="SELECT nothing FROM folded")
    assert refusal(fold).startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"time": HOUR}, "fold sums has a variable whose name is not usable; got: 'time'"),
        ({"a b": HOUR}, "fold sums has a variable whose name is not usable; got: 'a b'"),
        ({"wait": 5}, "fold sums: variable wait is not a valid duration; got: 5"),
        ({"wait": -HOUR}, "fold sums: variable wait is not a valid duration"),
        ([HOUR], "fold sums: variables is not what it should be"),
    ],
)
def test_a_variable_of_a_fold_is_a_duration_with_a_name(variables: Any, message: str) -> None:
    with pytest.raises(DeclarationError) as told:
        replace(fold_in_sql(UPDATE, EMIT, "false"), variables=variables)
    assert str(told.value).startswith(message)
