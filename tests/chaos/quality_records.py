"""Records for the app `quality`, and the counts that it must write for them."""

from __future__ import annotations

import json
import random
import time
from collections import Counter

from penstock.streams import Topic
from penstock.testing import Record, create, latest, read, send
from tests.support.wait import wait_until


class QualityRecords:
    """Sends valid and invalid records to topics with two partitions, and counts them."""

    def __init__(self, bootstrap: str, seed: int, *names: str) -> None:
        self.bootstrap, self.chance = bootstrap, random.Random(seed)
        self.expected: Counter[str] = Counter()
        self.names: list[str] = []
        self._base = int(time.time() * 1000) - 60_000
        self.add(*names)

    def add(self, *names: str) -> None:
        self.names += names
        create(self.bootstrap, *(Topic(name, partitions=2) for name in names))

    def produce(self, count: int) -> None:
        records = []
        for _ in range(count):
            topic, good = self.chance.choice(self.names), self.chance.random() < 0.8
            at = self._base + self.chance.randrange(20_000)
            value = '{"n":1}' if good else "{"
            records.append(Record(topic, None, value, self.chance.randrange(2), timestamp=at))
            status = "valid" if good else "invalid"
            key = {"topic": topic, "window": at // 1000 * 1000, "status": status}
            self.expected[json.dumps(key, separators=(",", ":"))] += 1
        send(self.bootstrap, records)

    def counts(self) -> dict[str | None, int]:
        return {k: int(v or 0) for k, v in latest(read(self.bootstrap, "metrics")).items()}

    def check(self, log: str) -> None:
        """Wait until all records are counted, then compare the counts."""
        wait_until(
            lambda: sum(self.counts().values()) >= self.expected.total(),
            every=1,
            what=f"all are counted: {log}",
        )
        assert self.counts() == dict(self.expected)
