"""Documents per second into Elasticsearch, compared with its client's helper, and the latency until a record is found.

python -m tests.bench.sinks [documents|latency]     both, ten minutes
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import pyarrow as pa
import pytest
import typer
from confluent_kafka import Producer
from elasticsearch import Elasticsearch as Client
from elasticsearch import helpers

from penstock.control import ProgressRow
from penstock.devstack.servers.elasticsearch import ElasticsearchServer as Part
from penstock.devstack.servers.kafka import Broker
from penstock.engine.query.stream_run import StreamRun
from penstock.host.ports import free_port
from penstock.kafka.admin import ensure_topics
from penstock.model.sql import sink_file
from penstock.model.topic import COMMITS
from penstock.settings import settings
from penstock.sinks.core.stream import sink_stream
from penstock.sinks.elasticsearch.indexes import index_template
from penstock.sinks.elasticsearch.writer import IndexWriter
from penstock.streams import Stream, Topic
from penstock.testing import spark_session
from tests.bench.common import spread, table, write
from tests.support.elasticsearch import MARK, NOON, batch, give, output, row, shaped
from tests.support.wait import wait_until

DOCUMENTS = 200_000
BATCH = 5000
SMALL = 20_000
TURNS = 3
PARALLEL = 2
SECONDS = 60
TOPIC = Topic("bench", partitions=2)
COLUMNS: Mapping[str, pa.DataType] = {
    "id": pa.int64(),
    "name": pa.string(),
    "status": pa.string(),
    "owner": pa.string(),
    "score": pa.float64(),
    "updated_at": pa.string(),
}
SHAPE = shaped(COLUMNS)
DDL = "id BIGINT, name STRING, status STRING, owner STRING, score DOUBLE, updated_at STRING"
# Of fields of text it is the words that cost; both sides have the same.
FIELDS = (("name", "text"), ("status", "keyword"), ("owner", "keyword"), ("updated_at", "date"))


@dataclass(frozen=True)
class Place:
    """A search server, a broker, and a client of the first."""

    search: Part
    broker: Broker
    client: Client

    def count(self, index: str) -> int:
        self.client.indices.refresh(index=index)
        return int(self.client.count(index=index)["count"])

    def drop(self, index: str) -> None:
        for name in (index, f"{index}-tombstones"):
            self.client.indices.delete(index=name, ignore_unavailable=True)


@contextmanager
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        with (
            Part(Path(folder), port=free_port(2), heap="1g") as search,
            Broker(home=Path(folder), port=free_port(2)) as broker,
            Client(search.url, request_timeout=60) as client,
        ):
            ensure_topics([*declared().topics(), COMMITS], broker.bootstrap)
            yield Place(search, broker, client)


def document(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"the test of the drive {number % 977} in rack {number % 31} with firmware {number % 7}",
        "status": ("open", "running", "done")[number % 3],
        "owner": f"agent-{number % 211}",
        "score": number / 7,
        "updated_at": "2026-11-22T12:00:00.000Z",
    }


def documents() -> None:
    """The same documents by the helper, by the writer, and from a topic by a sink as it is declared."""
    made = [document(number) for number in range(DOCUMENTS)]
    rates: dict[str, list[float]] = {}
    with place() as at, spark_session() as spark:
        produce(at, made)
        ways: dict[str, Callable[[], float]] = {
            "`helpers.parallel_bulk`, from memory": lambda: helper(at, made),
            "the writer, from memory": lambda: written(at, made),
            "a topic, by a sink": lambda: streamed(at, spark, len(made)),
            f"a topic, by a sink with `BATCH {SMALL}`": lambda: streamed(at, spark, len(made), SMALL),
        }
        for turn in range(TURNS):
            for name, way in ways.items():
                at.drop("bench")
                seconds = way()
                assert at.count("bench") == DOCUMENTS, name
                rates.setdefault(name, []).append(DOCUMENTS / seconds)
                print(f"{turn} {name}: {DOCUMENTS / seconds:,.0f}/s", flush=True)
    ceiling = statistics.median(next(iter(rates.values())))
    found = [[n, f"{statistics.median(r):,.0f}", f"{statistics.median(r) / ceiling:.0%}"] for n, r in rates.items()]
    about = f"{DOCUMENTS:,} documents of {len(orjson.dumps(made[4711]))} bytes, {TURNS} of each in turn, medians."
    text = f"{about}\n\n{table(['', 'documents/s', 'of the helper'], found)}"
    write("sinks", text, {"rate, documents/s": rates}, chart="rate, documents/s")


def helper(at: Place, made: list[dict[str, Any]]) -> float:
    """It knows neither versions nor deletes."""
    at.client.indices.create(index="bench", **index_template(output("bench", fields=FIELDS), SHAPE)["template"])
    actions = ({"_index": "bench", "_id": str(one["id"]), "_source": one} for one in made)
    started = time.monotonic()
    for ok, said in helpers.parallel_bulk(at.client, actions, thread_count=PARALLEL, chunk_size=1000):
        assert ok, said
    return time.monotonic() - started


def written(at: Place, made: list[dict[str, Any]]) -> float:
    rows = [row(str(one["id"]), 1, one, at=NOON) for one in made]
    batches = [batch(rows[start : start + BATCH], SHAPE) for start in range(0, len(rows), BATCH)]
    writer = IndexWriter(at.search.url, output("bench", fields=FIELDS, parallel=PARALLEL))
    give(writer, shape=SHAPE)
    started = time.monotonic()
    for each in batches:
        writer.write({writer.output.name: each}, MARK)
    took = time.monotonic() - started
    writer.close()
    return took


def streamed(at: Place, spark: Any, count: int, batch: int = 0) -> float:
    """From the end of the first batch on; a driver runs for months."""
    with started(at, spark, every=0.0, batch=batch) as run:
        wait_until(lambda: run.figures.rows_out, 300, every=0.01)
        began, had = time.monotonic(), run.figures.rows_out
        wait_until(lambda: run.figures.rows_out >= count, 600, every=0.05)
        return (time.monotonic() - began) * count / (count - had)


def produce(at: Place, made: list[dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": at.broker.bootstrap, "linger.ms": 50})
    for one in made:
        producer.produce(TOPIC.name, key=str(one["id"]), value=orjson.dumps(one), partition=one["id"] % 2)
        producer.poll(0)
    assert producer.flush(60) == 0


def declared(batch: int = 0) -> Stream:
    """As a file of `sql/sinks` declares it; batch: records of a batch, by default as many as where nothing is said."""
    fields = ", ".join(f"{name} {kind.upper()}" for name, kind in FIELDS)
    said = f"BATCH {batch}\n" if batch else ""
    sink = sink_file.parse(
        f"UPSERT INTO elasticsearch.bench\nREAD {TOPIC.name} AS JSON ({DDL})\nKEY (id)\nFIELDS ({fields})\n{said}"
        f"PARALLEL {PARALLEL}\nTOMBSTONES DELETE (CAST(record.key AS STRING))\nAS SELECT * FROM {TOPIC.name}",
        Path("bench.sql"),
    )
    return sink_stream(sink)


@contextmanager
def started(at: Place, spark: Any, every: float, batch: int = 0) -> Iterator[StreamRun]:
    with tempfile.TemporaryDirectory() as checkpoints, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_ELASTICSEARCH_URL", at.search.url)
        settings.cache_clear()
        # One that was never there: what others of its name left is theirs.
        stream = replace(declared(batch), name=f"bench-{time.time_ns()}", every=every)
        figures = ProgressRow(stream.name, stream.app, "bench")
        run = StreamRun(stream, spark, at.broker.bootstrap, checkpoints, figures)
        run.start()
        try:
            yield run
        finally:
            run.stop()


def latency() -> None:
    """From the record's way into the topic to a search that finds it; a batch each second, as sinks have it."""
    found: list[float] = []
    with place() as at, spark_session() as spark:
        produce(at, [document(-1)])
        with started(at, spark, every=1.0):
            wait_until(lambda: at.client.indices.exists(index="bench") and at.count("bench") == 1)
            for number in range(SECONDS):
                began = time.monotonic()
                produce(at, [document(number)])
                wait_until(lambda number=number: searched(at, number), every=0.02)  # type: ignore[misc]
                found.append(time.monotonic() - began)
    about = (
        f"{SECONDS} records, each sent when the one before was found; a batch and a refresh of the index each second."
    )
    text = f"{about}\n\n{table(['records', 'p50, s', 'p99, s', 'max, s'], [spread(found)])}"
    write("sinks-latency", text, {"delay, s": {"records": found}})


def searched(at: Place, number: int) -> bool:
    answer = at.client.search(index="bench", query={"term": {"id": number}}, size=0, filter_path="hits.total.value")
    return bool(answer["hits"]["total"]["value"])


def main(what: Annotated[str, typer.Argument()] = "") -> None:
    for name, measured in {"documents": documents, "latency": latency}.items():
        if what in ("", name):
            measured()


if __name__ == "__main__":
    typer.run(main)
