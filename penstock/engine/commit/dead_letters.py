"""Dead letters of rows that an output refuses: the records that the rows were made of, where the rows name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.engine.commit.rejected import DEAD_LETTER_SCHEMA, origin_headers
from penstock.kafka.dead_letters import HEADER_PREFIX, HIDDEN, RecordLocation
from penstock.kafka.record_lookup import TopicRecord, records_at

if TYPE_CHECKING:
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
    records = {record.location: record for record in records_at(reasons, bootstrap)}
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
    """The dead letter of a record, of which several rows may be refused."""
    reason = reasons[0] if len(reasons) == 1 else f"{reasons[0]} (and {len(reasons) - 1} more of its rows)"
    held = replace(record, headers=()) if record and hides else record
    headers = origin_headers(position._asdict(), stream, "reason", reason, ids, held)
    headers.append((f"{HEADER_PREFIX}output", output.encode()))
    if record is None:
        # Compaction or retention has removed the record since the batch read it.
        return {"key": None, "value": None, "headers": [*headers, (f"{HEADER_PREFIX}cut", b"key, value")]}
    if hides:
        return {"key": None, "value": None, "headers": [*headers, (f"{HEADER_PREFIX}{HIDDEN}", b"key, value")]}
    return {"key": record.key, "value": record.value, "headers": headers}
