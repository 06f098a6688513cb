"""Documents a second into MongoDB: a sink, its writer alone, the client's own bulk_write, MongoDB's Kafka connector.

python -m tests.bench.sinks_mongodb     all four in turn, of the embedded server, and of FerretDB where Go is found
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import typer
from confluent_kafka import Producer
from pymongo import MongoClient, ReplaceOne

from penstock.devstack.servers.base import ManagedServer
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.mongodb import MongoDBServer
from penstock.host import ports
from penstock.host.ports import free_port
from penstock.java import jar_sets, jars, runtime
from penstock.kafka.admin import ensure_topics
from penstock.model.output import NO_COMMIT
from penstock.model.sink import SINKS_APP
from penstock.settings import settings
from penstock.sinks.mongodb.config import MongoDB
from penstock.sinks.mongodb.writer import MongoWriter
from penstock.streams import Topic
from tests.bench.common import table, write
from tests.bench.debezium import PREFIX as DEBEZIUM
from tests.bench.ferretdb import FerretDB
from tests.chaos.drivers import drivers
from tests.support.mongodb import Row
from tests.support.mongodb import table as rows_of
from tests.support.wait import wait_until

DATABASE, TOPIC = "bench", "orders"
BATCH, PARALLEL = 5000, 2
# FerretDB reads its whole collection for each replacement, whoever asks for it.
FERRETDB_DOCUMENTS = 2000
CLIENT = "the client's own bulk_write, from memory"
KIND = pa.struct([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("note", pa.string())])
DECLARED = f"""UPSERT INTO mongodb.{DATABASE}.sink
READ {TOPIC} AS JSON (id BIGINT NOT NULL, name STRING, amount DOUBLE, note STRING)
KEY (id)
BATCH {BATCH * 2} EVERY 100 MILLISECONDS
PARALLEL {PARALLEL}
AS
SELECT id, name, amount, note FROM {TOPIC}"""

jar_sets.SETS["mongodb-connect"] = jar_sets.JarSet(
    7,
    (
        "org.apache.avro:avro:1.12.0",
        "org.mongodb.kafka:mongo-kafka-connect:2.0.1",
        "org.mongodb:bson:4.7.2",
        "org.mongodb:bson-record-codec:4.7.2",
        "org.mongodb:mongodb-driver-core:4.7.2",
        "org.mongodb:mongodb-driver-sync:4.7.2",
    ),
)


class Connector(ManagedServer):
    """Kafka Connect, standalone, with MongoDB's own sink connector: the topic by replaceOne with upsert."""

    name: str = "mongodb-connect"
    label: str = "Kafka Connect"

    def __init__(self, home: Path, bootstrap: str, url: str) -> None:
        super().__init__(home)
        self._bootstrap, self._url = bootstrap, url
        self.port = free_port()
        self.folder = home / self.name

    @property
    def ports(self) -> Mapping[str, int]:
        return {"rest": self.port}

    def prepare(self) -> None:
        assert DEBEZIUM  # whose module names the jars of Connect itself
        self.folder.mkdir(parents=True, exist_ok=True)
        worker = {
            "bootstrap.servers": self._bootstrap,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "listeners": f"http://127.0.0.1:{self.port}",
            "offset.storage.file.filename": self.folder / "offsets",
            "plugin.discovery": "only_scan",
            # As its users do who want it fast: its own is 500.
            "consumer.max.poll.records": BATCH,
        }
        strategy = "com.mongodb.kafka.connect.sink"
        connector = {
            "name": self.folder.parent.name,
            "connector.class": "com.mongodb.kafka.connect.MongoSinkConnector",
            "tasks.max": PARALLEL,
            "topics": TOPIC,
            "connection.uri": self._url,
            "database": DATABASE,
            "collection": "connect",
            "document.id.strategy": f"{strategy}.processor.id.strategy.PartialValueStrategy",
            "document.id.strategy.partial.value.projection.type": "AllowList",
            "document.id.strategy.partial.value.projection.list": "id",
            "writemodel.strategy": f"{strategy}.writemodel.strategy.ReplaceOneDefaultStrategy",
        }
        for file, properties in (("worker", worker), ("connector", connector)):
            (self.folder / f"{file}.properties").write_text("".join(f"{k}={v}\n" for k, v in properties.items()))

    def command(self) -> list[str]:
        libraries = ":".join([jars.classpath("connect"), jars.classpath("mongodb-connect")])
        return [
            runtime.find().command, "-Xmx1g", "-XX:+UseG1GC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", libraries,
            "org.apache.kafka.connect.cli.ConnectStandalone",
            str(self.folder / "worker.properties"), str(self.folder / "connector.properties"),
        ]  # fmt: skip

    def ready(self) -> bool:
        return ports.listens(self.port)


