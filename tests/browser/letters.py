"""Dead letters as streams write them, for tests of the page."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Producer

from penstock.kafka.admin import ensure_topics
from penstock.streams import Topic


def send_letters(bootstrap: str, topic: str, stream: str, reasons: Sequence[str]) -> None:
    """Dead letters of records of `orders`, whose offsets are the numbers of the reasons."""
    ensure_topics([Topic(topic, partitions=1), Topic("orders", partitions=1)], bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for n, reason in enumerate(reasons):
        of = {"topic": "orders", "partition": "0", "offset": str(n), "stream": stream, "reason": reason}
        headers: list[tuple[str, str | bytes | None]] = [(f"penstock.{name}", value) for name, value in of.items()]
        producer.produce(topic, f"v{n}", key="k", partition=0, headers=headers, timestamp=1_000 + n)
    assert producer.flush(30) == 0
