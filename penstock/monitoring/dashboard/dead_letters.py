"""The newest dead letters and late records of streams, read from their topics; one by one, and by reason."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import BrokerError
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.client import assign, reader_config, unreachable
from penstock.kafka.dead_letters import DeadLetter, dead_letter_of
from penstock.kafka.replay import end_of, replay_keys
from penstock.logs import printable
from penstock.model.topic import DEAD_LETTERS, Topic

Kind = Literal["dead", "late"]
ReplayedBy = Literal["letters", "sink"]
# Offsets that are read of each partition; some are of other streams' letters or of ends of transactions.
BACK = 200
LIMIT = 20
PARTITIONS = 400
"""Partitions that are read at a time."""
MAX_REASONS, MAX_EXAMPLES, MAX_POSITIONS, MAX_REASON_LENGTH = 100, 3, 100, 200
"""Reasons that are shown; of each, letters, places and characters."""
TIMEOUT = 5.0
"""Seconds; letters that were not read by then are not shown."""
WIDTH = 2000
"""Characters of a value."""


class LetterReplay(NamedTuple):
    """What replays a letter: the letters of its topic, or a sink; its name, and the place of the letter's record."""

    by: ReplayedBy
    name: str
    place: str

    @property
    def command(self) -> str:
        of = "sinks" if self.by == "sink" else "dead-letters"
        return f"penstock {of} replay {self.name} --place '{self.place}'"


