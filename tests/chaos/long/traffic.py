"""A random history by a seed: events, payments, a table that changes, topics that appear, a ledger in the database."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from typing import Any

import pymysql
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.long.topics import Topics

RATE = 20.0
WINDOW = 10_000
NAMES = [f"name-{n}" for n in range(20)]
WILD = 6
LATE = 2 * 3600_000
# What no reading of the schema takes for an event, by kind.
BAD = {
    "text": b"no json",
    "cut": b'{"id": 1, "k": "a"',
    "list": b"[1, 2]",
    "missing": b'{"id": 1, "k": "a", "g": "1"}',
    "word": b'{"id": "one", "k": "a", "g": "1", "v": 1, "name": "x", "seen": 0, "at": 1}',
    "null": b'{"id": null, "k": "a", "g": "1", "v": 1, "name": "x", "seen": 0, "at": 1}',
    "wide": b'{"id": 99999999999999999999, "k": "a", "g": "1", "v": 1, "name": "x", "seen": 0, "at": 1}',
    "latin": b'{"id": 1, "k": "\xe4"}',
    "years": b'{"id": 1, "k": "a", "g": "1", "v": 1, "name": "x", "seen": 0, "at": 32503680000000}',
}
ROWS = 30


class Traffic(threading.Thread):
    """Sends until it is stopped; then only pulses, once a second, so that time goes on.

    first: the first number of an event; grace: seconds; late: whether events that are late for certain may be sent.
    `failed` says what was not taken, or so late that it may be late itself: nothing can be said of such a run.
    """

    def __init__(self, bootstrap: str, seed: int, first: int, grace: float) -> None:
        super().__init__(name="traffic", daemon=True)
        self.next, self.grace, self.late = first, grace, False
        self.failed: list[str] = []
        self._servers, self._chance = bootstrap, random.Random(seed)
        self._quiet, self._over = threading.Event(), threading.Event()
        self._pays: deque[tuple[int, dict[str, int]]] = deque()
        self._again: deque[tuple[int, bytes, dict[str, Any]]] = deque()
        self._acked: Counter[str] = Counter()
        self._versions: Counter[str] = Counter()
        self._wild: list[str] = []
        self._horizon = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
                "log_level": 0,
            }
        )
        self._remember()

    def _remember(self) -> None:
        """What an earlier run has sent, of what the next record depends on."""
        topics = Topics(self._servers)
        for r in topics.read("names"):
            if r.headers.get("kind") != "bad":
                name = (r.key or b"").decode()
                self._acked[name] += 1
                self._versions[name] += 1
        self._there = topics.names()
        self._wild = sorted(n for n in self._there if n.startswith("wild-"))
        topics.close()

    def run(self) -> None:
        began = time.monotonic()
        ticks = 0
        while not self._over.wait(max(0.0, began + (ticks := ticks + 1) / RATE - time.monotonic())):
            now = int(time.time() * 1000)
            if not self._quiet.is_set():
                self._tick(now, ticks)
            elif now >= self._horizon and ticks % int(RATE) == 0:
                self._pulse(now)
            self._producer.poll(0)

    def _tick(self, now: int, ticks: int) -> None:
        chance = self._chance
        self._event(now)
        while self._again and self._again[0][0] <= now:
            _, key, event = self._again.popleft()
            self._send("events", key, event)
        while self._pays and self._pays[0][0] <= now:
            at, pay = self._pays.popleft()
            self._send("pays", str(pay["of"]).encode(), {**pay, "at": at})
        if chance.random() < 0.03:
            kind = chance.choice(list(BAD))
            self._send("events", f"bad-{kind}-{ticks}".encode(), BAD[kind])
        if chance.random() < 0.1:
            self._change(chance.choice(NAMES))
        if chance.random() < 0.2 and self._wild:
            self._send(chance.choice(self._wild), None, b"anything")
        if ticks % int(RATE * 20) == 1 and len(self._wild) < WILD:
            self._grow()

    def _event(self, now: int) -> None:
        chance, number = self._chance, self.next
        self.next += 1
        late = self.late and chance.random() < 0.03
        at = now - (LATE if late else chance.choice((0, 0, 5, 200, 3000)))
        name = chance.choice(NAMES)
        event = {
            "id": number,
            "k": chance.choice("abcdef"),
            "g": f"late-{number}" if late else f"g-{number // 5}",
            "v": chance.randrange(1000),
            "name": name,
            "seen": self._acked[name],
            "at": at,
        }
        key = str(number).encode()
        self._send("events", key, event)
        if late:
            return
        if chance.random() < 0.03:
            self._again.append((now + chance.choice((0, 100, 1500)), key, event))
        if chance.random() < 0.5:
            # A partner, at either end of what is near, or one that comes too late to be one.
            apart = chance.choice((0, 1, 700, 4000, 9_999, 10_000, 10_001, 12_000))
            self._pays.append((at + apart, {"of": number, "amount": chance.randrange(100)}))
            self._pays = deque(sorted(self._pays, key=lambda pay: pay[0]))

    def _change(self, name: str) -> None:
        chance = self._chance.random()
        if chance < 0.1:
            self._send("names", name.encode(), b"{", kind="bad")
            return
        self._versions[name] += 1
        value = None if chance < 0.2 else {"version": self._versions[name]}
        self._send("names", name.encode(), value, kind="change", counts=name)

    def _pulse(self, now: int) -> None:
        for partition in (0, 1):
            self.next += 1
            event = {
                "id": -self.next,
                "k": "pulse",
                "g": f"pulse-{self.next}",
                "v": 0,
                "name": "",
                "seen": 0,
                "at": now,
            }
            self._send("events", b"pulse", event, partition=partition)
            self._send("pays", b"pulse", {"of": -self.next, "amount": 0, "at": now}, partition=partition)

    def _grow(self) -> None:
        name = f"wild-{len(self._wild)}"
        with suppress(Exception):  # the broker may be away: then it is made another time
            admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0, "socket.timeout.ms": 2000})
            admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "-1"})])[name].result(3)
            self._wild.append(name)

    def _send(
        self, topic: str, key: bytes | None, value: Any, *, partition: int = -1, kind: str = "", counts: str = ""
    ) -> None:
        if topic not in self._there and topic not in self._wild:
            # A stream that reads it is left out of this run.
            return
        # A key of the table stays in its partition; an event may lie in any.
        if topic in ("events", "pays") and partition < 0:
            partition = self._chance.randrange(2)
        began = time.monotonic()

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error:
                self.failed.append(f"{topic}: {error}")
            elif time.monotonic() - began > self.grace - 20:
                self.failed.append(f"{topic}: a record was taken after {time.monotonic() - began:.0f} s")
            elif counts:
                self._acked[counts] += 1

        self._producer.produce(
            topic,
            value if isinstance(value, bytes) or value is None else json.dumps(value).encode(),
            key,
            partition,
            on_delivery=delivered,
            timestamp=int(time.time() * 1000),
            headers=[("kind", kind.encode())] if kind else None,
        )

    def quiet(self) -> int:
        """Send only pulses from now on; the horizon, epoch ms, before which everything is sent."""
        self._quiet.set()
        # One tick may be under way, and what waits for its time is not sent any more.
        time.sleep(1.0)
        left = self._producer.flush(180)
        if left:
            self.failed.append(f"{left} records were not taken")
        self._horizon = (int(time.time() * 1000) // WINDOW + 1) * WINDOW
        return self._horizon

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._producer.flush(60)


class Ledger:
    """A table whose rows are changed in transactions that overlap, and what it holds in the end."""

    def __init__(self, port: int, seed: int) -> None:
        self._port, self._seed, self._over = port, seed, threading.Event()
        self._threads: list[threading.Thread] = []

    def _connect(self) -> pymysql.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1",
            port=self._port,
            user="penstock",
            password="penstock",
            database="demo",
            connect_timeout=5,
            read_timeout=30,
            write_timeout=30,
        )

    def make(self) -> None:
        """The table, unless an earlier run made it."""
        connection = self._connect()
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS ledger (id INT PRIMARY KEY, version INT NOT NULL DEFAULT 0, "
                "gone BOOLEAN NOT NULL DEFAULT FALSE, changed TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) "
                "ON UPDATE CURRENT_TIMESTAMP(6), KEY (changed, id))"
            )
            cursor.executemany("INSERT IGNORE INTO ledger (id) VALUES (%s)", [(i,) for i in range(ROWS)])
        connection.commit()
        connection.close()

    def start(self) -> None:
        self._over.clear()
        self._threads = [threading.Thread(target=self._write, args=(self._seed + n,), daemon=True) for n in range(2)]
        for thread in self._threads:
            thread.start()

    def _write(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._over.is_set():
            # The database goes and comes: a transaction that is cut is none.
            with suppress(pymysql.Error, OSError):
                connection = self._connect()
                with suppress(pymysql.Error, OSError):
                    self._changes(connection, chance)
                connection.close()
            self._over.wait(0.5)

    def _changes(self, connection: pymysql.Connection[Any], chance: random.Random) -> None:
        with connection.cursor() as cursor:
            while not self._over.wait(chance.uniform(0, 0.3)):
                for key in sorted(chance.sample(range(ROWS), chance.choice((1, 1, 2, 5)))):
                    gone = chance.random() < 0.1
                    cursor.execute("UPDATE ledger SET version = version + 1, gone = %s WHERE id = %s", (gone, key))
                    time.sleep(chance.choice((0, 0, 0.02, 0.2)))
                connection.commit() if chance.random() < 0.9 else connection.rollback()
        connection.rollback()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def rows(self) -> dict[int, int]:
        """Version by id of what is there."""
        connection = self._connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT id, version FROM ledger WHERE NOT gone")
            rows = {int(key): int(version) for key, version in cursor.fetchall()}
        connection.close()
        return rows
