"""Streams in SQL run as those in Python do, and Spark's refusals have their place in the file."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint.plan_fingerprint import build_frame, empty_tables, fingerprint_lines
from penstock.engine.session import session_for
from penstock.engine.state.fold import current_context
from penstock.errors import DeclarationError
from penstock.model.sql.stream_file import parse
from penstock.model.sql.stream_query import sql_stream
from penstock.streams import EmitFinal, F, Fold, Input, KeyedState, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, rows, running, send

pytestmark = pytest.mark.integration

ORDER = "shop STRING NOT NULL, amount DOUBLE NOT NULL, at BIGINT NOT NULL"
READ = f"READ `all-orders` AS JSON ({ORDER}) EVENT TIME timestamp_millis(at)"
MINUTES = f"""-- Totals of each shop and minute.
STREAM INTO order-minutes
{READ}
KEY (shop, minute)
VALUE total
EMIT FINAL WINDOW 1 MINUTE GRACE 10 SECONDS
AS
SELECT shop, unix_millis(window.start) AS minute, sum(amount) AS total
FROM `all-orders`
GROUP BY shop, window(event_time, '1 minute')
"""
MINUTE = 1_699_999_980_000


def declared(text: str) -> Stream:
    return sql_stream(parse(text, Path("sql/streams/order-minutes.sql")), {})


def transform(all_orders: DataFrame) -> DataFrame:
    minute = F.window("event_time", "1 minute").alias("minute")
    totals = all_orders.groupBy("shop", minute).agg(F.sum("amount").alias("total"))
    return totals.select("shop", F.unix_millis("minute.start").alias("minute"), "total")


PYTHON = Stream(
    name="order-minutes", app="streams",
    inputs={"all_orders": Input(Topic("all-orders"), schema=ORDER, event_time="timestamp_millis(at)")},
    transform=transform, output=TopicOutput(Topic("order-minutes"), key=("shop", "minute"), value="total"),
    output_mode=EmitFinal(window=timedelta(minutes=1), grace=timedelta(seconds=10)),
)  # fmt: skip


def test_it_emits_the_rows_of_its_closed_windows(spark: SparkSession, fresh_broker: Broker, tmp_path: Path) -> None:
    stream, bootstrap = declared(MINUTES), fresh_broker.bootstrap
    create(bootstrap, *(replace(t, config={"retention.ms": "-1"}) for t in stream.topics()))
    orders = [(MINUTE + 20_000, "2.5"), (MINUTE + 30_000, "4.0"), (MINUTE + 300_000, "1"), (MINUTE, '"many"')]
    texts = [(at, f'{{"shop":"north","amount":{amount},"at":{at}}}') for at, amount in orders]
    send(bootstrap, [Record("all-orders", None, text, 0, timestamp=at) for at, text in texts])
    with running(stream, spark, bootstrap, tmp_path / "checkpoints") as run:
        run.process_all_available()
        found = read(bootstrap, "order-minutes")
        dead = read(bootstrap, "all-orders-dead-letter")
    assert [(r.key, r.value) for r in found] == [('{"shop":"north","minute":1699999980000}', "6.5")]
    assert [r.value for r in dead] == [texts[3][1]]


def test_its_state_is_that_of_the_same_stream_in_python(spark: SparkSession, fresh_broker: Broker) -> None:
    """So a stream may be rewritten from one to the other, and goes on with its checkpoint."""
    lines = []
    for stream in (declared(MINUTES), PYTHON):
        frame = build_frame(spark, stream, fresh_broker.bootstrap, empty_tables(stream, spark))
        lines.append(fingerprint_lines(stream, frame))
    assert lines[0] == lines[1] != []


def test_a_table_is_joined_by_its_key(spark: SparkSession) -> None:
    stream = declared(
        f"STREAM INTO t {READ} READ TABLE shop-names AS JSON (name STRING) KEY shop AS "
        "SELECT o.shop, upper(n.name) AS name FROM `all-orders` o LEFT JOIN `shop-names` n ON n.key = o.shop"
    )
    orders = [{"shop": shop, "amount": 1.0, "at": MINUTE} for shop in ("n", "s")]
    found = rows(spark, stream, all_orders=orders, shop_names=[{"key": "n", "name": "north"}])
    assert sorted(found, key=str) == [{"shop": "n", "name": "NORTH"}, {"shop": "s", "name": None}]
    assert spark.catalog.listTables() == []


FOLD = """FOLD totals
    FROM (SELECT shop, amount, event_time FROM `all-orders` WHERE amount > 0)
    BY (shop)
    STATE (total DOUBLE)
    UPDATE AS (
        SELECT shop, sum(amount) + coalesce(any_value(state.total), 0) AS total
        FROM records LEFT JOIN state USING (shop)
        GROUP BY shop
    )
    ROWS (shop STRING, total DOUBLE)
    EMIT AS (SELECT shop, total FROM folded)
    RESTORE AS (SELECT shop, total FROM output)
