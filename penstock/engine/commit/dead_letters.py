"""Dead letters of rows that an output refuses: the records that the rows were made of, where the rows name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.engine.commit.rejected import DEAD_LETTER_SCHEMA, origin_headers
from penstock.kafka.admin import admin, first_offsets
from penstock.kafka.dead_letters import HEADER_PREFIX, HIDDEN, RecordLocation, open_consumer, read_range
from penstock.kafka.record_lookup import TopicRecord, to_record

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from penstock.engine.commit.dead_letter_index import DeadLetterIndex

POSITION_COLUMNS = ("topic", "partition", "offset")


def dead_letters_of_rows(
    rows: pa.Table,
    reasons_by_row: Mapping[int, str],
    stream: str,
    output: str,
    bootstrap: str,
    index: DeadLetterIndex,
    target: str,
    *,
    hides_records: bool = False,
) -> pa.Table:
    """The dead letters of refused rows.

    Args:
        rows: all rows of the output; the position columns, if there are any, name the record of each.
        reasons_by_row: the reason by row number.
        stream: name of the stream.
        output: name of the output.
        bootstrap: the brokers.
        index: the dead letters that are written already.
        target: the topic that they go to; a record whose dead letter it has already gets no other.
        hides_records: whether the dead letters name their records and do not hold them, as the rows are masked and the
            records are not.
    """
    if not set(POSITION_COLUMNS) <= set(rows.column_names):
        return _of_rows(rows.take(list(reasons_by_row)), list(reasons_by_row.values()), stream, output)
    positions = rows.select(POSITION_COLUMNS).take(list(reasons_by_row)).to_pylist()
    reasons: dict[RecordLocation, list[str]] = {}
    for position, reason in zip(positions, reasons_by_row.values(), strict=True):
        if not index.contains(position, target):
            reasons.setdefault(RecordLocation(**position), []).append(reason)
    records = dict(_records(reasons, bootstrap))
    letters = [
        _of_record(position, row_reasons, records.get(position), stream, output, index.topic_ids, hides=hides_records)
        for position, row_reasons in reasons.items()
    ]
    return pa.Table.from_pylist(letters, schema=DEAD_LETTER_SCHEMA)


def _of_rows(rows: pa.Table, reasons: list[str], stream: str, output: str) -> pa.Table:
    """Dead letters of rows with `key` and `value` that name no record."""
    fields = [{"output": output, "stream": stream, "reason": reason} for reason in reasons]
    headers = [
        [(f"{HEADER_PREFIX}{name}", text.encode()) for name, text in row_fields.items()] for row_fields in fields
    ]
    key, value = (rows[name].cast(pa.binary()) for name in ("key", "value"))
    header_column = pa.chunked_array([pa.array(headers, DEAD_LETTER_SCHEMA.field("headers").type)])
    return pa.Table.from_arrays([key, value, header_column], schema=DEAD_LETTER_SCHEMA)


def _of_record(
    position: RecordLocation,
    reasons: list[str],
    record: TopicRecord | None,
    stream: str,
    output: str,
    ids: Mapping[str, str],
    *,
    hides: bool,
) -> dict[str, Any]:
    """The dead letter of a record, of which several rows may be refused; the record's own headers come first."""
    reason = reasons[0] if len(reasons) == 1 else f"{reasons[0]} (and {len(reasons) - 1} more of its rows)"
    reason_headers = [
        *origin_headers(position._asdict(), stream, "reason", reason, ids),
        (f"{HEADER_PREFIX}output", output.encode()),
    ]
    if record is None:
        # Compaction or retention has removed the record since the batch read it.
        return {"key": None, "value": None, "headers": [*reason_headers, (f"{HEADER_PREFIX}cut", b"key, value")]}
    reason_headers.append((f"{HEADER_PREFIX}timestamp", str(record.timestamp).encode()))
    if hides:
        return {"key": None, "value": None, "headers": [*reason_headers, (f"{HEADER_PREFIX}{HIDDEN}", b"key, value")]}
    headers = [*record.headers, *reason_headers]
    return {"key": record.key, "value": record.value, "headers": headers}


def _records(positions: Iterable[RecordLocation], bootstrap: str) -> Iterator[tuple[RecordLocation, TopicRecord]]:
    """The records at some positions, as far as they are still there."""
    parts: dict[tuple[str, int], set[int]] = {}
    for topic, partition, offset in positions:
        parts.setdefault((topic, partition), set()).add(offset)
    if not parts:
        return
    first = first_offsets(admin(bootstrap), parts, bootstrap)
    with open_consumer(bootstrap) as reader:
        for part, offsets in parts.items():
            # They belong to one batch: reading everything between them is quicker than seeking each. A record removed
            # meanwhile ends the reading early, so each missing one is then read alone.
            spans = [(max(min(offsets), first.get(part, 0)), max(offsets) + 1)]
            for message in _read(reader, part, spans):
                if message.offset() in offsets:
                    offsets.discard(message.offset() or 0)
                    record = to_record(message)
                    yield record.location, record
            for message in _read(reader, part, [(offset, offset + 1) for offset in offsets]):
                record = to_record(message)
                yield record.location, record


def _read(reader: Consumer, part: tuple[str, int], spans: Iterable[tuple[int, int]]) -> Iterator[Message]:
    for start, end in spans:
        yield from read_range(reader, *part, start, end)
