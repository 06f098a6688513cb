"""Expectations of streams: what the clause EXPECT declares, and which rules are refused without Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.model.sql.stream_file import parse
from penstock.model.sql.stream_query import sql_stream
from penstock.streams import EmitFinal, Expectation, Input, KeyedState, Stateless, Stream, Timers, Topic, TopicOutput

SOLD = "shop STRING NOT NULL, amount DOUBLE, at BIGINT NOT NULL"
INTO = f"STREAM INTO t READ sold AS JSON ({SOLD}) EVENT TIME timestamp_millis(at)"
ROWS = "AS SELECT shop, amount FROM sold"
TOTALS = (
    "KEY shop VALUE total AS SELECT shop, sum(amount) AS total, count(*) AS n FROM sold "
    "GROUP BY shop, window(event_time, '1 minute')"
)
FINAL, CHANGES = (f"EMIT {one} WINDOW 1 MINUTE GRACE 1 SECOND" for one in ("FINAL", "CHANGES"))


def stream(clauses: str) -> Stream:
    return sql_stream(parse(f"{INTO}\n{clauses}", Path("sql/streams/checked.sql")), {})


ACCEPTED = [
    ("EXPECT a amount > 0 ON VIOLATION KEEP", [("a", "amount > 0", "keep")]),
    ("expect a amount > 0 on violation dead letter", [("a", "amount > 0", "dead letter")]),
    (
        "EXPECT a amount > 0 ON VIOLATION FAIL EXPECT b_2 shop IN ('x', 'ON VIOLATION') ON VIOLATION KEEP",
        [("a", "amount > 0", "fail"), ("b_2", "shop IN ('x', 'ON VIOLATION')", "keep")],
    ),
    # Words of clauses are names of columns here.
    ("EXPECT a amount > length(shop) -- why\nON VIOLATION KEEP APP x", [("a", "amount > length(shop)", "keep")]),
    ("EXPECT a `amount` IS NOT NULL ON VIOLATION KEEP", [("a", "`amount` IS NOT NULL", "keep")]),
    ("EXPECT a exists(array(amount), x -> x > 0) ON VIOLATION KEEP",
     [("a", "exists(array(amount), x -> x > 0)", "keep")]),
    ("EXPECT a Amount > 0 AND CAST(shop AS INT) > 1 ON VIOLATION KEEP",
     [("a", "Amount > 0 AND CAST(shop AS INT) > 1", "keep")]),
    ("EXPECT on shop = 'on' ON VIOLATION KEEP", [("on", "shop = 'on'", "keep")]),
]  # fmt: skip


@pytest.mark.parametrize(("clauses", "expected"), ACCEPTED, ids=[clauses[:50] for clauses, _ in ACCEPTED])
def test_a_rule_is_declared_by_its_clause(clauses: str, expected: list[tuple[str, str, Any]]) -> None:
    assert stream(f"{clauses} {ROWS}").expectations == tuple(Expectation(*one) for one in expected)


def test_words_of_clauses_are_columns_in_a_predicate() -> None:
    select = "SELECT 1 AS value, 2 AS state, 'k' AS key, 'x' AS app FROM sold"
    one = stream(f"EXPECT a value > state AND key <> app ON VIOLATION KEEP AS {select}")
    assert one.expectations[0].predicate == "value > state AND key <> app"
    assert one.app == "streams"


def test_it_is_the_expectation_that_python_declares() -> None:
    clause = "EXPECT positive total > 0 ON VIOLATION DEAD LETTER"
    plain, in_sql = stream(f"{FINAL} {TOTALS}"), stream(f"{FINAL} {clause} {TOTALS}")
    rules = (Expectation("positive", "total > 0", on_violation="dead letter"),)
    assert replace(plain, expectations=rules, transform=in_sql.transform) == in_sql
    assert in_sql.location == "sql/streams/checked.sql:1:1"


PLACE = "checked.sql:2:8: "
PREDICATES = [
    ("amount + 1", "the rule must be one boolean expression; got: amount"),
    ("'yes'", "the rule must be one boolean expression"),
    ("-amount", "the rule must be one boolean expression"),
    ("SELECT amount > 0", "the rule must be one boolean expression"),
    ("amount > (SELECT 1)", "the rule must be one boolean expression"),
    ("amount IN (SELECT 1)", "the rule must be one boolean expression"),
    ("EXISTS (SELECT 1)", "the rule must be one boolean expression"),
    ("amount > 0; amount < 9", "the rule must be one boolean expression"),
    ("amount > 0 AND", "the rule is not a SQL expression"),
    ("shop = 'a''b'", "two quoted texts follow each other"),
    ("sum(amount) > 0", "the rule aggregates rows, .*; got: SUM\\(amount\\)"),
    ("rank() OVER (ORDER BY amount) < 3", "the rule aggregates rows"),
    ("amount > rand()", "the rule is not deterministic; got: rand\\(\\)"),
    ("at < now()", "the rule is not deterministic; got: now\\(\\)"),
    ("shop < CURRENT_TIMESTAMP", "the rule is not deterministic; got: CURRENT_TIMESTAMP"),
    ("shop = uuid()", "the rule is not deterministic; got: uuid\\(\\)"),
]


@pytest.mark.parametrize(("predicate", "message"), PREDICATES, ids=[predicate for predicate, _ in PREDICATES])
def test_what_is_no_predicate_over_one_row_is_refused(predicate: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=f"^expectation a: {message}"):
        Expectation("a", predicate, on_violation="keep")
    with pytest.raises(DeclarationError, match=f"{PLACE}expectation a: {message}"):
        stream(f"EXPECT a {predicate} ON VIOLATION KEEP {ROWS}")


CLAUSES = [
    (f"EXPECT a amount > 0 {ROWS}", f"{PLACE}the predicate of the rule or ON VIOLATION is missing; got: a"),
    (f"EXPECT a ON VIOLATION KEEP {ROWS}", f"{PLACE}the predicate of the rule or ON VIOLATION is missing; got: a"),
    (f"EXPECT a amount > 0 ON VIOLATION DROP {ROWS}", "2:34: this cannot be done .*; got: DROP; hint: .*DEAD LETTER"),
    (f"EXPECT a amount > 0 ON VIOLATION DEAD {ROWS}", "2:39: expected LETTER; got: AS"),
    ("EXPECT a amount > 0 ON VIOLATION", "the file ends too soon"),
    (f"EXPECT a-b amount > 0 ON VIOLATION KEEP {ROWS}", f"{PLACE}the name of expectation 'a-b' is not usable"),
    (f"EXPECT `1a` amount > 0 ON VIOLATION KEEP {ROWS}", f"{PLACE}the name of expectation '1a' is not usable"),
    (
        f"EXPECT a amount > 0 ON VIOLATION KEEP EXPECT A amount > 1 ON VIOLATION KEEP {ROWS}",
        "2:46: a rule is declared twice; got: A",
    ),
    (
        f"EXPECT a amuont > 0 ON VIOLATION KEEP {ROWS}",
        f"{PLACE}a rule names a column that is not selected; got: amuont; hint: take one of: shop, amount",
    ),
    (
        f"{CHANGES} EXPECT a total > 0 ON VIOLATION DEAD LETTER {TOTALS}",
        "2:52: stream checked: expectation a cannot make dead letters of rows that are updated",
    ),
    (
        f"{FINAL} EXPECT a n > 0 ON VIOLATION KEEP {TOTALS}",
        "2:50: stream checked: expectation a names a column that its output does not have, so .* state; got: n",
    ),
]


@pytest.mark.parametrize(("clauses", "message"), CLAUSES, ids=[clauses[:60] for clauses, _ in CLAUSES])
def test_what_is_wrong_in_a_clause_is_said_with_its_place(clauses: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        stream(clauses)


@pytest.mark.parametrize("action", ["KEEP", "FAIL"])
@pytest.mark.parametrize("mode", [FINAL, CHANGES])
def test_rows_with_state_may_be_kept_or_fail(mode: str, action: str) -> None:
    assert stream(f"{mode} EXPECT a total > 0 ON VIOLATION {action} {TOTALS}").expectations


def python(mode: Any, **fields: Any) -> Stream:
    given = Input(Topic("sold"), schema=SOLD, event_time="timestamp_millis(at)")
    output = TopicOutput(Topic("t"), key="shop", value="total")
    return Stream("checked", "a", {"sold": given}, lambda sold: sold, output, mode, **fields)


TICK = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("mode", "is_accepted"),
    [(Stateless(), True), (EmitFinal(TICK, TICK), True), (Timers(tick=TICK, grace=TICK), True), (KeyedState(), False)],
)
def test_dead_letters_are_of_rows_that_replace_no_others(mode: Any, is_accepted: bool) -> None:
    rules = (Expectation("a", "total > 0", on_violation="dead letter"),)
    if is_accepted:
        assert python(mode, expectations=rules).expectations == rules
        return
    with pytest.raises(DeclarationError, match="cannot make dead letters of rows that are updated"):
        python(mode, expectations=rules)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 7}, "name is not what it should be"),
        ({"name": "a b"}, "the name of expectation 'a b' is not usable"),
        ({"predicate": None}, "predicate is not what it should be"),
        ({"on_violation": "warn"}, "on_violation is not known; got: 'warn'; hint: use one of: keep, dead letter, fail"),
    ],
)
def test_a_wrong_argument_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Expectation(**{"name": "a", "predicate": "x > 0", "on_violation": "keep", **fields})


@pytest.mark.parametrize("given", ["amount > 0", ["amount > 0"], (1,)])
def test_expectations_are_a_tuple_of_them(given: Any) -> None:
    with pytest.raises(DeclarationError, match="expectations is not what it should be"):
        python(Stateless(), expectations=given)


def test_two_rules_of_one_name_are_refused() -> None:
    rules = tuple(Expectation(name, "total > 0", on_violation="keep") for name in ("a", "A"))
    with pytest.raises(DeclarationError, match="two expectations of one name; got: A"):
        python(Stateless(), expectations=rules)