"""
TOTALS = f"""STREAM INTO order-totals COMPACTED
{READ}
KEY shop
VALUE (total)
{FOLD}STATE PARTITIONS 2
AS
SELECT shop, total FROM totals
"""
# With what streams in SQL have beside the fields: coordinates of records, and settings.
WITH_OFFSETS = (
    TOTALS.replace(READ, f"{READ} WITH RECORD SETTING wait 1 SECOND")
    .replace("SELECT shop, amount,", "SELECT shop, amount + record.offset AS amount,")
    .replace("sum(amount) +", "sum(amount) + getvariable('wait') +")
)
SUMS = Fold(
    "totals", ("shop",), "total DOUBLE",
    "SELECT shop, sum(amount) + getvariable('wait') + coalesce(any_value(state.total), 0) AS total "
    "FROM records LEFT JOIN state USING (shop) GROUP BY shop",
    "SELECT shop, total FROM folded", "shop STRING, total DOUBLE",
    restore_sql="SELECT shop, total FROM output", variables={"wait": timedelta(seconds=1)},
)  # fmt: skip


def summed(given: DataFrame) -> DataFrame:
    with_offset = (F.col("amount") + F.col("record.offset")).alias("amount")
    return SUMS(given.where("amount > 0").select("shop", with_offset, "event_time"))


def fingerprint(spark: SparkSession, stream: Stream, bootstrap: str) -> list[str]:
    with current_context() as context:
        frame = build_frame(session_for(spark, stream), stream, bootstrap, {})
    return fingerprint_lines(stream, frame, context)


def test_a_fold_goes_on_with_the_state_of_the_same_fold_in_python(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    in_sql, bootstrap = declared(WITH_OFFSETS), fresh_broker.bootstrap
    given = Input(Topic("all-orders"), schema=ORDER, event_time="timestamp_millis(at)", record=True)
    python = replace(
        PYTHON, inputs={"given": given}, transform=summed,
        output=in_sql.output, output_mode=KeyedState(), shuffle_partitions=2,
    )  # fmt: skip
    assert fingerprint(spark, in_sql, bootstrap) == fingerprint(spark, python, bootstrap) != []
    create(bootstrap, *(replace(t, config={"retention.ms": "-1"}) for t in in_sql.topics()))
    for stream in (python, in_sql):
        orders = [f'{{"shop":"{shop}","amount":{amount},"at":{MINUTE}}}' for shop, amount in (("n", 2), ("s", -1))]
        send(bootstrap, [Record("all-orders", None, text, 0) for text in orders])
        with running(stream, spark, bootstrap, tmp_path) as run:
            run.process_all_available()
    assert [(r.key, r.value) for r in read(bootstrap, "order-totals")] == [
        ("n", '{"total":1002.0}'),
        ("n", '{"total":2006.0}'),
    ]


REFUSED_FOLDS = [
    ("amount, event_time FROM", "amount FROM", "6:11: fold totals lacks columns of its frame; got: no event_time"),
    ("amount, event_time FROM", "amount, at AS event_time FROM", "6:11: fold totals gets an event_time that is no"),
    ("amount, event_time FROM", "amount, TIMESTAMP_NTZ '2026-01-01' AS event_time FROM", "6:11: fold totals gets an"),
    ("sum(amount) + coalesce(any_value(state.total), 0)", "shop", "10:9: the update query of fold totals gives"),
    ("WHERE amount >", "WHERE amonut >", "6:67: Spark does not take this"),
    ("WHERE amount >", "WHERE rand() >", "6:67: this has another value each time"),
    ("sum(amount)", "sum(amonut)", "10:26: the update query of fold totals is refused by DuckDB"),
    ("any_value(state.total)", "any_value(state.sum)", "10:55: the update query of fold totals is refused by DuckDB"),
    ("total FROM folded", "total FROM totals", "15:38: the emit query of fold totals is refused by DuckDB"),
    ("SELECT shop, total FROM folded", "FROM records", "15:14: the emit query of fold totals gives other columns"),
    ("total FROM output", "totl FROM output", "16:30: the restore query of fold totals is refused by DuckDB"),
    ("shop, total FROM output", "shop, shop AS total FROM output", "16:17: the restore query of fold totals"),
    ("total FROM totals", "total FROM totals, folds", "19:33: Spark does not take this"),
    ("FROM totals", "FROM totals UNION ALL FROM totals", "6:11: fold totals would be computed as often"),
    (
        "SELECT shop, total FROM totals",
        "WITH t AS (FROM totals) SELECT * FROM t UNION ALL FROM t",
        "6:11: fold totals would be computed as often as its rows are read; got: they are read 2 times",
    ),
    (
        "SELECT shop, total FROM totals",
        "SELECT shop, sum(total) AS total FROM totals GROUP BY shop",
        "19:1: stream order-minutes has other state beside that of its folds; got: Aggregate, Fold; hint: compute",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wrong", "message"), REFUSED_FOLDS, ids=[one[1] for one in REFUSED_FOLDS])
def test_what_is_wrong_with_a_fold_is_told_with_its_place(
    spark: SparkSession, text: str, wrong: str, message: str
) -> None:
    # Of the SELECT, where it is there too.
    stream = declared(wrong.join(TOTALS.rsplit(text, 1)))
    with pytest.raises(DeclarationError) as told:
        build_frame(session_for(spark, stream), stream, "127.0.0.1:1", {})
    assert f"order-minutes.sql:{message}" in str(told.value)


REFUSED = [
    (
        "SELECT shop, amonut AS x FROM `all-orders`",
        "1:14: Spark does not take this; got: .*amonut",
    ),
    (
        "SELECT shop AS x FROM `all-orders`\nUNION ALL SELECT shop FROM other",
        "2:28: Spark does not take this; got: .*other.*; hint: name a topic of READ",
    ),
    ("SELECT shop AS x FROM `all-orders` GROUP BY", "1:42: Spark does not take this; got: .*near 'BY'"),
    ("SELECT shop AS x, sum(amount) AS y FROM `all-orders`", "Spark does not take this; got: .*"),
    ("SELECT shop AS x FROM `all-orders`\nWHERE event_time < now()", "2:20: this has another value each time"),
    ("SELECT rand() AS x FROM `all-orders`", "1:8: this has another value each time.*; got: rand"),
    (
        "SELECT shop, count(*) AS x FROM `all-orders` GROUP BY shop, window(event_time, '1 minute')",
        "1:1: stream order-minutes keeps state, and has no EMIT, JOIN or FOLD; got: Aggregate; hint: use EMIT FINAL",
    ),
    (
        "SELECT * FROM `all-orders`",
        "VALUE names a column that is not selected; got: x; hint: take one of: shop, amount",
    ),
]


@pytest.mark.parametrize(("select", "message"), REFUSED, ids=[select[:50] for select, _ in REFUSED])
def test_what_spark_does_not_take_is_refused_with_its_place(spark: SparkSession, select: str, message: str) -> None:
    stream = declared(f"STREAM INTO t {READ} VALUE x\nAS\n{select}")
    line, _, rest = message.partition(":")
    # The SELECT begins in the third line.
    wanted = f"order-minutes\\.sql:{int(line) + 2}:{rest}" if line.isdigit() else message
    with pytest.raises(DeclarationError, match=wanted):
        build_frame(session_for(spark, stream), stream, "127.0.0.1:1", {})
