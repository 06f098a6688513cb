"""Latency from a commit to the topic, rate of a snapshot, and CPU of many idle captures.

python -m tests.bench.capture [latency|snapshot|idle]     all three, a quarter of an hour
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil
import pymysql
import pytest
import typer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from pymysql.cursors import SSCursor

from penstock.devstack.servers.base import ManagedServer
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.kafka.admin import ensure_topics
from penstock.model.capture import APP
from penstock.streams import Topic
from tests.bench.common import peak_memory, spread, table, write
from tests.bench.debezium import PREFIX, Debezium, LoggedMariaDB
from tests.chaos.drivers import Drivers, drivers
from tests.support.captures import connect
from tests.support.wait import wait_until

MIB = 1024 * 1024
TABLE = """CREATE OR REPLACE TABLE {name} (id BIGINT UNSIGNED PRIMARY KEY AUTO_INCREMENT, name VARCHAR(100) NOT NULL,
amount DECIMAL(12, 2) NOT NULL DEFAULT 12.5, note VARCHAR(200), deleted BOOLEAN NOT NULL DEFAULT FALSE,
updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (updated_at, id))"""
DECLARED = """CAPTURE INTO {name} FROM mysql demo KEY (id) CURSOR updated_at DELETED WHEN (deleted)
EVERY {every} MILLISECONDS AS SELECT * FROM {name}"""
ROWS = 1_000_000
LATENCY_SECONDS = 60
IDLE_SECONDS = 60
# A person who wants changes soon says so; the default is a second.
EVERY_MS = 500


@dataclass(frozen=True)
class Place:
    """Servers, and the drivers of a project that declares some captures."""

    home: Path
    app_drivers: Drivers
    broker: Broker
    mariadb: MariaDB

    def connect(self) -> pymysql.Connection[Any]:
        return connect(self.mariadb, autocommit=True)

    def sql(self, *statements: str) -> None:
        connection = self.connect()
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.close()


@contextmanager
def place(captures: Mapping[str, int]) -> Iterator[Place]:
    """captures: milliseconds between two polls, by name; each has a table of its own."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        mariadb = stack.enter_context(LoggedMariaDB(home=home, port=free_port()))
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("AIRFLOW_CONN_DEMO", mariadb.url_of("demo"))
        folder = home / "project" / "sql" / "captures"
        folder.mkdir(parents=True)
        for name, every in captures.items():
            (folder / f"{name}.sql").write_text(DECLARED.format(name=name, every=every))
        app_drivers = stack.enter_context(drivers(broker, mariadb, home, home / "project"))
        at = Place(home, app_drivers, broker, mariadb)
        at.sql(*(TABLE.format(name=name) for name in captures))
        yield at


def latency() -> None:
    """From the commit until a read-committed consumer has the record."""
    delays: dict[str, list[float]] = {}
    with place({"orders": EVERY_MS}) as at:
        at.sql("INSERT INTO orders (name) SELECT CONCAT('order ', seq) FROM seq_1_to_10000")
        at.app_drivers.launch(APP)
        wait_until(lambda: _written(at, "orders") >= 10_000, what="the snapshot")
        for rate in (10, 1000):
            delays[f"{rate:,}"] = _latencies(at, rate)
    rows = [[rate, *spread(values)] for rate, values in delays.items()]
    about = f"A poll every {EVERY_MS} ms, {LATENCY_SECONDS} s of single-row updates at each rate."
    text = f"{about}\n\n{table(['changes/s', 'changes', 'p50, s', 'p99, s', 'max, s'], rows)}"
    write("capture-latency", text, {"delay at changes a second, s": delays})


def _written(at: Place, name: str) -> int:
    found = at.app_drivers.control.progress(APP).get(name)
    return found.rows_out if found else 0


def _latencies(at: Place, rate: int) -> list[float]:
    consumer = Consumer(
        {
            "bootstrap.servers": at.broker.bootstrap, "group.id": f"latency-{rate}",
            "isolation.level": "read_committed", "fetch.wait.max.ms": 10,
        }
    )  # fmt: skip
    _, end = consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=10)
    consumer.assign([TopicPartition("orders", 0, end)])
    committed: dict[str, float] = {}
    found: list[float] = []
    over = threading.Event()

    def change() -> None:
        connection = at.connect()
        began = time.monotonic()
        with connection.cursor() as cursor:
            for number in range(rate * LATENCY_SECONDS):
                note = f"{rate}-{number}"
                # Each row once, so that every change is the last of its key.
                wait = began + number / rate - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                cursor.execute("UPDATE orders SET note = %s WHERE id = %s", (note, number % 10_000 + 1))
                committed[note] = time.monotonic()
        connection.close()
        over.set()

    writer = threading.Thread(target=change)
    writer.start()
    deadline = 0.0
    while not over.is_set() or time.monotonic() < deadline:
        if not over.is_set():
            deadline = time.monotonic() + 5
        for message in consumer.consume(1000, 0.01):
            now = time.monotonic()
            if not message.error() and (value := message.value()):
                note = orjson.loads(value)["note"]
                if note in committed:
                    found.append(now - committed.pop(note))
    writer.join()
    consumer.close()
    return found


