"""What the sinks read: things that are made, changed and deleted, events, records that come late, and poison."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, Producer

KEYS, SENSORS, PARTITIONS = 300, 20, 3
BORN = 1_600_000_000_000
# Longer than a term of Elasticsearch.
LARGE = 40_000
POISON = ("broken", "incomplete", "large", "dollar", "word")


class Load(threading.Thread):
    """Writes so many records a second by a seed, while it is let. sent: so far."""

    def __init__(self, bootstrap: str, seed: int, rate: float) -> None:
        super().__init__(name="load", daemon=True)
        self.sent = 0
        self.failed: list[str] = []
        self._chance = random.Random(seed)
        self._pause = 1 / rate
        self._flows, self._over = threading.Event(), threading.Event()
        self._writes = threading.Lock()
        self._last: dict[int, tuple[int, int]] = {}
        self._used: set[tuple[int, int]] = set()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )

    def run(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            if not self._flows.wait(0.2):
                due = time.monotonic()
                continue
            with self._writes:
                self._item() if self._chance.random() < 0.6 else self._event()
                self.sent += 1
                self._producer.poll(0)
            due += self._pause
            time.sleep(max(0.0, due - time.monotonic()))

    def flow(self) -> None:
        self._flows.set()

    def quiet(self) -> None:
        """Write no more for now; all of it is acknowledged."""
        self._flows.clear()
        with self._writes:
            left = self._producer.flush(60)
        assert left == 0, f"{left} records are not taken by the broker"
        assert not self.failed, self.failed[:3]

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _item(self) -> None:
        chance, number = self._chance, self._chance.randrange(KEYS)
        key = {"id": number, "born": BORN + number * 1000}
        kind = chance.choices(("change", "gone", "tombstone", "poison"), (75, 8, 12, 5))[0]
        value: dict[str, Any] = {
            **key, "name": chance.choice((None, "a", "Ab c", "ß é", 'q"\\')), "state": chance.choice("abc"),
            "level": str(chance.randint(-9, 9)), "label": chance.choice("xyz"), "gone": kind == "gone", "n": self.sent,
        }  # fmt: skip
        at, partition = self._when(number)
        value["at"] = at
        text: str | None = None if kind == "tombstone" else json.dumps(value)
        if kind == "poison":
            text = self._poisoned(value, "state", (*POISON, "ancient"))
        self._write("items", json.dumps(key, separators=(",", ":")), text, partition, at)

    def _when(self, number: int) -> tuple[int, int]:
        """Event time and partition of an item's record: mostly newer than all before, often older, seldom the same.

        No other partition has that time: of those two neither were newer.
        """
        last, where = self._last.get(number, (0, 0))
        now, chance = max(int(time.time() * 1000), last + 1), self._chance.random()
        if last and chance < 0.05:
            return last, where
        partition = self._chance.randrange(PARTITIONS) if self._chance.random() < 0.1 else number % PARTITIONS
        if last and chance < 0.25:
            at = last - self._chance.choice((self._chance.randint(1, 3000), self._chance.randint(1, 600_000)))
            while (number, at) in self._used:
                at -= 1
        else:
            self._last[number], at = (now, partition), now
        self._used.add((number, at))
        return at, partition

    def _event(self) -> None:
        chance, n = self._chance, self.sent
        at = int(time.time() * 1000) - (chance.randint(1, 600_000) if chance.random() < 0.1 else 0)
        value: dict[str, Any] = {
            "n": n, "sensor": f"s{chance.randrange(SENSORS)}", "kind": chance.choice(("a", "b", "c", "noise")),
            "note": chance.choice(("", "some words", None)), "level": str(chance.randint(-9, 9)),
            "label": chance.choice("xyz"), "parts": [f"p{i}" for i in range(chance.randrange(4))],
            # Out of order, and no two the same.
            "seq": (n + 200 - chance.randrange(200)) * 1000 + n % 1000, "last": chance.random() < 0.05, "at": at,
        }  # fmt: skip
        text = self._poisoned(value, "note", POISON) if chance.random() < 0.05 else json.dumps(value)
        self._write("events", str(n), text, chance.randrange(PARTITIONS), at)

    def _poisoned(self, value: dict[str, Any], longest: str, kinds: Sequence[str]) -> str:
        """A value that some store, or all of them, can never take."""
        match self._chance.choice(kinds):
            case "broken":
                return json.dumps(value)[:-5]
            case "incomplete":
                del value["at"]
            case "ancient":
                value["at"] = -5
            case "large":
                value[longest] = "x" * LARGE
            case "dollar":
                value["label"] = "$set"
            case "word":
                value["level"] = "many"
        return json.dumps(value)

    def _write(self, topic: str, key: str, value: str | None, partition: int, at: int) -> None:
        def delivered(error: KafkaError | None, _: object) -> None:
            if error:
                self.failed.append(str(error))

        self._producer.produce(topic, value, key, partition, on_delivery=delivered, timestamp=at)