@dataclass
class Place:
    """Servers, and how fast each way was, in documents a second."""

    home: Path
    broker: Broker
    server: MongoDBServer
    client: MongoClient[Any]
    documents: int
    rates: dict[str, list[float]] = field(default_factory=dict)

    def run(self, way: str, begin: Callable[[], object], *, awaited: str = "") -> None:
        """Time one way from its beginning; one that runs by itself from its first document in `awaited`."""
        collection = self.client[DATABASE][awaited or way]
        began = time.monotonic()
        begin()
        before = 0
        if awaited:
            wait_until(lambda: collection.estimated_document_count() > 0, every=0.02, what=f"{way}: a document")
            began, before = time.monotonic(), collection.estimated_document_count()
            wait_until(
                lambda: collection.estimated_document_count() >= self.documents,
                600,
                every=0.02,
                what=f"{way}: all of them",
            )
        self.rates.setdefault(way, []).append((self.documents - before) / (time.monotonic() - began))


def document(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"order {number}", "amount": number * 0.25, "note": f"{number:0100d}"}


def _parts(documents: int) -> list[range]:
    size = min(BATCH, documents // PARALLEL)
    return [range(at, min(at + size, documents)) for at in range(0, documents, size)]


def _bare(at: Place) -> Callable[[], object]:
    """The client's own bulk_write, as many at once as the writer's."""
    ready = [[ReplaceOne({"_id": str(n)}, document(n), upsert=True) for n in part] for part in _parts(at.documents)]
    collection = at.client[DATABASE]["bare"]

    def send(part: Sequence[ReplaceOne[Any]]) -> None:
        collection.bulk_write(list(part), ordered=False)

    def begin() -> None:
        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(send, ready))

    return begin


def _writer(at: Place) -> Callable[[], object]:
    """A sink's writer, its rows given from memory."""
    output = MongoDB(sink="bench", database=DATABASE, collection="writer", parallel=PARALLEL)
    ready = [rows_of(*(Row(str(n), 1, document(n)) for n in part), kind=KIND) for part in _parts(at.documents)]

    def begin() -> None:
        writer = MongoWriter(at.server.url, output)
        for rows in ready:
            writer.write({output.name: rows}, NO_COMMIT)
        writer.close()

    return begin


def _fill(bootstrap: str, documents: int) -> None:
    ensure_topics([Topic(TOPIC, partitions=PARALLEL)], bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": documents})
    for number in range(documents):
        producer.produce(TOPIC, orjson.dumps(document(number)), str(number).encode())
        producer.poll(0)
    assert producer.flush(60) == 0


def _sink(at: Place, mariadb: MariaDB, number: int) -> None:
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PENSTOCK_MONGODB_URL", at.server.url)
        settings.cache_clear()
        home = at.home / f"sink-{number}"
        folder = home / "project" / "sql" / "sinks"
        folder.mkdir(parents=True)
        (folder / f"orders-{number}.sql").write_text(DECLARED)
        app_drivers = stack.enter_context(drivers(at.broker, mariadb, home, home / "project"))
        at.run("a sink, from the topic", lambda: app_drivers.launch(SINKS_APP), awaited="sink")
    settings.cache_clear()


def measure(server: MongoDBServer, documents: int, times: int) -> dict[str, list[float]]:
    """Documents a second of each way into one server, by way."""
    with ExitStack() as stack:
        home = server.home
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        stack.enter_context(server)
        client = stack.enter_context(MongoClient[Any](server.url))
        mariadb = stack.enter_context(MariaDB(home=home, port=free_port()))
        at = Place(home, broker, server, client, documents)
        _fill(broker.bootstrap, documents)
        bare, writer = _bare(at), _writer(at)
        for number in range(times):
            at.run(CLIENT, bare)
            at.run("a sink's writer, from memory", writer)
            _sink(at, mariadb, number)
            with Connector(home / f"connect-{number}", broker.bootstrap, server.url):
                at.run("MongoDB's Kafka connector, from the topic", lambda: None, awaited="connect")
            client.drop_database(DATABASE)
    return at.rates


def main(*, documents: int = 50_000, times: int = 3) -> None:
    rows, figures = [], {}
    servers: dict[str, tuple[type[MongoDBServer], int]] = {"mongo-java-server": (MongoDBServer, documents)}
    if FerretDB.can_be_built():
        servers["FerretDB"] = FerretDB, FERRETDB_DOCUMENTS
    for name, (server, size) in servers.items():
        with tempfile.TemporaryDirectory() as folder:
            rates = measure(server(Path(folder), port=free_port()), size, times)
        ceiling = statistics.median(rates[CLIENT])
        for way, found in rates.items():
            rate = statistics.median(found)
            rows.append([name, way, f"{rate:,.0f}", f"{rate / ceiling:.0%}"])
            figures[f"{name}: {way}"] = found
    about = f"{documents:,} documents of four fields, {FERRETDB_DOCUMENTS:,} in FerretDB; "
    about += f"{PARALLEL} requests at once; medians of {times}."
    text = f"{about}\n\n{table(['server', '', 'documents/s', 'of the client'], rows)}"
    write("sinks-mongodb", text, {"rate, documents/s": figures}, chart="rate, documents/s")


if __name__ == "__main__":
    typer.run(main)
