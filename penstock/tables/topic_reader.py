"""The records of a compacted topic for a table: read up to a given end, decoded, and each key once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, TopicCollection, TopicPartition

from penstock.codec.columnar import BAD_COLUMN, SOURCE_RECORD_COLUMN, RecordDecoder, arrow_type
from penstock.codec.heartbeat import HEARTBEAT_KEY, heartbeat_signer
from penstock.codec.text import as_text
from penstock.errors import BrokerError, BrokerRefused, LeaseLost
from penstock.kafka.admin import LARGE_FETCH, REQUEST_TIMEOUT, TOPIC_UNAVAILABLE, admin, await_result
from penstock.kafka.client import assign, client_config
from penstock.model.schema import quoted
from penstock.tables.table_store import BATCH_ROWS, DELETED

if TYPE_CHECKING:
    from penstock.model.input import Table
    from penstock.model.schema import Field

# A broker that says nothing for so long does not answer.
TIMEOUT = 30.0
BATCH_BYTES = 32 * 1024 * 1024
LOCATION: dict[str, pa.DataType] = {"partition": pa.int32(), "offset": pa.int64()}
RAW_SCHEMA = pa.schema({"key": pa.binary(), "value": pa.binary(), **LOCATION})
BAD_RECORDS_SCHEMA = pa.schema({"key": pa.binary(), "value": pa.binary(), **LOCATION, "reason": pa.string()})
# What the reading of an input takes as well, and that of a table has no use for.
UNUSED_COLUMNS = pa.schema({"clock": pa.int64()})
# The process's DuckDB does one thing at a time, and a driver's streams have a thread each.
DECODER_LOCK = threading.Lock()


class TopicBatch(NamedTuple):
    """Decoded records of a table's topic.

    Attributes:
        rows: the last row of each key, by partition.
        bad_records: invalid records.
        next_offsets: the offsets after them.
    """

    rows: dict[int, pa.Table]
    bad_records: pa.Table
    next_offsets: dict[int, int]


class TopicReader:
    """Reads a table's topic by assignment; commits no offsets. start: next offset by partition."""

    def __init__(self, table: Table, bootstrap: str, start: Mapping[int, int]) -> None:
        self._topic = table.source
        self._decoder = TableDecoder(table)
        self._signer = heartbeat_signer()
        self.next_offsets = dict(start)
        self._consumer = Consumer(
            {
                **LARGE_FETCH,
                **client_config(bootstrap),
                "group.id": f"penstock.table.{self._topic}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "check.crcs": True,
                "isolation.level": "read_committed",
                # The end may lie behind records that no committed reader sees: only this says that it is reached.
                "enable.partition.eof": True,
                # What is removed while it is read leaves a gap, in which a key may have changed or gone.
                "auto.offset.reset": "error",
                "queued.max.messages.kbytes": BATCH_BYTES // 1024,
                "fetch.wait.max.ms": 100,
                "log_level": 2,
            }
        )
        assign(self._consumer, [TopicPartition(self._topic, p, at) for p, at in start.items()])

    def read_to(self, ends: Mapping[int, int], stopped: Callable[[], bool]) -> Iterator[TopicBatch]:
        """Yields batches up to the given ends. LeaseLost if stopped meanwhile."""
        heard = time.monotonic()
        held: list[tuple[bytes | None, bytes | None, int, int]] = []
        size = 0
        while any(self.next_offsets[p] < end for p, end in ends.items()):
            if stopped():
                raise LeaseLost(f"the reading of table {self._topic} is stopped")
            first = self._consumer.poll(0.5)
            if first is None and time.monotonic() - heard > TIMEOUT:
                raise BrokerError(
                    f"the broker gives nothing more of table {self._topic}",
                    got=f"up to {self.next_offsets} of {dict(ends)}",
                    hint="nothing, if it comes back: it is read on",
                )
            for message in (first, *self._consumer.consume(BATCH_ROWS // 5, 0)) if first is not None else ():
                partition, offset = message.partition() or 0, message.offset() or 0
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        heard = time.monotonic()
                        self.next_offsets[partition] = max(offset, self.next_offsets[partition])
                    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                        raise BrokerError(
                            f"records of table {self._topic} were removed before they were read",
                            got=f"partition {partition} at offset {self.next_offsets[partition]}",
                            hint="nothing: the table is read anew",
                        )
                    elif error.code() == KafkaError._BAD_MSG:
                        raise BrokerError(
                            f"table {self._topic} cannot be read: a batch of it is broken in the broker's log",
                            got=f"partition {partition} at offset {self.next_offsets[partition]}",
                            hint="restore the partition from a replica; or make the topic anew and write its rows "
                            "again, of a capture by `penstock capture ask NAME snapshot`",
                        )
                    continue
                heard = time.monotonic()
                key, value = message.key(), message.value()
                self.next_offsets[partition] = offset + 1
                if key != HEARTBEAT_KEY or self._signer.verified_time(self._topic, partition, value) is None:
                    held.append((key, value, partition, offset))
                    size += len(key or b"") + len(value or b"")
            if len(held) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield self._decoder.decode(held, dict(self.next_offsets))
                held, size = [], 0
        yield self._decoder.decode(held, dict(self.next_offsets))

    def close(self) -> None:
        self._consumer.close()


def describe_topic(topic: str, bootstrap: str) -> tuple[str, int]:
    """Returns topic id and partition count; ('', 0) if the topic does not exist."""
    (future,) = admin(bootstrap).describe_topics(TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT).values()
    try:
        found = await_result(future, bootstrap, f"topic {topic} could not be described")
    except BrokerRefused as e:
        if e.code in TOPIC_UNAVAILABLE:
            return "", 0
        raise
    return str(found.topic_id), len(found.partitions)


class TableDecoder:
    """Decodes and validates a table's records as those of an input."""

    def __init__(self, table: Table) -> None:
        self._fields = table.fields
        # No event time: none is asked of a table's value.
        self._reading = RecordDecoder(table.source, f"table {table.source}", table.schema, "", None, keep_records=True)
        self._layout = table_schema(self._fields)

    def decode(
        self, records: list[tuple[bytes | None, bytes | None, int, int]], following: dict[int, int]
    ) -> TopicBatch:
        if not records:
            return TopicBatch({}, BAD_RECORDS_SCHEMA.empty_table(), following)
        raw = pa.table(
            [pa.array(c, f.type) for c, f in zip(zip(*records, strict=True), RAW_SCHEMA, strict=True)],
            schema=RAW_SCHEMA,
        )
        named = pc.is_valid(as_text(raw["key"]))
        dead = [self._without_key(raw.filter(pc.invert(named)))]
        raw = raw.filter(named)
        rows = [self._tombstones(raw.filter(pc.is_null(raw["value"])))]
        for batch in self._decoded(raw.filter(pc.is_valid(raw["value"]))):
            good, bad = batch.filter(pc.invert(batch[BAD_COLUMN])), batch.filter(batch[BAD_COLUMN])
            rows.append(self._good_rows(good))
            dead.append(_record_columns(bad, BAD_RECORDS_SCHEMA.names).cast(BAD_RECORDS_SCHEMA))
        return TopicBatch(dict(self._newest(pa.concat_tables(rows))), pa.concat_tables(dead), following)

    def _decoded(self, raw: pa.Table) -> Iterator[pa.Table]:
        if not len(raw):
            return
        for field in UNUSED_COLUMNS:
            raw = raw.append_column(field, pa.nulls(len(raw), field.type))
        with DECODER_LOCK:
            found = list(self._reading(iter(raw.to_batches())))
        yield pa.Table.from_batches(found)

    def _good_rows(self, good: pa.Table) -> pa.Table:
        record = _record_columns(good, ["key", "partition", "offset"])
        named = [good[f.name] for f in self._fields]
        never = pa.array([False] * len(good))
        columns: list[pa.Array[Any] | pa.ChunkedArray[Any]]
        columns = [as_text(record["key"]), *named, never, record["partition"], record["offset"]]
        return pa.table(columns, schema=self._located_schema)

    def _tombstones(self, raw: pa.Table) -> pa.Table:
        nothing = [pa.nulls(len(raw), f.type) for f in list(self._layout)[1:-1]]
        ever = pa.array([True] * len(raw))
        return pa.table(
            [as_text(raw["key"]), *nothing, ever, raw["partition"], raw["offset"]], schema=self._located_schema
        )

    @property
    def _located_schema(self) -> pa.Schema:
        return pa.schema([*self._layout, *(pa.field(f"_{name}", kind) for name, kind in LOCATION.items())])

    @staticmethod
    def _without_key(raw: pa.Table) -> pa.Table:
        why = pc.if_else(pc.is_null(raw["key"]), "the record has no key", "the key is not valid UTF-8")
        return (
            raw.append_column("reason", why.cast(pa.string())).select(BAD_RECORDS_SCHEMA.names).cast(BAD_RECORDS_SCHEMA)
        )

    def _newest(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Of each partition the last row of each key."""
        for partition in rows["_partition"].unique().to_pylist():
            assert partition is not None
            own = rows.filter(pc.equal(rows["_partition"], pa.scalar(partition))).sort_by("_offset")
            numbered = pa.table([own["key"], pa.array(range(len(own)), pa.int64())], names=["key", "row"])
            last = numbered.group_by("key").aggregate([("row", "max")])["row_max"]
            yield partition, own.take(last).select(self._layout.names)


def table_schema(fields: tuple[Field, ...]) -> pa.Schema:
    """The columns of a table's files."""
    named = [pa.field(f.name, arrow_type(f.type)) for f in fields]
    return pa.schema([pa.field("key", pa.string()), *named, pa.field(DELETED, pa.bool_())])


def table_ddl(fields: tuple[Field, ...]) -> str:
    """The columns that a transform gets."""
    return ", ".join(["key STRING", *(f"{quoted(f.name)} {f.type.ddl}" for f in fields)])


def _record_columns(rows: pa.Table, names: list[str]) -> pa.Table:
    """Of the records that decoded rows were, some columns."""
    found = rows.select([SOURCE_RECORD_COLUMN]).flatten()
    return found.select([f"{SOURCE_RECORD_COLUMN}.{name}" for name in names]).rename_columns(names)
