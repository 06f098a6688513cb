"""Dead letters of a topic of sales, and what is sent to it again."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Producer

from penstock.kafka.dead_letters import DeadLetter
from penstock.kafka.dead_letters import read_dead_letters as read_letters
from penstock.kafka.limits import ProducerRecord, SizeLimit
from penstock.kafka.replay import Replay, replay
from penstock.model.topic import DEAD_LETTERS, side_topic
from penstock.streams import Topic
from penstock.testing import read

SALES = Topic("sales", partitions=2, config={"retention.ms": "-1"})
DEAD = side_topic(SALES.dead_letters)


def put_aside(
    bootstrap: str,
    *records: tuple[str, int, int, str],
    topic: str = DEAD.name,
    most: int = 0,
    topic_id: str = "",
    key: str = "k",
    timestamp: int | None = 1_700_000_000_000,
) -> None:
    """Letters of records, as (stream, partition, offset, value), cut to a size if one is given. key: a letter of it for
    each record, the last for all others. timestamp: of the records, which have a header then; None: unknown."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, (stream, partition, offset, value) in enumerate(records):
        said = {"topic": SALES.name, "partition": partition, "offset": offset, "stream": stream, "reason": "no: it"}
        said |= {"topic-id": topic_id} if topic_id else {}
        said |= {"timestamp": timestamp} if timestamp else {}
        headers = tuple((f"penstock.{name}", str(text).encode()) for name, text in said.items())
        own = (("h", b"1"),) if timestamp else ()
        letter = ProducerRecord(topic, key[min(number, len(key) - 1)].encode(), value.encode(), (*own, *headers))
        letter = SizeLimit(topic, most).truncate(letter) if most else letter
        producer.produce(topic, key=letter.key, value=letter.value, headers=list(letter.headers))
    assert producer.flush(30) == 0


def letters(bootstrap: str) -> list[DeadLetter]:
    return list(read_letters([DEAD.name, DEAD_LETTERS.name], bootstrap, 1000))


def sent_again(bootstrap: str, readers: Iterable[str] = ("a",), again_for: Iterable[str] = ()) -> list[Replay]:
    every = letters(bootstrap)
    return replay(every, every, lambda _topic: list(readers), bootstrap, again_for=list(again_for))


def of_sales(bootstrap: str) -> list[tuple[int, str | None, str]]:
    """Partition, value and where it comes from, of what was sent again."""
    found = read(bootstrap, SALES.name)
    return [(r.partition, r.value, said) for r in found if (said := dict(r.headers).get("penstock.replayed", ""))]
