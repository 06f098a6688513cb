"""The topics that a stream writes, as one output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, TopicPartition

from penstock.declare.outputs import NOTHING, Mark, Offsets, Output
from penstock.declare.topic import COMMITS
from penstock.errors import DeclarationError
from penstock.kafka.transactions import Message, TransactionalWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.declare.outputs import Owner


def open_topics(owner: Owner, outputs: Sequence[Output]) -> TopicWriter:
    """The writer of a stream's topics."""
    return TopicWriter(owner.name, owner.group, owner.bootstrap, outputs)


class TopicWriter(TransactionalWriter):
    """Writes a stream's topics, all of a batch in one transaction.

    A row is `key` and `value`, STRING or BINARY, and may have `headers`: a list of (name, bytes).
    """

    def __init__(self, name: str, group: str, bootstrap: str, outputs: Sequence[Output] = ()) -> None:
        self._topics = [output.name for output in outputs]
        declared = [topic for output in outputs for topic in output.topics()]
        # Its own marks are given by another way.
        self._compacted = {t.name for t in declared if t.compacts} - {COMMITS.name}
        super().__init__(name, group, bootstrap, COMMITS, "stream")

    def committed(self) -> Mark:
        found = self.mark()
        return NOTHING if found is None else Mark.read(found)

    def write(self, rows: Mapping[str, pa.Table], mark: Mark) -> int:
        """As `commit`; DeclarationError, before anything is written, for rows without a key where they need one."""
        for topic in self._compacted & rows.keys():
            if nameless := rows[topic]["key"].null_count:
                raise DeclarationError(
                    f"{self.what}: {topic} is compacted, and takes no rows without a key",
                    got=f"{nameless} rows whose key is NULL",
                    fix="let the transform leave them out or name them, with coalesce(key, ...)",
                )
        count = self.commit(
            chain.from_iterable(_messages(topic, rows.get(topic)) for topic in self._topics), mark.value()
        )
        self._publish(mark.offsets)
        return count

    def _publish(self, offsets: Offsets) -> None:
        """Tell Kafka's own tools how far the stream is. Nothing depends on it, so nothing waits for it."""
        positions = [TopicPartition(topic, p, at) for topic, parts in offsets.items() for p, at in parts.items()]
        with suppress(KafkaException):
            if positions:
                self._consumer.commit(offsets=positions, asynchronous=True)
                self._consumer.poll(0)


def _messages(topic: str, rows: pa.Table | None) -> Iterator[Message]:
    for chunk in rows.to_batches() if rows is not None else ():
        columns = [chunk.column(name).to_pylist() for name in ("key", "value")]
        headers = chunk.column("headers").to_pylist() if "headers" in chunk.schema.names else repeat(())
        for key, value, more in zip(*columns, headers, strict=False):
            yield Message(topic, _bytes(key), _bytes(value), tuple(more))


def _bytes(given: str | bytes | None) -> bytes | None:
    return given.encode() if isinstance(given, str) else given
