"""A combiner is tried before it meets a record."""

from __future__ import annotations

import pytest

from penstock.codec.combiner_check import check_combiner
from penstock.errors import DeclarationError
from penstock.streams import Combiner, Input, Topic

TIME = "max(event_time) AS event_time"
SCHEMA = "n BIGINT, x DOUBLE, since TIMESTAMP, `select` STRING"


def given(sql: str, schema: str = "m BIGINT", event_time: str = "since") -> Input:
    return Input(Topic("t"), schema=SCHEMA, event_time=event_time, combine=Combiner(schema, sql))


def raw(sql: str, *reads: str) -> Input:
    return Input(Topic("t"), combine=Combiner("m BIGINT", sql, reads))


@pytest.mark.parametrize(
    "good",
    [
        given(f"SELECT sum(n) AS m, {TIME} FROM records GROUP BY n"),
        given(f"SELECT count(*) AS M, {TIME} FROM records -- all of them"),
        given(f"SELECT count(*) AS m, {TIME} FROM records;\n"),
        given(f"SELECT round(sum(x))::BIGINT AS m, {TIME} FROM records"),
        given(f'SELECT avg(n) AS "group", "select", {TIME} FROM records GROUP BY 2', "`group` DOUBLE, `select` STRING"),
        given(f"SELECT max(since)::DATE AS m, {TIME} FROM records", "m DATE"),
        raw(f"SELECT len(text) AS m, {TIME} FROM records GROUP BY ALL"),
        raw(f"SELECT count(key) AS m, {TIME} FROM records", "key"),
        Input(Topic("t")),
    ],
)
def test_one_that_works(good: Input) -> None:
    check_combiner(good)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (given("SELEC 1"), 'syntax error at or near "1"'),
        (given(f"SELECT sum(k) AS m, {TIME} FROM records"), 'Referenced column "k" not found'),
        (given(f"SELECT sum(n) AS m, {TIME} FROM record"), "Table with name record does not exist"),
        (given("SELECT sum(n) AS m FROM records"), "m, max(event_time) AS event_time"),
        (given(f"SELECT sum(n) AS k, {TIME} FROM records"), '"m"'),
        (
            given("SELECT sum(n) AS m, max(n) AS event_time FROM records"),
            "an event_time that is no timestamp; got: BIGINT",
        ),
        (given(f"SELECT avg(n) AS m, {TIME} FROM records"), "got: m: DOUBLE, declared BIGINT"),
        (given(f"SELECT 1.5 AS m, {TIME} FROM records"), "got: m: DECIMAL(2,1), declared BIGINT"),
        (given(f"SELECT max(since) AS m, {TIME} FROM records", "m DATE"), "declared DATE"),
        (given(f"SELECT list(n) AS m, {TIME} FROM records"), "got: m: BIGINT[], declared BIGINT"),
        (raw(f"SELECT count(key) AS m, {TIME} FROM records"), 'Referenced column "key" not found'),
        (
            given(f"SELECT sum(n) AS m, {TIME} FROM records", event_time="since + INTERVAL 1 HOUR"),
            "needs an event time that DuckDB can compute",
        ),
    ],
)
def test_one_that_does_not(wrong: Input, said: str) -> None:
    with pytest.raises(DeclarationError, match="the combiner of input t") as e:
        check_combiner(wrong)
    assert said in str(e.value)
