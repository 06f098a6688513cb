"""Rate of a backfill from an archive into a topic, compared with a bare loop that produces each record.

The bare loop checks nothing, sorts nothing, has no transactions, no header and no mark, and what it wrote is not read
back. Both read from the embedded object store, over HTTP.

    python -m tests.bench.backfill [counts] [turns]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from confluent_kafka import Producer

from penstock.archive import records
from penstock.archive.hour_closer import HourCloser, TopicEnds
from penstock.archive.stream import output_of
from penstock.archive.table import ArchiveTable
from penstock.archive.writer import ArchiveWriter
from penstock.backfill.job import BackfillJob
from penstock.backfill.progress import BackfillStatus
from penstock.backfill.run import run
from penstock.devstack.servers.kafka import Broker
from penstock.host.ports import free_port
from penstock.model.output import CommitMarker
from penstock.streams import Archive, Backfill, Topic
from penstock.testing import create
from tests.bench.archive_servers import archive_servers
from tests.bench.common import table, write

TOPIC = Topic("counts", partitions=4, compacted=True)
ARCHIVE = Archive("counts-archive", TOPIC, bucket="lake", prefix="counts")
START = datetime(2026, 1, 1, tzinfo=UTC)
HOURS, BATCH = 4, 500_000
MADE = """
SELECT 'counts' AS topic, (n % 4)::INT AS partition, n // 4 AS "offset",
  encode('{{"business":"' || n % 50 || '","contact":"contact-' || n || '"}}') AS key,
  encode('{{"business":"' || n % 50 || '","contact":"contact-' || n || '","count":' || n % 90 || '}}') AS value,
  t AS timestamp, NULL::STRUCT(key VARCHAR, value BLOB)[] AS headers, t AS event_time
FROM (SELECT n, ?::TIMESTAMPTZ + to_microseconds((n * {step})::BIGINT) AS t FROM range({first}, {last}) r(n))
"""


def filled(count: int) -> None:
    to = output_of(ARCHIVE)
    writer = ArchiveWriter(to, ArchiveTable.create(to))
    step = HOURS * 3_600_000_000 // count
    ends: dict[int, int] = {}
    with duckdb.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        for number, first in enumerate(range(0, count, BATCH)):
            last = min(count, first + BATCH)
            made = connection.sql(MADE.format(step=step, first=first, last=last), params=[START]).to_arrow_table()
            assert made is not None
            ends = {p: -(-(last - p) // 4) for p in range(4)}
            writer.write({to.name: made.cast(records.SCHEMA)}, CommitMarker("query", number, {TOPIC.name: ends}))
    asked: TopicEnds = ({}, {(TOPIC.name, p): end for p, end in ends.items()})
    later = (START + timedelta(days=2)).timestamp()
    HourCloser(writer, to, lambda _: asked, lambda: later).close_due_hours()


def bare(bootstrap: str, topic: str) -> float:
    """Seconds of the bare loop."""
    began = time.monotonic()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": "lz4",
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    table = ArchiveTable.find(output_of(ARCHIVE))
    assert table
    for one in table.files():
        with table.bucket.open_input(one.key) as source, pq.ParquetFile(source) as file:
            for batch in file.iter_batches(65_536, columns=["key", "value"]):
                for k, v in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    while True:
                        try:
                            producer.produce(topic, key=k, value=v)
                            break
                        except BufferError:
                            producer.poll(0.05)
                producer.poll(0)
    producer.flush()
    return time.monotonic() - began


def ours(bootstrap: str, topic: str, count: int) -> tuple[float, float]:
    """Seconds until all is written, and until it is verified."""
    begun = time.monotonic()
    written = begun

    def report(figures: BackfillStatus) -> None:
        nonlocal written
        if figures.state == "running":
            written = time.monotonic()

    job = BackfillJob(Backfill("counts-again", ARCHIVE, topic), START, START + timedelta(hours=HOURS), topic)
    done = run(job, bootstrap, report=report, recompute=lambda *_: iter(()))
    assert done.rows == count
    return written - begun, time.monotonic() - begun


def main(count: int, turns: int) -> None:
    found: list[tuple[float, float, float]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        archive_servers(Path(name)),
        Broker(home=Path(name), port=free_port(2)) as broker,
    ):
        bootstrap = broker.bootstrap
        filled(count)
        for turn in range(turns):
            topics = [Topic(f"{what}-{turn}", partitions=4, compacted=True) for what in ("bare", "ours")]
            create(bootstrap, *topics)
            found.append((bare(bootstrap, topics[0].name), *ours(bootstrap, topics[1].name, count)))
    ceiling, written, verified = (statistics.median(column) for column in zip(*found, strict=True))
    rows = [
        ["read and produce, bare", f"{count / ceiling:,.0f}", f"{ceiling:.0f}", "100 %"],
        ["backfill, until written", f"{count / written:,.0f}", f"{written:.0f}", f"{100 * ceiling / written:.0f} %"],
        [
            "backfill, until verified",
            f"{count / verified:,.0f}",
            f"{verified:.0f}",
            f"{100 * ceiling / verified:.0f} %",
        ],
    ]
    names = ("bare", "until written", "until verified")
    figures = {"time, s": dict(zip(names, zip(*found, strict=True), strict=True))}
    write("backfill", table([f"{count:,} counts, {turns} turns", "counts/s", "s", "of the ceiling"], rows), figures)


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    main(*[*arguments, *(10_000_000, 1)[len(arguments) :]])
