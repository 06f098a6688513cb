"""Exactly the records that make a batch fail are put aside, whatever a stream reads and how it is put together."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.model.topic import COMMITS
from penstock.streams import F, Input, Stateless, StreamJoin, Table, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.dead_letter_streams import (
    DEAD,
    FOR_EVER,
    GIVEN,
    MINUTE,
    ORDERS,
    SHARES,
    STREAM,
    order,
    place,
    sums,
    until,
    why,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

GUESTS = Topic("guests", partitions=1, config=FOR_EVER)
DEAD_GUESTS = Topic(GUESTS.dead_letters, partitions=1)
HOUSES = Topic("houses", partitions=1, compacted=True)
PAIRED = TopicOutput(SHARES, key="amount", value="share")


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    aside = (DEAD, DEAD_GUESTS, Topic(HOUSES.dead_letters))
    create(fresh_broker.bootstrap, ORDERS, GUESTS, HOUSES, *aside, SHARES, COMMITS)
    return fresh_broker.bootstrap


def test_a_record_whose_event_time_fails(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Spark evaluates the expression; it is a dead letter at once, and nothing has to be found out."""

    def total(orders: DataFrame) -> DataFrame:
        minutes = orders.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.sum("amount").alias("sum"))
        return minutes.select(F.unix_millis("w.start").alias("window"), "sum")

    timed = replace(GIVEN, event_time="timestamp_millis(at DIV people)")
    send(bootstrap, [order(1), order(2, 0), order(3)])
    with running(replace(STREAM, transform=total, inputs={"orders": timed}), spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        assert (run.figures.dead, run.figures.late, run.figures.restarts) == (1, 0, 0)
    assert sums(bootstrap) == {str(MINUTE): "4"}
    (letter,) = read(bootstrap, DEAD.name)
    assert (place(letter), why(letter)) == ("orders[0]@1", f"no event time: {timed.event_time} gives none")


def guests(*of: tuple[int, int]) -> list[Record]:
    """Of an order's amount, how many there are."""
    texts = (json.dumps({"of": amount, "number": number, "at": MINUTE}) for amount, number in of)
    return [Record(GUESTS.name, None, text, 0, timestamp=MINUTE) for text in texts]


@pytest.mark.long
def test_a_record_whose_pair_fails_in_a_join(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """In its own batch, and with an order that came before; one without a pair fails nowhere."""

    def shared(orders: DataFrame, guests: DataFrame) -> DataFrame:
        came = guests.select("of", "number", F.col("event_time").alias("came"))
        near = F.expr("amount = of AND came BETWEEN event_time AND event_time + INTERVAL 1 MINUTE")
        return orders.join(came, near).select("amount", F.expr("amount DIV number").alias("share"))

    given = Input(
        GUESTS,
        schema="of BIGINT NOT NULL, number BIGINT NOT NULL, at BIGINT NOT NULL",
        event_time="timestamp_millis(at)",
    )
    output_mode = StreamJoin(within=timedelta(minutes=1), grace=timedelta(minutes=1))
    of = replace(
        STREAM, inputs={"orders": GIVEN, "guests": given}, transform=shared, output_mode=output_mode, output=PAIRED
    )
    send(bootstrap, [order(10), order(20, partition=1), *guests((10, 2), (20, 0), (99, 0))])
    with running(of, spark, bootstrap, tmp_path) as run:
        until(run, dead=1)
        run.process_all_available()
        assert sums(bootstrap) == {"10": "5"}
        send(bootstrap, [order(40)])
        run.process_all_available()
        send(bootstrap, guests((40, 0), (40, 4)))
        until(run, dead=2)
        run.process_all_available()
    assert sums(bootstrap) == {"10": "5", "40": "10"}
    # Of the pair that came in one batch it is the record that stands later, by the topic's name.
    assert [place(one) for one in read(bootstrap, DEAD.name)] == ["orders[1]@0"]
    assert [place(one) for one in read(bootstrap, DEAD_GUESTS.name)] == ["guests[0]@3"]


@pytest.mark.long
def test_a_record_that_fails_with_its_row_of_a_table(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    def shared(orders: DataFrame, houses: DataFrame) -> DataFrame:
        pairs = orders.join(houses, F.col("amount").cast("string") == houses.key)
        return pairs.select("amount", F.expr("amount DIV rooms").alias("share"))

    table = Table(HOUSES, schema="rooms BIGINT NOT NULL")
    of = replace(
        STREAM, inputs={"orders": GIVEN, "houses": table}, transform=shared, output_mode=Stateless(), output=PAIRED
    )
    send(bootstrap, [Record(HOUSES.name, key, json.dumps({"rooms": n})) for key, n in (("10", 2), ("20", 0))])
    send(bootstrap, [order(10), order(20), order(30), order(10, partition=1)])
    with running(of, spark, bootstrap, tmp_path) as run:
        until(run, dead=1)
        run.process_all_available()
        assert run.figures.rows_out == 2
    assert sums(bootstrap) == {"10": "5"}
    (letter,) = read(bootstrap, DEAD.name)
    assert (place(letter), "Division by zero" in why(letter)) == ("orders[0]@1", True)


@pytest.mark.long
def test_a_record_that_fails_with_the_streams_state_beside_a_table(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Each run of the search has the table of the batch that failed."""

    def summed(orders: DataFrame, houses: DataFrame) -> DataFrame:
        pairs = orders.join(houses, F.col("amount").cast("string") == houses.key, "left")
        minutes = pairs.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.sum("amount").alias("sum"))
        return minutes.select(F.unix_millis("w.start").alias("window"), "sum")

    table = Table(HOUSES, schema="rooms BIGINT NOT NULL")
    of = replace(STREAM, inputs={"orders": GIVEN, "houses": table}, transform=summed)
    with running(of, spark, bootstrap, tmp_path) as run:
        send(bootstrap, [order(2**62)])
        run.process_all_available()
        send(bootstrap, [order(1), order(2**62), order(2)])
        until(run, dead=1)
        run.process_all_available()
    assert sums(bootstrap) == {str(MINUTE): str(2**62 + 3)}
    (letter,) = read(bootstrap, DEAD.name)
    assert (place(letter), "overflow" in why(letter)) == ("orders[0]@2", True)
