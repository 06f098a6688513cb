"""Streams in SQL: which statements declare what, and what is said of the others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog import load, load_partial
from penstock.catalog.validation import build
from penstock.errors import DeclarationError
from penstock.model.input import Input, Table
from penstock.model.output import TopicOutput
from penstock.model.output_mode import EmitChanges, EmitFinal, Stateless, StreamJoin
from penstock.model.sql.stream_file import parse
from penstock.model.sql.stream_query import input_names, sql_stream
from penstock.model.sql_stream import SqlStream
from penstock.model.stream import Stream
from penstock.model.topic import Topic

FIELDS = "(shop STRING NOT NULL, amount DOUBLE, at BIGINT NOT NULL)"
TIME = "EVENT TIME timestamp_millis(at)"
READ = f"READ orders AS JSON {FIELDS} {TIME}"
REFUNDS = f"READ refunds AS JSON {FIELDS} {TIME}"
JOINED = "VALUE x AS SELECT 1 AS x FROM orders JOIN refunds USING (shop)"
FINAL = "EMIT FINAL WINDOW 1 MINUTE GRACE 10 SECONDS"
SELECT = "AS SELECT shop, sum(amount) AS total FROM orders GROUP BY shop, window(event_time, '1 minute')"
PLAIN = "AS SELECT shop, amount FROM orders"
MINUTE = timedelta(minutes=1)


def declared(text: str, name: str = "totals") -> SqlStream:
    return parse(text, Path(f"sql/streams/{name}.sql"))


def stream(text: str, **topics: Topic) -> Stream:
    return sql_stream(declared(text), {topic.name: topic for topic in topics.values()})


def test_it_is_the_stream_that_python_declares() -> None:
    one = stream(f"STREAM INTO totals-topic {READ} KEY (shop) VALUE total {FINAL} EVERY 10 SECONDS APP orders {SELECT}")
    orders = Input(Topic("orders"), schema=FIELDS[1:-1], event_time="timestamp_millis(at)")
    assert one == Stream(
        name="totals", app="orders", inputs={"orders": orders}, transform=one.transform,
        output=TopicOutput(Topic("totals-topic"), key=("shop",), value="total"),
        output_mode=EmitFinal(window=MINUTE, grace=timedelta(seconds=10)), every=10.0,
    )  # fmt: skip
    assert one.location == "sql/streams/totals.sql:1:1"


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    (f"STREAM INTO t {READ} {PLAIN}", {"app": "streams", "output_mode": Stateless(), "every": 0.0}),
    (f"stream into t read orders as json {FIELDS} event time timestamp_millis(at) {PLAIN}", {"app": "streams"}),
    (f"STREAM INTO `t.x-y` {READ} {PLAIN}", {"output": TopicOutput(Topic("t.x-y"), value=("shop", "amount"))}),
    (f"STREAM INTO t.x-y {READ} {PLAIN}", {"output": TopicOutput(Topic("t.x-y"), value=("shop", "amount"))}),
    (f"STREAM INTO t {READ} KEY shop {PLAIN}", {"output": TopicOutput(Topic("t"), key="shop", value=("amount",))}),
    (f"STREAM INTO t {READ} KEY SHOP {PLAIN}", {"output": TopicOutput(Topic("t"), key="SHOP", value=("amount",))}),
    (
        f"STREAM INTO t {READ} KEY shop AS SELECT o.shop, amount * 2 AS `double it` FROM orders o;",
        {"output": TopicOutput(Topic("t"), key="shop", value=("double it",))},
    ),
    (
        f"STREAM INTO t {READ} AS WITH a AS (SELECT shop FROM orders) SELECT shop FROM a UNION ALL SELECT shop FROM a",
        {"output": TopicOutput(Topic("t"), value=("shop",))},
    ),
    (f"STREAM INTO t {READ} VALUE (x) AS SELECT *, 1 FROM orders", {"output": TopicOutput(Topic("t"), value=("x",))}),
    (
        f"STREAM INTO t PARTITIONS 2 RETENTION 2 DAYS {READ} VALUE x {PLAIN}",
        {"output": TopicOutput(Topic("t", partitions=2, retention=timedelta(days=2)), value="x")},
    ),
    (
        f"STREAM INTO t COMPACTED {READ} KEY shop VALUE x {PLAIN}",
        {"output": TopicOutput(Topic("t", compacted=True), key="shop", value="x")},
    ),
    (f"STREAM INTO t {READ} {FINAL} STATE PARTITIONS 3 {SELECT}", {"shuffle_partitions": 3}),
    (f"STREAM INTO t {READ} {FINAL} PARTITION BY HOUR {SELECT}", {"partition": "hour"}),
    (f"STREAM INTO t {READ} {FINAL} PARTITION\n BY day {SELECT}", {"partition": "day"}),
    (
        f"STREAM INTO t {READ} EMIT FINAL GRACE 0 SECONDS WINDOW 2 MINUTES PHASE 1 MINUTE {SELECT}",
        {"output_mode": EmitFinal(window=2 * MINUTE, grace=timedelta(0), phase=MINUTE)},
    ),
    (
        f"STREAM INTO t {READ} {FINAL} LATE BY 0 SECONDS STEPS 2 {SELECT}",
        {"output_mode": EmitFinal(MINUTE, timedelta(seconds=10), first_step=timedelta(0)), "steps": 2},
    ),
    (
        f"STREAM INTO t {READ} KEY shop EMIT CHANGES WINDOW 1 HOUR GRACE 5 MINUTES {SELECT}",
        {"output_mode": EmitChanges(window=timedelta(hours=1), grace=5 * MINUTE)},
    ),
    (
        f"STREAM INTO t {READ} {REFUNDS} JOIN WITHIN 10 MINUTES GRACE 1 MINUTE {JOINED}",
        {"output_mode": StreamJoin(within=10 * MINUTE, grace=MINUTE)},
    ),
    (
        f"-- Orders.\nSTREAM INTO t\nREAD orders AS JSON {FIELDS}\nAHEAD 1 HOUR {TIME} KEEP LATE\n{FINAL} {SELECT}",
        {
            "inputs": {
                "orders": Input(
                    Topic("orders"),
                    schema=FIELDS[1:-1],
                    event_time="timestamp_millis(at)",
                    max_ahead=timedelta(hours=1),
                    late_records="keep",
                )
            }
        },
    ),
    (
        f"STREAM INTO t {READ} READ TABLE shops AS JSON (name STRING) AS SELECT shop, name FROM orders, shops",
        {
            "inputs": {
                "orders": Input(Topic("orders"), schema=FIELDS[1:-1], event_time="timestamp_millis(at)"),
                "shops": Table(Topic("shops", compacted=True), "name STRING"),
            }
        },
    ),
    (
        "STREAM INTO t READ table AS JSON (timestamp TIMESTAMP) AS SELECT timestamp FROM `table`",
        {"inputs": {"table": Input(Topic("table"), schema="timestamp TIMESTAMP")}},
    ),
]


@pytest.mark.parametrize(("text", "expected"), ACCEPTED, ids=[text[12:60] for text, _ in ACCEPTED])
def test_each_clause_declares_what_it_says(text: str, expected: dict[str, Any]) -> None:
    one = stream(text)
    assert {name: getattr(one, name) for name in expected} == expected


REFUSED = [
    ("", "the file ends too soon"),
    ("SELECT 1", "no clause of a stream; got: SELECT; hint: take one of: STREAM"),
    (f"{READ} {PLAIN}", r"1:1: a stream begins with STREAM INTO; got: READ"),
    (f"STREAM t {READ} {PLAIN}", r"1:8: expected INTO; got: t"),
    (f"STREAM INTO 'x y' {READ} {PLAIN}", "expected the topic's name"),
    (f"STREAM INTO `x y` {READ} {PLAIN}", "1:1: Kafka refuses the name of a topic; got: 'x y'"),
    (f"STREAM INTO t STREAM INTO u {READ} {PLAIN}", "1:15: a clause is repeated; got: STREAM"),
    (f"STREAM INTO t {PLAIN}", "READ is missing; got: INTO"),
    (f"STREAM INTO t {READ} {READ} {PLAIN}", "a topic is read twice; got: orders"),
    (f"STREAM INTO t {READ} READ Orders AS JSON {FIELDS} {PLAIN}", "a topic is read twice; got: Orders"),
    ("STREAM INTO t READ orders AS AVRO (x INT) AS SELECT 1", "1:30: expected JSON; got: AVRO"),
    ("STREAM INTO t READ orders AS JSON AS SELECT 1", r"1:35: expected \(; got: AS"),
    ("STREAM INTO t READ orders AS JSON () AS SELECT 1", r"in the parentheses stands the fields"),
    (
        "STREAM INTO t READ orders AS JSON (x NOTYPE) AS SELECT 1 AS y",
        "1:20: the schema of topic orders is no Spark DDL; got: x NOTYPE",
    ),
    (
        "STREAM INTO t READ orders AS JSON (x INT) AS SELECT x FROM orders",
        "1:20: no field is the event time; got: x INT",
    ),
    (f"STREAM INTO t {READ} EVENT TIME x {PLAIN}", "a part of READ is repeated; got: EVENT"),
    (f"STREAM INTO t {READ} AHEAD 0 SECONDS {PLAIN}", "a duration is no whole number above 0; got: 0"),
    (f"STREAM INTO t {READ} KEEP {PLAIN}", "expected LATE; got: AS"),
    ("STREAM INTO t READ TABLE x AS JSON (a INT) AHEAD 1 DAY AS SELECT 1 AS y", "1:44: a table has no event time"),
    ("STREAM INTO t READ TABLE x AS JSON (a INT) AS SELECT a FROM x", "1:1: stream totals has no input"),
    (f"STREAM INTO t {READ} KEY (shop, SHOP) {PLAIN}", "KEY names a column twice; got: shop, SHOP"),
    (f"STREAM INTO t {READ} KEY shop KEY shop {PLAIN}", "a clause is repeated; got: KEY"),
    (f"STREAM INTO t {READ} EMIT ALL {PLAIN}", "what is emitted is not known; got: ALL"),
    (f"STREAM INTO t {READ} EMIT FINAL {SELECT}", "WINDOW is missing; got: nothing"),
    (f"STREAM INTO t {READ} EMIT FINAL WINDOW 1 MINUTE {SELECT}", "GRACE is missing; got: WINDOW"),
    (f"STREAM INTO t {READ} EMIT FINAL WINDOW 0 SECONDS GRACE 1 DAY {SELECT}", "no whole number above 0; got: 0"),
    (f"STREAM INTO t {READ} EMIT FINAL WINDOW 1 MONTH GRACE 1 DAY {SELECT}", "no unit of time; got: MONTH"),
    (f"STREAM INTO t {READ} EMIT FINAL WINDOW 1 DAY GRACE 1 DAY GRACE 1 DAY {SELECT}", "GRACE is repeated"),
    (f"STREAM INTO t {READ} {FINAL} PHASE 1 MINUTE {SELECT}", "does not lie between"),
    (f"STREAM INTO t {READ} EMIT CHANGES WINDOW 1 DAY GRACE 1 DAY LATE BY 1 DAY {SELECT}", "no clause .*; got: LATE"),
    (f"STREAM INTO t {READ} {FINAL} JOIN WITHIN 1 DAY GRACE 1 DAY {SELECT}", "EMIT and JOIN exclude each other"),
    (f"STREAM INTO t {READ} JOIN WITHIN 1 DAY GRACE 1 DAY {PLAIN}", "1:1: stream totals .*join"),
    (f"STREAM INTO t COMPACTED RETENTION 1 DAY {READ} {PLAIN}", "COMPACTED and RETENTION exclude each other"),
    (f"STREAM INTO t PARTITIONS 0 {READ} {PLAIN}", "the number of partitions is no whole number above 0; got: 0"),
    (f"STREAM INTO t {READ} PARTITION BY WEEK {FINAL} {SELECT}", "the partition is not known; got: WEEK"),
    (f"STREAM INTO t {READ} PARTITION BY HOUR {PLAIN}", "1:1: stream totals: it cannot have partitions"),
    (f"STREAM INTO t {READ} STEPS 1 {PLAIN}", "1:1: stream totals uses Stateless, .*; got: steps=1"),
    (f"STREAM INTO t {READ} STATE 2 {PLAIN}", "expected PARTITIONS; got: 2"),
    (f"STREAM INTO t {READ} APP", "the file ends too soon"),
    (f"STREAM INTO t {READ}", "the file ends too soon"),
    (f"STREAM INTO t {READ} AS", "there is no SELECT"),
    (f"STREAM INTO t {READ} AS SELECT * FROM orders", r"not known; got: \*; hint: name .* VALUE"),
    (f"STREAM INTO t {READ} AS SELECT a, 1 + 1 FROM orders", "not known; got: a column without a name"),
    (f"STREAM INTO t {READ} AS DROP TABLE x", "AS must be followed by a SELECT; got: DROP"),
    (f"STREAM INTO t {READ} AS SELECT FROM WHERE", "the columns of the SELECT are not known"),
    (f"STREAM INTO t {READ} KEY shop AS SELECT shop FROM orders", "no column is left for the value; got: shop"),
    (f"STREAM INTO t {READ} AS SELECT 'x", "a quotation or comment is not closed"),
    (f"STREAM INTO orders {READ} {PLAIN}", "1:1: .*orders"),
    (
        "STREAM INTO t READ a-b AS JSON (timestamp TIMESTAMP) READ a_b AS JSON (timestamp TIMESTAMP) AS SELECT 1 AS x",
        "two topics have names that are alike; got: a_b",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text[:60] for text, _ in REFUSED])
def test_what_is_wrong_is_said_with_its_place(text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message) as e:
        stream(text)
    assert e.value.what.startswith("sql/streams/totals.sql:")


def test_inputs_have_the_names_of_topics_as_python_writes_them() -> None:
    one = declared(
        "STREAM INTO t READ a-b.c AS JSON (timestamp TIMESTAMP) READ 1st AS JSON (timestamp TIMESTAMP) AS SELECT 1 AS x"
    )
    assert input_names(one) == ["a_b_c", "_1st"]


def test_topics_are_those_that_other_declarations_declare() -> None:
    first = declared(f"STREAM INTO middle PARTITIONS 2 {READ} {PLAIN}", "first")
    last = declared(
        "STREAM INTO last READ middle AS JSON (timestamp TIMESTAMP) AS SELECT timestamp FROM middle", "last"
    )
    python = Stream(
        "python", "p", {"orders": Input(Topic("orders", partitions=8), schema="timestamp TIMESTAMP")},
        lambda orders: orders, TopicOutput(Topic("out"), value="timestamp"), Stateless(),
    )  # fmt: skip
    catalog = build([python], sql_streams=[last, first])
    assert {name: catalog.topics[name].partitions for name in ("orders", "middle")} == {"orders": 8, "middle": 2}
    assert catalog.streams["last"].inputs["middle"].topic == catalog.topics["middle"]
    assert {one.app for one in catalog.streams.values()} == {"p", "streams"}
    with pytest.raises(DeclarationError, match="have one name; got: python"):
        build([python], sql_streams=[declared(f"STREAM INTO t {READ} {PLAIN}", "python")])


def test_a_mistake_in_one_file_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "sql" / "streams"
    folder.mkdir(parents=True)
    (folder / "good.sql").write_text(f"STREAM INTO good-rows {READ} APP orders {PLAIN}")
    assert list(load(tmp_path).streams) == ["good"]
    (folder / "bad.sql").write_text(f"STREAM INTO bad-rows {READ} APP other")
    (folder / "same.sql").write_text(f"STREAM INTO good-rows {READ} {PLAIN}")
    catalog, broken = load_partial(tmp_path)
    assert list(catalog.streams) == ["good"]
    assert sorted(e.path.name for e in broken) == ["bad.sql", "same.sql"]
    assert {e.folder for e in broken} == {"streams"}
