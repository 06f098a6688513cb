"""One stream of each kind over the same numbered events, so that every kind is killed in every kind of work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from penstock.streams import (
    Combiner,
    EmitChanges,
    EmitFinal,
    F,
    Input,
    Stateless,
    Stream,
    StreamJoin,
    Table,
    Timers,
    Topic,
    TopicOutput,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

APP = "long"
# Longer than any outage: what is sent on time and arrives behind an outage is not late.
GRACE = timedelta(seconds=int(os.environ.get("CHAOS_GRACE", "120")))
WINDOW, NEAR = timedelta(seconds=10), timedelta(seconds=10)
# Eight streams on two cores: batches that follow each other faster would take all there is.
EVERY = 4.0
# What is checked must still be there: nothing expires, nothing is compacted.
KEPT, WHOLE = {"retention.ms": "-1"}, {"min.compaction.lag.ms": "864000000", "max.compaction.lag.ms": "864000001"}

EVENTS = Topic("events", partitions=2, config=KEPT)
PAYS = Topic("pays", partitions=2, config=KEPT)
NAMES = Topic("names", partitions=2, compacted=True, may_add_partitions=False, config=WHOLE)
EVENT = (
    "id BIGINT NOT NULL, k STRING NOT NULL, g STRING NOT NULL, v BIGINT NOT NULL, "
    "name STRING NOT NULL, seen BIGINT NOT NULL, at BIGINT NOT NULL"
)
PARTS = Combiner(
    "k STRING NOT NULL, n BIGINT NOT NULL, total BIGINT NOT NULL",
    "SELECT k, count(*) AS n, CAST(sum(v) AS BIGINT) AS total, max(event_time) AS event_time FROM records "
    'GROUP BY k, "at" - "at" % 10000',
)


def events(late: Literal["count", "keep"] = "count", combine: Combiner | None = None) -> Input:
    return Input(EVENTS, schema=EVENT, event_time="timestamp_millis(at)", late_records=late, combine=combine)


def topic(name: str, **options: Any) -> Topic:
    return Topic(name, partitions=2, config=WHOLE if options else KEPT, **options)


def named(events: DataFrame, names: DataFrame) -> DataFrame:
    return events.join(names, events.name == names.key, "left").select("id", "v", "name", "seen", "version")


def parted(events: DataFrame) -> DataFrame:
    return events.select("id", "v", F.when(F.col("v") % 2 == 0, "even").otherwise("odd").alias("output"))


def totals(events: DataFrame) -> DataFrame:
    windows = events.groupBy("k", F.window("event_time", "10 seconds").alias("w"))
    return windows.agg(F.sum("n").alias("n"), F.sum("total").alias("total")).select(
        "k", F.unix_millis("w.start").alias("start"), "n", "total"
    )


def finals(events: DataFrame) -> DataFrame:
    windows = events.groupBy("k", F.window("event_time", "10 seconds").alias("w"))
    return windows.agg(F.count("*").alias("n"), F.sum("v").alias("total")).select(
        "k", F.unix_millis("w.start").alias("start"), "n", "total"
    )


def once(events: DataFrame) -> DataFrame:
    windows = events.dropDuplicatesWithinWatermark(["id"]).groupBy(F.window("event_time", "10 seconds").alias("w"))
    return windows.agg(F.count("*").alias("n")).select(F.unix_millis("w.start").alias("start"), "n")


def joined(events: DataFrame, pays: DataFrame) -> DataFrame:
    paid = pays.select("of", "amount", F.col("event_time").alias("paid_at"))
    near = "id = of AND paid_at BETWEEN event_time AND event_time + INTERVAL 10 SECONDS"
    return events.join(paid, F.expr(near), "left").select("id", "v", "amount")


def timed(events: DataFrame) -> DataFrame:
    """A group is told of once, some time after its first event: how many there were, and their sum."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Groups(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._handle = handle
            self._sums = handle.getValueState("sums", "n BIGINT, total BIGINT")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
            new = not self._sums.exists()
            n, total = (0, 0) if new else self._sums.get()
            times = []
            for row in rows:
                n, total = n + 1, total + row.v
                times.append(int(row.event_time.timestamp() * 1000))
            self._sums.update((n, total))
            if new:
                self._handle.registerTimer(min(times) + 20_000)
            yield from ()

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
            n, total = self._sums.get()
            self._sums.clear()
            yield Row(g=key[0], n=n, total=total)

        def close(self) -> None:
            pass

    return events.groupBy("g").transformWithState(Groups(), "g STRING, n BIGINT, total BIGINT", "Append", "EventTime")


def wilds(raw: DataFrame) -> DataFrame:
    windows = raw.groupBy("topic", F.window("event_time", "10 seconds").alias("w")).agg(F.count("*").alias("n"))
    return windows.select("topic", F.unix_millis("w.start").alias("start"), "n")


def stream(
    name: str, inputs: dict[str, Input | Table], transform: Any, output: Any, output_mode: Any, **more: Any
) -> Stream:
    return Stream(name, APP, inputs, transform, output, output_mode, every=EVERY, **more)


BY_WINDOW: dict[str, Any] = {"key": ("k", "start"), "value": ("n", "total")}
PAY = "of BIGINT NOT NULL, amount BIGINT NOT NULL, at BIGINT NOT NULL"
PAID = Input(PAYS, schema=PAY, event_time="timestamp_millis(at)")
BY_PARITY = {name: TopicOutput(topic(name), key="id", value="v") for name in ("even", "odd")}
EVERY_KIND = [
    stream(
        "named",
        {"events": events(), "names": Table(NAMES, schema="version BIGINT NOT NULL")},
        named,
        TopicOutput(topic("named"), key="id", value=("v", "name", "seen", "version")),
        Stateless(),
    ),
    stream("parted", {"events": events()}, parted, BY_PARITY, Stateless()),
    stream(
        "totals",
        {"events": events("keep", PARTS)},
        totals,
        TopicOutput(topic("totals", compacted=True), **BY_WINDOW),
        EmitChanges(WINDOW, grace=GRACE),
    ),
    stream(
        "finals",
        {"events": events("keep")},
        finals,
        TopicOutput(topic("finals"), **BY_WINDOW),
        EmitFinal(WINDOW, GRACE),
    ),
    stream(
        "once",
        {"events": events("keep")},
        once,
        TopicOutput(topic("once"), key="start", value="n"),
        EmitFinal(WINDOW, GRACE, first_step=timedelta(0)),
        steps=2,
    ),
    stream(
        "joined",
        {"events": events(), "pays": PAID},
        joined,
        TopicOutput(topic("joined"), key="id", value=("v", "amount")),
        StreamJoin(NEAR, GRACE),
    ),
    stream(
        "timed",
        {"events": events()},
        timed,
        TopicOutput(topic("timed"), key="g", value=("n", "total")),
        Timers(WINDOW, GRACE),
    ),
    stream(
        "wilds",
        {"raw": Input(pattern="wild-.*")},
        wilds,
        TopicOutput(topic("wilds", compacted=True), key=("topic", "start"), value="n"),
        EmitChanges(WINDOW, grace=timedelta(hours=12)),
    ),
]
# A short run does with some of them.
CHOSEN = os.environ.get("CHAOS_STREAMS", "").split(",")
STREAMS = [one for one in EVERY_KIND if CHOSEN == [""] or one.name in CHOSEN]
