"""How fast a new version builds its state from a topic and from an archive of it, beside a stream that starts anew and
reads the same topic.

All count and sum some million orders by shop and minute. To start anew is what there is without a replacement: the
output stands still until all is read. Then the new version takes over, and the time of the cut and of its first batch
is measured, in a warm JVM: a real cut also waits for the next driver of the app.

    python -m tests.bench.replacement [records]
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from penstock.archive.stream import archive_stream
from penstock.devstack.servers.kafka import Broker
from penstock.engine.replacement.input_archive import InputArchive, find_archive
from penstock.engine.replacement.replacement import Replacement, ReplacementOptions
from penstock.engine.session import session_for
from penstock.host.ports import free_port
from penstock.model.archive import Archive
from penstock.model.topic import COMMITS
from penstock.streams import EmitFinal, Input, Stream, Topic, TopicOutput
from penstock.testing import create, running, spark_session
from tests.bench.archive_servers import archive_servers
from tests.bench.common import table, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = 1_700_000_000_000
SHOPS = 200
ORDERS = Topic("orders", partitions=4, config={"retention.ms": "-1"})
MINUTES = Topic("order-minutes", partitions=2, config={"retention.ms": "-1"})
ARCHIVE = Archive("order-archive", ORDERS, bucket="bench", prefix="orders", every=timedelta(0))
# Orders of an hour.
SPAN_MS = 3_600_000


def counted(orders: DataFrame) -> DataFrame:
    rows = orders.groupBy("shop", F.window("event_time", "1 minute").alias("w")).agg(F.count("*").alias("orders"))
    return rows.select("shop", F.unix_millis("w.start").alias("minute"), "orders")


def summed(orders: DataFrame) -> DataFrame:
    rows = orders.groupBy("shop", F.window("event_time", "1 minute").alias("w")).agg(
        F.count("*").alias("orders"), F.sum("amount").alias("amount")
    )
    return rows.select("shop", F.unix_millis("w.start").alias("minute"), "orders", "amount")


STREAM = Stream(
    "order-minutes",
    "bench",
    {"orders": Input(ORDERS, schema="shop STRING NOT NULL, amount INT NOT NULL, at BIGINT NOT NULL",
                     event_time="timestamp_millis(at)", max_ahead=timedelta(0))},
    counted,
    TopicOutput(MINUTES, key=("shop", "minute"), value=("shop", "minute", "orders")),
    EmitFinal(window=timedelta(minutes=1), grace=timedelta(0)),
    shuffle_partitions=2,
)  # fmt: skip
WIDER = replace(
    STREAM,
    transform=summed,
    output=TopicOutput(MINUTES, key=("shop", "minute"), value=("shop", "minute", "orders", "amount")),
)


def send_orders(spark: SparkSession, bootstrap: str, records: int) -> None:
    at = f"{START} + CAST(id * {SPAN_MS} / {records} AS BIGINT)"
    value = F.to_json(F.struct(F.expr(f"concat('shop-', id % {SHOPS})").alias("shop"),
                               F.expr("CAST(id % 100 AS INT)").alias("amount"), F.expr(at).alias("at")))  # fmt: skip
    rows = spark.range(records).select(
        value.cast("binary").alias("value"), F.expr(f"timestamp_millis({at}) AS timestamp")
    )
    rows.write.format("kafka").options(
        **{"kafka.bootstrap.servers": bootstrap, "topic": ORDERS.name, "kafka.compression.type": "lz4"}
    ).save()


def seconds_to_read(stream: Stream, spark: SparkSession, bootstrap: str, folder: Path) -> float:
    began = time.monotonic()
    with running(stream, spark, bootstrap, folder) as run:
        run.process_all_available()
        return time.monotonic() - began


def write_archive(spark: SparkSession, bootstrap: str, folder: Path) -> float:
    """Archive the orders, and close their hour; the seconds it took."""
    began = time.monotonic()
    with running(archive_stream(ARCHIVE), spark, bootstrap, folder) as run:
        run.process_all_available()
    return time.monotonic() - began


def build(spark: SparkSession, bootstrap: str, folder: Path, archive: InputArchive | None) -> tuple[Replacement, float]:
    """A replacement that has caught up, and the seconds it took."""
    options = ReplacementOptions(since=START)
    session = session_for(spark, WIDER)
    made = Replacement(WIDER, session, bootstrap, str(folder), uuid.uuid4().hex, options, archive)
    began = time.monotonic()
    made.open()
    while not (made.advance() and made.is_ready):
        pass
    return made, time.monotonic() - began


def main(records: int) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        archive_servers(Path(name)),
        Broker(home=Path(name), port=free_port(2)) as broker,
    ):
        bootstrap, folder = broker.bootstrap, Path(name, "checkpoints")
        create(bootstrap, *STREAM.topics(), COMMITS)
        with spark_session() as spark:
            send_orders(spark, bootstrap, records // 10)
            # Once, for the JVM's compiler.
            seconds_to_read(replace(STREAM, name="warm"), spark, bootstrap, folder)
            send_orders(spark, bootstrap, records)
            seconds_to_read(STREAM, spark, bootstrap, folder)
            archived = write_archive(spark, bootstrap, folder)
            # Once, as above.
            build(spark, bootstrap, folder, None)[0].close()
            made, of_archive = build(spark, bootstrap, folder, find_archive(WIDER, [archive_stream(ARCHIVE)]))
            made.close()
            made, of_topic = build(spark, bootstrap, folder, None)
            with closing(made):
                began = time.monotonic()
                made.cut()
                cut = time.monotonic() - began
            began = time.monotonic()
            with running(WIDER, spark, bootstrap, folder) as run:
                run.process_all_available()
                first = time.monotonic() - began
            anew = seconds_to_read(replace(WIDER, name="anew"), spark, bootstrap, folder)
    total = records + records // 10
    rows = [
        ["new version of the archive, with comparison", f"{of_archive:.1f}", f"{total / of_archive:,.0f}"],
        ["new version of the topic, with comparison", f"{of_topic:.1f}", f"{total / of_topic:,.0f}"],
        ["started anew", f"{anew:.1f}", f"{total / anew:,.0f}"],
        ["archive to anew, topic to anew", f"{of_archive / anew:.2f}, {of_topic / anew:.2f}", ""],
        ["cut", f"{cut:.1f}", ""],
        ["first batch of the new version", f"{first:.1f}", ""],
        ["the archive, written before", f"{archived:.1f}", f"{total / archived:,.0f}"],
    ]
    names = ("of the archive", "of the topic", "anew", "cut", "first batch")
    values = ([of_archive], [of_topic], [anew], [cut], [first])
    write("replacement", table(["", "seconds", "records/s"], rows), {"time, s": dict(zip(names, values, strict=True))})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
