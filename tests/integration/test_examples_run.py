"""The worked examples with an input that is silent, beside a filter, and on rows alone; tests/examples has the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.devstack.servers.kafka import Broker
from penstock.engine.query.stream_run import StreamRun
from penstock.model.stream import Stream
from penstock.streams import EmitFinal, F, TopicOutput
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.testing import Record, create, read, rows, running, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[1] / "examples"
TEN = 1_699_956_000_000
"""2023-11-14 10:00 UTC"""
MINUTE = 60_000


def example(name: str) -> Stream:
    return catalog.load(EXAMPLES).stream(name)


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    return fresh_broker.bootstrap


def made(bootstrap: str, stream: Stream) -> None:
    # The records are years old by their own time: the broker must not take them for expired.
    create(bootstrap, *(t if t.compacted else replace(t, config={"retention.ms": "-1"}) for t in stream.topics()))


def at(minute: float) -> str:
    return f"2023-11-14T{10 + int(minute // 60):02}:{int(minute % 60):02}:{round(minute % 1 * 60):02}Z"


def record(topic: str, minute: float, partition: int = 0, **fields: object) -> Record:
    return Record(topic, None, json.dumps({**fields, "at": at(minute)}), partition, timestamp=TEN)


@contextmanager
def beats(bootstrap: str, stream: Stream, only: str = "") -> Iterator[Callable[[float], None]]:
    """Sends the beats that are due at a minute, to all inputs or one."""
    clock = [0.0]
    windowed = {t: of for t, of in catalog.build([stream]).heartbeat_topics().items() if only in ("", t)}
    beater = HeartbeatSender(windowed, None, bootstrap, clock=lambda: clock[0])

    def beat(minute: float) -> None:
        clock[0] = (TEN + minute * MINUTE) / 1000
        beater.run_once()

    try:
        yield beat
    finally:
        beater.close()


def out(bootstrap: str, stream: Stream) -> list[tuple[str | None, str | None]]:
    return [(r.key, r.value) for r in read(bootstrap, stream.output_names[0])]


def settled(run: StreamRun, bootstrap: str) -> list[tuple[str | None, str | None]]:
    run.process_all_available()
    return out(bootstrap, run.stream)


@pytest.mark.long
def test_a_silent_stream_holds_the_time_of_a_join_until_it_gets_beats(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    stream = example("paid-orders")
    made(bootstrap, stream)
    with running(stream, spark, bootstrap, tmp_path) as run:
        send(bootstrap, [record("orders", 0, id=1), record("orders", 1, id=2)])
        with beats(bootstrap, stream, only="orders") as beat:
            beat(60)
            # Nobody knows what payments are still under way.
            assert settled(run, bootstrap) == []
        with beats(bootstrap, stream, only="payments") as beat:
            beat(60)
            assert settled(run, bootstrap) == [("1", None), ("2", None)]


def filtered(sales: DataFrame, shops: DataFrame) -> DataFrame:
    large = sales.where("amount > 5").join(shops, sales.shop == shops.key)
    return large.groupBy("town", F.window("event_time", "1 minute")).agg(F.sum("amount").alias("amount"))


@pytest.mark.long
def test_a_filter_and_a_join_let_beats_through(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Spark pushes both below the watermark, where a beat, which has no fields, would not pass them."""
    base = example("towns")
    output = base.outputs[""]
    assert isinstance(output, TopicOutput)
    stream = replace(
        base,
        transform=filtered,
        output=replace(output, key="town"),
        output_mode=EmitFinal(timedelta(minutes=1), timedelta(0)),
    )
    made(bootstrap, stream)
    send(bootstrap, [Record("shops", "a", '{"town": "Aachen"}')])
    with beats(bootstrap, stream) as beat, running(stream, spark, bootstrap, tmp_path) as run:
        send(bootstrap, [record("sales", 0.1, id=n, shop="a", amount=n) for n in (1, 7, 8)])
        assert settled(run, bootstrap) == []
        beat(1)
        assert settled(run, bootstrap) == [("Aachen", "15.0")]


def test_transforms_run_on_rows_alone(spark: SparkSession) -> None:
    sale = {"id": 1, "shop": "a", "amount": 2.0, "at": at(0)}
    shops = [{"key": "a", "town": "Aachen"}]
    assert rows(spark, example("named-sales"), sales=[sale], shops=shops) == [
        {"id": 1, "shop": "a", "town": "Aachen", "amount": 2.0}
    ]
    assert rows(spark, example("towns"), sales=[sale, sale], shops=shops) == [
        {"town": "Aachen", "hour": TEN, "amount": 4.0}
    ]
    orders, payments = [{"id": n, "at": at(0)} for n in (1, 2)], [{"of": 1, "amount": 3.0, "at": at(9)}]
    paid = rows(spark, example("paid-orders"), orders=orders, payments=payments)
    assert sorted(paid, key=lambda row: row["id"]) == [{"id": 1, "amount": 3.0}, {"id": 2, "amount": None}]
    clicks = [{"id": n, "who": "x", "at": at(n)} for n in (0, 1, 20)]
    assert rows(spark, example("visits"), clicks=clicks) == [{"hour": TEN, "visits": 2, "longest": 2}]
    # State with timers: no timer is ever due.
    assert rows(spark, example("silences"), signs=[{"machine": "a", "at": at(0)}]) == []
