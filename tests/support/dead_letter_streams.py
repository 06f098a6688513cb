"""A stream that shares out orders, and one that takes what a topic holds for numbers: what records can do to them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.engine.query.stream_run import StreamRun
from penstock.streams import EmitChanges, F, Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, latest, read
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTE = 1_700_000_400_000
FOR_EVER = {"retention.ms": "-1"}
ORDERS = Topic("orders", partitions=2, config=FOR_EVER)
SHARES = Topic("shares", partitions=1, config=FOR_EVER)
DEAD = Topic(ORDERS.dead_letters, partitions=1)


def transform(orders: DataFrame) -> DataFrame:
    """Nobody thought of orders among no people at all."""
    share = F.expr("CAST(amount AS BIGINT) DIV people").alias("share")
    rows = orders.select("event_time", share)
    minutes = rows.groupBy(F.window("event_time", "1 minute").alias("w"))
    return minutes.agg(F.sum("share").alias("sum")).select(F.unix_millis("w.start").alias("window"), "sum")


GIVEN = Input(
    ORDERS,
    schema="amount BIGINT NOT NULL, people BIGINT NOT NULL, at BIGINT NOT NULL",
    event_time="timestamp_millis(at)",
)
STREAM = Stream(
    name="sharing",
    app="tests",
    inputs={"orders": GIVEN},
    transform=transform,
    output=TopicOutput(SHARES, key="window", value="sum"),
    output_mode=EmitChanges(window=timedelta(minutes=1), grace=timedelta(days=10_000)),
)


def order(amount: int, people: int = 1, partition: int = 0) -> Record:
    value = json.dumps({"amount": amount, "people": people, "at": MINUTE})
    return Record(ORDERS.name, None, value, partition, timestamp=MINUTE)


def until(run: StreamRun, state: str | None = None, dead: int | None = None) -> None:
    """Look after a stream until it says so."""

    def holds() -> bool:
        run.reconcile()
        now = run.report()
        return (state is None or now.state == state) and (dead is None or now.dead == dead)

    wait_until(holds, 240, what=f"the stream is {state or ''}, {dead} dead")


def why(letter: Record) -> str:
    return dict(letter.headers)["penstock.reason"]


def place(letter: Record) -> str:
    said = dict(letter.headers)
    return f"{said['penstock.topic']}[{said['penstock.partition']}]@{said['penstock.offset']}"


def sums(bootstrap: str) -> dict[str | None, str | None]:
    return latest(read(bootstrap, SHARES.name))


def raw_stream(**more: object) -> Stream:
    """Reads topics of a pattern, whatever they hold, and takes all of it for numbers."""
    given = {"records": Input(pattern="orders.?")}
    made = replace(
        STREAM, inputs=given, transform=numbers, output=TopicOutput(SHARES, value="n"), output_mode=Stateless()
    )
    return replace(made, **more)  # type: ignore[arg-type]


def numbers(records: DataFrame) -> DataFrame:
    return records.select(F.expr("CAST(CAST(value AS STRING) AS INT)").alias("n"))
