"""Reads the records of a compacted topic for a table: up to given offsets, decoded, the last row of each key."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, TopicCollection, TopicPartition

from penstock.codec.arrow_types import arrow_type
from penstock.codec.columnar import BAD_COLUMN, SOURCE_RECORD_COLUMN, RecordDecoder
from penstock.codec.heartbeat import HEARTBEAT_KEY, heartbeat_signer
from penstock.codec.registry_values import RegistryValues
from penstock.codec.text import as_text
from penstock.errors import BrokerError, BrokerRefused, LeaseLost
from penstock.kafka.admin import LARGE_FETCH, REQUEST_TIMEOUT, TOPIC_UNAVAILABLE, admin, await_result
from penstock.kafka.client import assign, close_checking, reader_config
from penstock.model.types import quoted
from penstock.tables.table_store import BATCH_ROWS, DELETED

if TYPE_CHECKING:
    from penstock.model.input import Table
    from penstock.model.types import Field

# Seconds without an answer of the broker.
TIMEOUT = 30.0
BATCH_BYTES = 32 * 1024 * 1024
LOCATION: dict[str, pa.DataType] = {"partition": pa.int32(), "offset": pa.int64()}
RAW_SCHEMA = pa.schema({"key": pa.binary(), "value": pa.binary(), **LOCATION})
BAD_RECORDS_SCHEMA = pa.schema({"key": pa.binary(), "value": pa.binary(), **LOCATION, "reason": pa.string()})
# Columns that the decoder expects and a table does not need.
UNUSED_COLUMNS = pa.schema({"clock": pa.int64()})
# The process has one DuckDB connection, and each stream of a driver has a thread.
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
    """Reads a table's topic by assignment, without committing offsets.

    Args:
        table: The table.
        bootstrap: The brokers.
        start: Next offset by partition.
    """

    def __init__(self, table: Table, bootstrap: str, start: Mapping[int, int]) -> None:
        self._topic = table.source
        self._decoder = TableDecoder(table)
        self._signer = heartbeat_signer()
        self.next_offsets = dict(start)
        self._consumer = Consumer(
            {
                **LARGE_FETCH,
                # Its ends count: the last records before them may be invisible to committed readers.
                **reader_config(bootstrap, f"penstock.table.{self._topic}"),
                "enable.auto.offset.store": False,
                "check.crcs": True,
                # Records deleted before they are read leave a gap, in which a key may have changed.
                "auto.offset.reset": "error",
                "queued.max.messages.kbytes": BATCH_BYTES // 1024,
                "fetch.wait.max.ms": 100,
            }
        )
        assign(self._consumer, [TopicPartition(self._topic, p, at) for p, at in start.items()])

    def read_to(self, ends: Mapping[int, int], stopped: Callable[[], bool]) -> Iterator[TopicBatch]:
        """Yields batches up to the given end offsets, in one `consume` each as far as the client has fetched.

        Raises:
            LeaseLost: `stopped` returns True.
            BrokerError: The broker does not answer, or records were deleted or are corrupt.
        """
        last_event = time.monotonic()
        records: list[tuple[bytes | None, bytes | None, int, int]] = []
        size = 0
        while any(self.next_offsets[p] < end for p, end in ends.items()):
            if stopped():
                raise LeaseLost(f"the reader of table {self._topic} is stopped")
            first = self._consumer.poll(0.5)
            if first is None and time.monotonic() - last_event > TIMEOUT:
                raise BrokerError(
                    f"the broker returned no records of table {self._topic} for {TIMEOUT:g} s",
                    got=f"up to {self.next_offsets} of {dict(ends)}",
                    hint="nothing if the broker returns: it is retried",
                )
            for message in (first, *self._consumer.consume(BATCH_ROWS // 5, 0)) if first is not None else ():
                partition, offset = message.partition() or 0, message.offset() or 0
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        last_event = time.monotonic()
                        self.next_offsets[partition] = max(offset, self.next_offsets[partition])
                    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                        raise BrokerError(
                            f"records of table {self._topic} were deleted before they were read",
                            got=f"partition {partition} at offset {self.next_offsets[partition]}",
                            hint="nothing: the table is read again",
                        )
                    elif error.code() == KafkaError._BAD_MSG:
                        raise BrokerError(
                            f"table {self._topic} cannot be read: a batch is corrupt in the broker's log",
                            got=f"partition {partition} at offset {self.next_offsets[partition]}",
                            hint="restore the partition from a replica; or recreate the topic and write its rows "
                            "again, for a capture by `penstock capture ask NAME snapshot`",
                        )
                    continue
                last_event = time.monotonic()
                key, value = message.key(), message.value()
                self.next_offsets[partition] = offset + 1
                if key != HEARTBEAT_KEY or self._signer.verified_time(self._topic, partition, value) is None:
                    records.append((key, value, partition, offset))
                    size += len(key or b"") + len(value or b"")
            if len(records) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield self._decoder.decode(records, dict(self.next_offsets))
                records, size = [], 0
        yield self._decoder.decode(records, dict(self.next_offsets))

    def close(self) -> None:
        close_checking(self._consumer)


def describe_topic(topic: str, bootstrap: str) -> tuple[str, int]:
    """Returns topic id and partition count; ('', 0) if the topic does not exist."""
    (future,) = admin(bootstrap).describe_topics(TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT).values()
    try:
        description = await_result(future, bootstrap, f"topic {topic} could not be described")
    except BrokerRefused as e:
        if e.code in TOPIC_UNAVAILABLE:
            return "", 0
        raise
    return str(description.topic_id), len(description.partitions)


class TableDecoder:
    """Decodes and validates a table's records as those of an input."""

    def __init__(self, table: Table) -> None:
        self._fields = table.fields
        # A table needs no event time.
        self._decoder = RecordDecoder(
            table.source, f"table {table.source}", table.schema, "", None, keep_records=True,
            registry=RegistryValues(table.registry_schema) if table.registry_schema else None,
        )  # fmt: skip
        self._schema = table_schema(self._fields)

    def decode(
        self, records: list[tuple[bytes | None, bytes | None, int, int]], next_offsets: dict[int, int]
    ) -> TopicBatch:
        if not records:
            return TopicBatch({}, BAD_RECORDS_SCHEMA.empty_table(), next_offsets)
        raw = pa.table(
            [pa.array(c, f.type) for c, f in zip(zip(*records, strict=True), RAW_SCHEMA, strict=True)],
            schema=RAW_SCHEMA,
        )
        has_key = pc.is_valid(as_text(raw["key"]))
        bad_records = [self._without_key(raw.filter(pc.invert(has_key)))]
        raw = raw.filter(has_key)
        rows = [self._tombstones(raw.filter(pc.is_null(raw["value"])))]
        for batch in self._decoded(raw.filter(pc.is_valid(raw["value"]))):
            valid, invalid = batch.filter(pc.invert(batch[BAD_COLUMN])), batch.filter(batch[BAD_COLUMN])
            rows.append(self._good_rows(valid))
            bad_records.append(_record_columns(invalid, BAD_RECORDS_SCHEMA.names).cast(BAD_RECORDS_SCHEMA))
        return TopicBatch(dict(self._last_rows(pa.concat_tables(rows))), pa.concat_tables(bad_records), next_offsets)

    def _decoded(self, raw: pa.Table) -> Iterator[pa.Table]:
        if not len(raw):
            return
        for field in UNUSED_COLUMNS:
            raw = raw.append_column(field, pa.nulls(len(raw), field.type))
        with DECODER_LOCK:
            batches = list(self._decoder(iter(raw.to_batches())))
        yield pa.Table.from_batches(batches)

    def _good_rows(self, valid: pa.Table) -> pa.Table:
        record = _record_columns(valid, ["key", "partition", "offset"])
        columns_of_fields = [valid[f.name] for f in self._fields]
        not_deleted = pa.array([False] * len(valid))
        columns: list[pa.Array[Any] | pa.ChunkedArray[Any]]
        columns = [as_text(record["key"]), *columns_of_fields, not_deleted, record["partition"], record["offset"]]
        return pa.table(columns, schema=self._located_schema)

    def _tombstones(self, raw: pa.Table) -> pa.Table:
        nulls = [pa.nulls(len(raw), f.type) for f in list(self._schema)[1:-1]]
        deleted = pa.array([True] * len(raw))
        return pa.table(
            [as_text(raw["key"]), *nulls, deleted, raw["partition"], raw["offset"]], schema=self._located_schema
        )

    @property
    def _located_schema(self) -> pa.Schema:
        return pa.schema([*self._schema, *(pa.field(f"_{name}", kind) for name, kind in LOCATION.items())])

    @staticmethod
    def _without_key(raw: pa.Table) -> pa.Table:
        reason = pc.if_else(pc.is_null(raw["key"]), "the record has no key", "the key is not valid UTF-8")
        return (
            raw.append_column("reason", reason.cast(pa.string()))
            .select(BAD_RECORDS_SCHEMA.names)
            .cast(BAD_RECORDS_SCHEMA)
        )

    def _last_rows(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The last row of each key, by partition."""
        for partition in rows["_partition"].unique().to_pylist():
            assert partition is not None
            of_partition = rows.filter(pc.equal(rows["_partition"], pa.scalar(partition))).sort_by("_offset")
            with_row = pa.table(
                [of_partition["key"], pa.array(range(len(of_partition)), pa.int64())], names=["key", "row"]
            )
            last = with_row.group_by("key").aggregate([("row", "max")])["row_max"]
            yield partition, of_partition.take(last).select(self._schema.names)


def table_schema(fields: tuple[Field, ...]) -> pa.Schema:
    """The schema of a table's files."""
    value_fields = [pa.field(f.name, arrow_type(f.type)) for f in fields]
    return pa.schema([pa.field("key", pa.string()), *value_fields, pa.field(DELETED, pa.bool_())])


def table_ddl(fields: tuple[Field, ...]) -> str:
    """The DDL of the columns that a transform gets."""
    return ", ".join(["key STRING", *(f"{quoted(f.name)} {f.type.ddl}" for f in fields)])


def _record_columns(rows: pa.Table, names: list[str]) -> pa.Table:
    """Columns of the source records of decoded rows."""
    records = rows.select([SOURCE_RECORD_COLUMN]).flatten()
    return records.select([f"{SOURCE_RECORD_COLUMN}.{name}" for name in names]).rename_columns(names)
