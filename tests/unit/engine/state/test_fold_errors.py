"""What is wrong in a query of a fold is told with its place, in SQL and in Python."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.state.fold_check import check_folds_of_topics, check_queries
from penstock.engine.state.fold_query import run_fold, state_schema
from penstock.engine.state.state_part import HASH
from penstock.errors import DeclarationError, PenstockError
from penstock.model.fold import Fold
from penstock.model.sql.stream_file import parse
from penstock.model.sql.stream_query import sql_stream
from penstock.model.sql_stream import SqlStream

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
    (
        "SELECT shop FROM records",
        EMIT,
        "false",
        "5:1: the update query of fold sums gives other columns than declared; got: no total among shop; hint: let it",
    ),
    (UPDATE.replace("SELECT shop,", "SELECT"), EMIT, "false", "5:1: the update query of fold sums gives other columns"),
    (
        "SELECT shop, shop AS total FROM records",
        EMIT,
        "false",
        "5:1: the update query of fold sums gives other columns than declared; got: total string, declared double",
    ),
    ("SELECT 1 AS shop, amount AS total FROM records", EMIT, "false", "5:1: the update query of fold sums gives other"),
    (UPDATE, "SELECT shop, shop AS total FROM folded", "false", "8:1: the emit query of fold sums gives other"),
    (UPDATE, "SELECT shop, total, total AS TOTAL FROM folded", "false", "8:1: the emit query of fold sums gives other"),
    (UPDATE, "SELECT shop,\n total FROM fold", "false", "9:13: the emit query of fold sums is refused by DuckDB"),
    (UPDATE, "SELECT shop FROM folded", "false", "8:1: the emit query of fold sums gives other columns than declared"),
    (UPDATE, f"{EMIT}; SELECT 'x' AS shop, 0.0 AS total", "false", "8:1: the emit query of fold sums is more"),
    (UPDATE, f"{EMIT}\nWHERE random() < 1", "false", "9:7: the emit query of fold sums has another result"),
    (UPDATE, EMIT, "total < 1\n OR current_date > 'x'", "11:5: the condition of expiry of fold sums has an"),
    (f"{UPDATE}, strptime('2020', '%Q')", EMIT, "false", "5:1: the update query of fold sums is refused by DuckDB"),
    (UPDATE, "SELECT shop, [total] AS total FROM folded", "false", "8:1: the emit query of fold sums gives other"),
    (UPDATE, EMIT, "total < 1\n OR since > 0", "11:5: the condition of expiry of fold sums is refused by DuckDB"),
]


def declared(update: str, emit: str, expires: str) -> SqlStream:
    """A fold in a file; its queries begin in lines 5, 8 and 10, if they have one line."""
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
    return parse(text, Path("sums.sql"))


def fold_in_sql(update: str, emit: str, expires: str) -> Fold:
    return declared(update, emit, expires).folds[0].fold


def refusal(fold: Fold, records: pa.Schema = RECORDS) -> str:
    with pytest.raises(DeclarationError) as told:
        check_queries(fold, records)
    return str(told.value)


@pytest.mark.parametrize(("update", "emit", "expires", "message"), REFUSED)
def test_a_query_of_a_file_is_refused_with_its_line_and_column(
    update: str, emit: str, expires: str, message: str
) -> None:
    with pytest.raises(DeclarationError) as told:
        check_folds_of_topics(sql_stream(declared(update, emit, expires), {}))
    assert str(told.value).startswith(f"sums.sql:{message}")


def test_a_query_reads_the_record_of_a_topic() -> None:
    update = "SELECT shop, len(record.headers) + epoch(record.event_time) AS total FROM records"
    one = declared(update, EMIT, "false")
    check_folds_of_topics(sql_stream(replace(one, reads=(replace(one.reads[0], has_record=True),)), {}))


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


CASTS = [
    # What the query gives; the declared types that take it; those that do not.
    ("sum(n)", "BIGINT INT DOUBLE DECIMAL(38,0) STRING", "BOOLEAN TIMESTAMP DATE ARRAY<BIGINT>"),
    ("avg(n)", "DOUBLE FLOAT STRING", "BIGINT DECIMAL(10,2) TIMESTAMP"),
    ("max(n)::DECIMAL(9,2)", "DECIMAL(12,2) DECIMAL(12,3) DOUBLE STRING", "BIGINT DECIMAL(12,1)"),
    ("max(shop)", "STRING BINARY", "BIGINT DOUBLE DATE TIMESTAMP BOOLEAN"),
    ("max(event_time)", "TIMESTAMP STRING", "DATE BIGINT"),
    ("max(event_time)::DATE", "DATE TIMESTAMP", "INT"),
    ("bool_or(n > 0)", "BOOLEAN INT", "TIMESTAMP"),
    ("max(n::INTEGER)", "BIGINT DOUBLE DECIMAL(12,2)", "TIMESTAMP DATE BOOLEAN BINARY"),
    ("NULL", "BIGINT STRING ARRAY<STRING> STRUCT<a:BIGINT>", ""),
    ("list(n)", "ARRAY<BIGINT> ARRAY<DOUBLE>", "BIGINT STRING ARRAY<TIMESTAMP>"),
    ("[]", "ARRAY<BIGINT> ARRAY<STRUCT<a:BIGINT>>", "STRING"),
    ("list({'a': n, 'b': shop})", "ARRAY<STRUCT<a:BIGINT,b:STRING>> ARRAY<STRUCT<b:STRING,a:INT>>",
     "ARRAY<STRUCT<a:BIGINT>> ARRAY<STRUCT<a:BIGINT,b:STRING,c:INT>> ARRAY<STRUCT<a:STRING,b:BIGINT>>"),
    ("max({'a': n})", "STRUCT<a:BIGINT>", "STRUCT<A:BIGINT> MAP<STRING,BIGINT> BIGINT"),
    ("any_value(MAP {shop: n})", "MAP<STRING,BIGINT>", "MAP<STRING,TIMESTAMP> STRUCT<a:BIGINT>"),
    ("max(shop::ENUM('a'))", "STRING", "BIGINT"),
]  # fmt: skip
TYPED = [
    (gives, declared, taken)
    for gives, *both in CASTS
    for of, taken in zip(both, (True, False), strict=True)
    for declared in of.split()
]


@pytest.mark.parametrize(("gives", "declared", "taken"), TYPED, ids=[" ".join(one[:2]) for one in TYPED])
@pytest.mark.parametrize("query", ["update", "emit"])
def test_a_column_is_cast_where_that_changes_no_meaning(query: str, gives: str, declared: str, taken: bool) -> None:
    """A cast that fails on some values alone, or makes another value, is refused before there is one."""
    records = pa.schema([*RECORDS, pa.field("n", pa.int64())])
    update = f"SELECT shop, {gives} AS x FROM records GROUP BY shop"
    state, rows = (declared, "STRING") if query == "update" else ("STRING", declared)
    fold = Fold(
        "casts", ("shop",), f"x {state}",
        update if query == "update" else "SELECT shop, 'x' AS x FROM records",
        "SELECT shop, 'x' AS x FROM folded" if query == "update" else update,
        f"shop STRING, x {rows}",
    )  # fmt: skip
    if taken:
        check_queries(fold, records)
    else:
        assert f"the {query} query of fold casts gives other columns than declared; got: x" in refusal(fold, records)


def test_a_row_without_an_event_time_is_an_error_where_rows_may_be_late() -> None:
    """It would be left out, and nobody would know."""
    times = pa.array([datetime(2026, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC"))
    rows = pa.table({"shop": ["n", "s"], "amount": [1.0, 2.0], "event_time": times, HASH: [1, 2]})
    fold = fold_in_sql(UPDATE, EMIT, "false")
    no_state = state_schema(fold, rows.schema).empty_table()
    assert run_fold(fold, rows, lambda _: no_state, 0, late=False).rows.num_rows == 2
    with pytest.raises(PenstockError, match=r"sums gets rows without their event_time; got: 1 rows"):
        run_fold(fold, rows, lambda _: no_state, 0, late=True)