def snapshot(rows: int = ROWS, pairs: int = 3) -> None:
    """Rows a second of a first snapshot, beside a bare SELECT whose rows go to a bare producer, and beside Debezium.

    From the first record in the topic to the last.
    """
    runs: list[tuple[float, float, float]] = []
    peaks: list[tuple[float, float]] = []
    with place({"orders": 1000}) as at:
        for first in range(0, rows, ROWS):
            upto = min(ROWS, rows - first)
            at.sql(f"INSERT INTO orders (name, note) SELECT CONCAT('order ', seq), MD5(seq) FROM seq_1_to_{upto}")
        ensure_topics([Topic(n, partitions=1) for n in ("bare", f"{PREFIX}.demo.orders")], at.broker.bootstrap)
        for number in range(pairs):
            with ThreadPoolExecutor(1) as pool:
                bare = pool.submit(_filled, at, "bare", rows)
                _bare(at)
            driver = at.app_drivers.launch(APP)
            with peak_memory(lambda d=driver: d.session.processes()) as own_peak:  # type: ignore[misc]
                own = _filled(at, "orders", rows)
            _forget(at)
            other = Debezium(at.home / f"debezium-{number}", at.mariadb, at.broker.bootstrap, "orders")
            with other, peak_memory(lambda d=other: _processes(d)) as peak:  # type: ignore[misc]
                debezium = _filled(at, other.topic, rows)
            runs.append((bare.result(), own, debezium))
            peaks.append((own_peak[0] / MIB, peak[0] / MIB))
    names = ["bare SELECT and bare producer", "capture", "Debezium 3.5 in Kafka Connect 4.3"]
    memory = ["", *(f"{statistics.median(p[i] for p in peaks):.0f}" for i in range(2))]
    found = [
        [
            name,
            f"{rows / statistics.median(r[i] for r in runs):,.0f}",
            f"{statistics.median(r[0] / r[i] for r in runs):.2f}",
            memory[i],
        ]
        for i, name in enumerate(names)
    ]
    about = f"{rows:,} rows of six columns, {pairs} of each in turn, medians."
    text = f"{about}\n\n{table(['', 'rows/s', 'of the bare one', 'peak, MiB'], found)}"
    rates = {name: [rows / r[i] for r in runs] for i, name in enumerate(names)}
    write("capture-snapshot", text, {"rate, rows/s": rates}, chart="rate, rows/s")


def _processes(part: ManagedServer) -> list[psutil.Process]:
    found = part.running()
    return [found] if found else []


def _filled(at: Place, topic: str, rows: int) -> float:
    """Seconds from the first to the last of so many more records in a topic, which may not be there yet."""
    consumer = Consumer({"bootstrap.servers": at.broker.bootstrap, "group.id": "ends", "log_level": 0})

    def end() -> int:
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])
        except KafkaException:
            return 0

    before = end()
    wait_until(lambda: end() > before, every=0.05, what=f"records in {topic}")
    began = time.monotonic()
    wait_until(lambda: end() >= before + rows, 1800, every=0.05, what=f"all records in {topic}")
    took = time.monotonic() - began
    consumer.close()
    return took


def _forget(at: Place) -> None:
    """End the driver, and ask the next one for a snapshot."""
    from penstock.control import Actor
    from penstock.control.repositories.captures import Captures

    for driver in at.app_drivers.control.drivers():
        driver.session.kill()
        at.app_drivers.control.end_driver(driver.incarnation, "benchmark")
    Captures(at.app_drivers.control).ask("orders", "snapshot", Actor("bench", "cli"))


def _bare(at: Place) -> None:
    """Stream the table through one cursor into one producer, as a hand-written program would."""
    producer = Producer(
        {"bootstrap.servers": at.broker.bootstrap, "linger.ms": 5, "compression.type": "lz4", "acks": "all",
         "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    connection = at.connect()
    with connection.cursor(SSCursor) as cursor:
        cursor.execute("SELECT * FROM orders")
        names = [d[0] for d in cursor.description]
        while rows := cursor.fetchmany(5000):
            for row in rows:
                while True:
                    try:
                        producer.produce(
                            "bare", orjson.dumps({"id": row[0]}),
                            orjson.dumps(dict(zip(names, row, strict=True)), default=str),
                        )  # fmt: skip
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.poll(0)
    producer.flush()
    connection.close()


def idle() -> None:
    """CPU of twenty captures whose tables do not change."""
    names = {f"t{i}": 1000 for i in range(20)}
    with place(names) as at:
        at.sql(*(f"INSERT INTO {name} (name) SELECT seq FROM seq_1_to_1000" for name in names))
        driver = at.app_drivers.launch(APP)
        wait_until(
            lambda: (
                all(p.state == "idle" for p in at.app_drivers.control.progress(APP).values())
                and len(at.app_drivers.control.progress(APP)) == len(names)
            ),
            what="all are idle",
        )
        assert driver.pid
        processes = [*at.app_drivers.row(driver.incarnation).session.processes()]
        database = psutil.Process(at.mariadb.running().pid)  # type: ignore[union-attr]
        before = [sum(p.cpu_times()[:2]) for p in (*processes, database)]
        time.sleep(IDLE_SECONDS)
        after = [sum(p.cpu_times()[:2]) for p in (*processes, database)]
        used = [100 * (b - a) / IDLE_SECONDS for a, b in zip(before, after, strict=True)]
        memory = sum(p.memory_info().rss for p in processes) / MIB
    rows = [["captures' driver", f"{sum(used[:-1]):.1f} %", f"{memory:.0f} MiB"], ["MariaDB", f"{used[-1]:.1f} %", ""]]
    about = f"Twenty captures, a poll each second, no changes, {IDLE_SECONDS} s."
    figures = {"CPU, % of a core": {"driver": [sum(used[:-1])], "MariaDB": [used[-1]]}}
    write("capture-idle", f"{about}\n\n{table(['', 'of one core', 'memory'], rows)}", figures)


app = typer.Typer(help=__doc__)
for command in (latency, snapshot, idle):
    app.command()(command)


@app.callback(invoke_without_command=True)
def main(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        latency()
        snapshot()
        idle()


if __name__ == "__main__":
    app()