@dataclass(frozen=True)
class DeadLetterView:
    """A dead letter or late record.

    Attributes:
        at: epoch ms.
        source: the record or output that it came from.
        key, value: as texts, cut.
        size: of the value, bytes.
        replay: the command that replays it; empty if it cannot be replayed.
        stream: whose it is.
        replayed_by: what an action replays it by: `letters` of its topic, or `sink`; None if it cannot be replayed.
        place: of the record that it came from, TOPIC[PARTITION]@OFFSET; empty if it cannot be replayed.
        ended: whether it was replayed or discarded; empty if neither.
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
    stream: str = ""
    replayed_by: ReplayedBy | None = None
    place: str = ""
    ended: Literal["", "replayed", "discarded"] = ""


@dataclass
class ReasonView:
    """Dead letters of a stream in a topic that have the same reason.

    Attributes:
        reason: without the value that it names.
        count: of those that were read.
        newest_at, oldest_at: epoch ms, likewise.
        examples: the newest.
        replayed_by, name: what an action replays them by, and the topic or sink; None if they cannot be replayed.
        places: of the records that they came from, the newest first, at most MAX_POSITIONS.
    """

    stream: str
    topic: str
    reason: str
    replayed_by: ReplayedBy | None
    name: str
    count: int = 0
    newest_at: int = 0
    oldest_at: int = 0
    examples: list[DeadLetterView] = field(default_factory=list)
    places: list[str] = field(default_factory=list)


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
    letters = [letter for letter in _newest(bootstrap, topics) if letter.stream == stream]
    return sorted(letters, key=_time, reverse=True)[:limit]


@dataclass(frozen=True)
class Reasons:
    """Dead letters by reason. ended: how many of those that were read were replayed or discarded."""

    reasons: list[ReasonView]
    ended: int


def read_reasons(bootstrap: str, topics: Iterable[str], stream: str = "") -> Reasons:
    """The newest letters in some topics by stream, topic and reason, the newest first, without those that were replayed
    or discarded. Missing topics are skipped.

    Args:
        bootstrap: the brokers.
        topics: their names.
        stream: whose letters; empty for those of all streams.

    Raises:
        BrokerError: the broker does not answer.
    """
    reasons: dict[tuple[str, str, str, str], ReasonView] = {}
    places: dict[tuple[str, str, str, str], list[tuple[int, str]]] = {}
    ended = 0
    for letter in _newest(bootstrap, topics):
        if stream not in ("", letter.stream):
            continue
        if letter.ended:
            ended += 1
            continue
        reason = letter.reason.partition(": ")[0][:MAX_REASON_LENGTH]
        name = letter.stream if letter.replayed_by == "sink" else letter.topic
        new = ReasonView(letter.stream, letter.topic, reason, letter.replayed_by, name, oldest_at=letter.at)
        key = (new.stream, new.topic, reason, letter.replayed_by or "")
        one = reasons.setdefault(key, new)
        one.count += 1
        one.newest_at, one.oldest_at = max(one.newest_at, letter.at), min(one.oldest_at, letter.at)
        one.examples = sorted([*one.examples, letter], key=_time, reverse=True)[:MAX_EXAMPLES]
        if letter.place:
            places.setdefault(key, []).append((letter.at, letter.place))
    for group, of_reason in places.items():
        newest_first = (place for _, place in sorted(of_reason, reverse=True))
        reasons[group].places = list(dict.fromkeys(newest_first))[:MAX_POSITIONS]
    return Reasons(sorted(reasons.values(), key=lambda one: one.newest_at, reverse=True)[:MAX_REASONS], ended)


def _time(letter: DeadLetterView) -> tuple[int, int]:
    return letter.at, letter.offset


def _newest(bootstrap: str, topics: Iterable[str]) -> Iterator[DeadLetterView]:
    """The last letters of each partition of some topics."""
    counts = partition_counts(admin(bootstrap), bootstrap)
    consumer = Consumer(
        {
            **reader_config(bootstrap, "penstock-page"),
            "max.partition.fetch.bytes": 1024 * 1024,
            "queued.max.messages.kbytes": 8 * 1024,
            "log_level": 0,
        }
    )
    try:
        at = [TopicPartition(t, p) for t in dict.fromkeys(topics) if t in counts for p in range(counts[t])]
        noted = replay_keys(consumer, bootstrap) if at else set()
        yield from _read(consumer, at[:PARTITIONS], noted)
    except KafkaException as e:
        raise unreachable(bootstrap, e.args[0]) from e
    finally:
        consumer.close()


def _read(consumer: Consumer, at: list[TopicPartition], noted: Collection[bytes]) -> Iterator[DeadLetterView]:
    """The last records of some partitions."""
    if not at:
        return
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
            yield _letter(message, noted)
        elif error.code() == KafkaError._PARTITION_EOF:
            open_ -= 1
        else:
            raise BrokerError("a topic of dead letters cannot be read", got=error)


def _letter(message: Message, noted: Collection[bytes]) -> DeadLetterView:
    raw_headers = dict(message.headers() or ())
    headers = {
        name: content.decode(errors="replace") for name, content in raw_headers.items() if isinstance(content, bytes)
    }
    value = message.value()
    letter = dead_letter_of(message)
    replay = _replay(letter)
    return DeadLetterView(
        letter.topic,
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        _place(headers),
        _reason(headers),
        shown_text(message.key()),
        shown_text(value),
        len(value or b""),
        replay.command if replay else "",
        printable(headers.get("penstock.stream", ""))[:WIDTH],
        replay.by if replay else None,
        replay.place if replay else "",
        end_of(letter, noted),
    )


def _place(headers: Mapping[str, str]) -> str:
    if "penstock.topic" in headers:
        parts = [headers.get(f"penstock.{name}", "?") for name in ("topic", "partition", "offset")]
        return printable(f"{parts[0]}, partition {parts[1]}, offset {parts[2]}")[:WIDTH]
    return printable(f"a row for {headers.get('penstock.output', 'an unknown output')}")[:WIDTH]


def _replay(letter: DeadLetter) -> LetterReplay | None:
    """What replays a letter. Anybody may write headers, so only numbers and names are accepted from them: they may
    stand in a command for a shell."""
    if letter.origin is None:
        return None
    # A row that a store refused is replayed to that store alone.
    if "output" in letter.penstock_headers:
        is_name = re.fullmatch(r"\w[\w.-]*", letter.stream, re.ASCII)
        return LetterReplay("sink", letter.stream, letter.location) if is_name else None
    return LetterReplay("letters", letter.topic, letter.location) if letter.topic.endswith("-dead-letter") else None


def _reason(headers: Mapping[str, str]) -> str:
    if late := headers.get("penstock.late-ms"):
        return printable(f"{late} ms after its window was closed")[:WIDTH]
    return printable(headers.get("penstock.reason", ""))[:WIDTH]


def shown_text(content: bytes | str | None) -> str | None:
    """A key or value as a text, cut; bytes that are no text, and control characters, are escaped."""
    if content is None:
        return None
    text = content if isinstance(content, str) else content[: 4 * WIDTH].decode(errors="backslashreplace")
    cut = text[:WIDTH] + ("…" if len(text) > WIDTH or len(content) > 4 * WIDTH else "")
    return "\n".join(map(printable, cut.split("\n")))
