"""Writes the output topics of a stream, one transaction per batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, TopicPartition

from penstock.errors import Refused
from penstock.kafka.limits import MAX_MESSAGE_BYTES, ProducerRecord, SizeLimit, as_bytes, size_limits
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.output import NO_COMMIT, CommitMarker, Offsets, Output, SideOutput
from penstock.model.topic import COMMITS

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.model.output import WriterOwner


# Why rows are refused, by topic and row number.
RowErrors = dict[str, dict[int, str]]


def open_topics(owner: WriterOwner, outputs: Sequence[Output]) -> TopicWriter:
    """The writer of a stream's topics."""
    return TopicWriter(owner.name, owner.group, owner.bootstrap, outputs)


class TopicWriter(TransactionalWriter):
    """Writes a stream's topics, all of a batch in one transaction.

    A row is `key` and `value`, STRING or BINARY, and may have `headers`: a map of names and bytes, or NULL. Headers of
    rows, which are trace contexts, are left out where the record would be too large with them.
    """

    def __init__(self, name: str, group: str, bootstrap: str, outputs: Sequence[Output] = ()) -> None:
        self._topics = [output.name for output in outputs]
        declared = [topic for output in outputs for topic in output.topics()]
        # Markers are not among the rows.
        self._compacted = {t.name for t in declared if t.compacts} - {COMMITS.name}
        self._truncated_topics = {output.name for output in outputs if isinstance(output, SideOutput)}
        super().__init__(name, group, bootstrap, COMMITS, "stream", self._topics)

    def committed(self) -> CommitMarker:
        value = self.read_marker()
        return NO_COMMIT if value is None else CommitMarker.read(value)

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:
        """Writes one batch and its commit marker, as `commit`.

        Dead letters and other side outputs are truncated to their topic's size limit, large headers of their records
        included.

        Raises:
            Refused: rows exceed their topic's size limit, or lack a key in a compacted topic; nothing is written.
        """
        self._renew_limits(rows)
        refused = self._null_keys(rows)
        for topic, errors in self._oversized(rows).items():
            refused.setdefault(topic, {}).update(errors)
        if refused:
            raise Refused(f"{self.what}: rows that their topic cannot take", rows=refused)
        count = self.commit(chain.from_iterable(self._messages(t, rows.get(t)) for t in self._topics), mark.value())
        self._commit_group_offsets(mark.offsets)
        return count

    def _null_keys(self, rows: Mapping[str, pa.Table]) -> RowErrors:
        refused: RowErrors = {}
        for topic in self._compacted & rows.keys():
            keys = rows[topic]["key"]
            if keys.null_count:
                reason = f"its key is NULL, and topic {topic} is compacted"
                refused[topic] = {row: reason for row, is_null in enumerate(keys.is_null().to_pylist()) if is_null}
        return refused

    def _renew_limits(self, rows: Mapping[str, pa.Table]) -> None:
        """Reads the limits of topics again that rows exceed: they may have been raised since."""
        topics = rows.keys() & self._limits.keys()
        if exceeded := [topic for topic in topics if self._limits[topic].oversized_rows(rows[topic])]:
            self._limits |= size_limits(exceeded, self.bootstrap)

    def _oversized(self, rows: Mapping[str, pa.Table]) -> RowErrors:
        refused: RowErrors = {}
        for topic in rows.keys() & self._limits.keys() - self._truncated_topics:
            limit = self._limits[topic]
            if sizes := limit.oversized_rows(rows[topic]):
                limit_text = f"bytes, more than topic {topic} takes ({MAX_MESSAGE_BYTES}={limit.max_bytes})"
                refused[topic] = {row: f"a row of {size} {limit_text}" for row, size in sizes.items()}
        return refused

    def _messages(self, topic: str, rows: pa.Table | None) -> Iterator[ProducerRecord]:
        records = _messages(topic, rows)
        # A topic that was created after the writer was opened is assumed to have the default limit.
        limit = self._limits.get(topic, SizeLimit(topic))
        if topic in self._truncated_topics:
            return map(limit.truncate, records)
        if rows is not None and "headers" in rows.column_names and limit.may_exceed(rows):
            return (record if limit.accepts(record) else record._replace(headers=()) for record in records)
        return records

    def _commit_group_offsets(self, offsets: Offsets) -> None:
        """Commits offsets to the consumer group for Kafka's own tools; asynchronous, since nothing depends on it."""
        positions = [
            TopicPartition(topic, p, offset)
            for topic, partitions in offsets.items()
            for p, offset in partitions.items()
        ]
        with suppress(KafkaException):
            if positions:
                self._consumer.commit(offsets=positions, asynchronous=True)
                self._consumer.poll(0)


def _messages(topic: str, rows: pa.Table | None) -> Iterator[ProducerRecord]:
    for chunk in rows.to_batches() if rows is not None else ():
        columns = [chunk.column(name).to_pylist() for name in ("key", "value")]
        headers = chunk.column("headers").to_pylist() if "headers" in chunk.schema.names else repeat(())
        for key, value, record_headers in zip(*columns, headers, strict=False):
            yield ProducerRecord(topic, as_bytes(key), as_bytes(value), tuple(record_headers or ()))
