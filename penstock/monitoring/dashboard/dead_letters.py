"""The newest dead letters and late records of a stream, read from their topics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import BrokerError
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.client import END_WAIT_MS, assign, client_config, unreachable
from penstock.logs import printable
from penstock.model.topic import DEAD_LETTERS, Topic

Kind = Literal["dead", "late"]
# Offsets that are read of each partition; some are of other streams' letters or of ends of transactions.
BACK = 200
LIMIT = 20
TIMEOUT = 5.0
"""Seconds; letters that were not read by then are not shown."""
WIDTH = 2000
"""Characters of a value."""


@dataclass(frozen=True)
class DeadLetterView:
    """A dead letter or late record.

    Attributes:
        at: epoch ms.
        source: the record or output that it came from.
        key, value: as texts, cut.
        size: of the value, bytes.
        replay: the command that replays it; empty if it cannot be replayed.
    """

    topic: str
    partition: int
    offset: int
    at: int
    source: str
    reason: str
    key: str | None
    value: str | None
    size: int
    replay: str = ""


def topics(kind: Kind, stream: str, read: Iterable[str], own: Iterable[str] = ()) -> list[str]:
    """The topics that may have letters of a stream. read: the topics that it reads; own: those of a sink."""
    # Records of inputs without a schema, and rows that outputs refuse, have one topic for all streams.
    dead = [*(Topic(topic).dead_letters for topic in read), *(own or [f"{stream}-dead-letter"]), DEAD_LETTERS.name]
    return [f"{stream}-late"] if kind == "late" else dead


def read_newest(bootstrap: str, stream: str, topics: Iterable[str], limit: int = LIMIT) -> list[DeadLetterView]:
    """The newest letters of a stream in some topics, newest first. Missing topics are skipped.

    Raises:
        BrokerError: the broker does not answer.
    """
    counts = partition_counts(admin(bootstrap), bootstrap)
    consumer = Consumer(
        {
            **client_config(bootstrap),
            "group.id": "penstock-page",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": END_WAIT_MS,
            "max.partition.fetch.bytes": 1024 * 1024,
            "queued.max.messages.kbytes": 8 * 1024,
            "log_level": 0,
        }
    )
    try:
        at = [TopicPartition(t, p) for t in sorted(set(topics)) if t in counts for p in range(counts[t])]
        letters = [letter for letter, of in _read(consumer, at) if of == stream]
    except KafkaException as e:
        raise unreachable(bootstrap, e.args[0]) from e
    finally:
        consumer.close()
    return sorted(letters, key=lambda one: (one.at, one.offset), reverse=True)[:limit]


def _read(consumer: Consumer, at: list[TopicPartition]) -> Iterator[tuple[DeadLetterView, str]]:
    """The last records of some partitions, each with its stream."""
    end = time.monotonic() + TIMEOUT
    for partition in at:
        first, after = consumer.get_watermark_offsets(partition, timeout=TIMEOUT)
        partition.offset = max(first, after - BACK)
    assign(consumer, at)
    open_ = len(at)
    while open_ and (seconds := end - time.monotonic()) > 0:
        message = consumer.poll(seconds)
        if message is None:
            return
        if (error := message.error()) is None:
            yield _letter(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            open_ -= 1
        else:
            raise BrokerError("a topic of dead letters cannot be read", got=error)


def _letter(message: Message) -> tuple[DeadLetterView, str]:
    raw_headers = dict(message.headers() or ())
    headers = {
        name: content.decode(errors="replace") for name, content in raw_headers.items() if isinstance(content, bytes)
    }
    value = message.value()
    place = (message.topic() or "", message.partition() or 0, message.offset() or 0)
    letter = DeadLetterView(
        *place,
        message.timestamp()[1],
        _place(headers),
        _reason(headers),
        _text(message.key()),
        _text(value),
        len(value or b""),
        _replay(place[0], headers),
    )
    return letter, headers.get("penstock.stream", "")


def _place(headers: Mapping[str, str]) -> str:
    if "penstock.topic" in headers:
        parts = [headers.get(f"penstock.{name}", "?") for name in ("topic", "partition", "offset")]
        return printable(f"{parts[0]}, partition {parts[1]}, offset {parts[2]}")[:WIDTH]
    return printable(f"a row for {headers.get('penstock.output', 'an unknown output')}")[:WIDTH]


def _replay(topic: str, headers: Mapping[str, str]) -> str:
    """The command for a shell. Anybody may write headers, so only numbers and names are accepted from them."""
    place = [headers.get(f"penstock.{name}", "") for name in ("partition", "offset")]
    if not all(re.fullmatch("[0-9]{1,19}", number) for number in place):
        return ""
    # A row that a store refused is replayed to that store alone.
    if "penstock.output" in headers:
        sink = headers.get("penstock.stream", "")
        what = f"sinks replay {sink}" if re.fullmatch(r"\w[\w.-]*", sink, re.ASCII) else ""
    else:
        what = f"dead-letters replay {topic}" if topic.endswith("-dead-letter") else ""
    return what and f"penstock {what} --place {':'.join(place)}"


def _reason(headers: Mapping[str, str]) -> str:
    if late := headers.get("penstock.late-ms"):
        return printable(f"{late} ms after its window was closed")[:WIDTH]
    return printable(headers.get("penstock.reason", ""))[:WIDTH]


def _text(content: bytes | str | None) -> str | None:
    if content is None:
        return None
    text = content if isinstance(content, str) else content[: 4 * WIDTH].decode(errors="backslashreplace")
    cut = text[:WIDTH] + ("…" if len(text) > WIDTH or len(content) > 4 * WIDTH else "")
    return "\n".join(map(printable, cut.split("\n")))
