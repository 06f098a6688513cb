"""Records as Parquet, and the hash that compares two sets of records.

Columns: `topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestamp TIMESTAMP, headers
ARRAY<STRUCT<key STRING, value BINARY>>, event_time TIMESTAMP`, times in microseconds UTC.

The hash of a record is the first half of the MD5 of its topic, partition, offset, key and value, little-endian. The
hash of a set is the sum modulo 2^64, so it does not depend on order or files. It detects damage, not forgery.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.state import Span

TIMESTAMP_TYPE = pa.timestamp("us", "UTC")
COLUMNS: list[tuple[str, Any]] = [
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("timestamp", TIMESTAMP_TYPE),
    ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ("event_time", TIMESTAMP_TYPE),
]
SCHEMA = pa.schema(COLUMNS)
# Times that can name a folder.
MIN_TIME, MAX_TIME = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
ROW_GROUP_ROWS = 65_536
# A topic's name has no colon, so two records never have the same text. DuckDB calls the first half of an MD5 the upper.
SPANS_SQL = """
SELECT topic, partition, count(*), min("offset"), max("offset"),
    (sum(md5_number_upper(
        encode(topic || ':' || partition || ':' || "offset" || ':' || coalesce(octet_length(key), -1) || ':'
            || coalesce(octet_length(value), -1) || ':')
        || coalesce(key, ''::BLOB) || coalesce(value, ''::BLOB)
    )::HUGEINT) % 18446744073709551616)::UBIGINT
FROM rows GROUP BY ALL
"""


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """One database for the process: to open one takes 13 ms."""
    return duckdb.connect()


def spans_of(rows: pa.Table) -> dict[str, Span]:
    """The spans of records, by partition."""
    with _database().cursor() as cursor:
        cursor.register("rows", rows.select(["topic", "partition", "offset", "key", "value"]))
        result = cursor.execute(SPANS_SQL).fetchall()
    return {f"{topic}/{partition}": Span(*numbers) for topic, partition, *numbers in result}


def to_archive_schema(rows: pa.Table) -> pa.Table:
    """Rows as `SCHEMA`. An event time that cannot name a folder is replaced by the record's timestamp."""
    rows = rows.select(SCHEMA.names).cast(SCHEMA)
    time, timestamp = rows["event_time"], rows["timestamp"]
    first = pa.scalar(MIN_TIME, TIMESTAMP_TYPE)
    event_time = pc.if_else(_in_time_range(time), time, pc.if_else(_in_time_range(timestamp), timestamp, first))
    return rows.set_column(SCHEMA.get_field_index("event_time"), SCHEMA.field("event_time"), event_time)


def _in_time_range(time: Any) -> Any:
    first, last = pa.scalar(MIN_TIME, TIMESTAMP_TYPE), pa.scalar(MAX_TIME, TIMESTAMP_TYPE)
    usable: Any = pc.and_(pc.greater_equal(time, first), pc.less_equal(time, last))
    return usable.fill_null(False)


def clamped_time(micros: int) -> datetime:
    """The time of epoch microseconds, clamped to the range that can name a folder."""
    span = MAX_TIME - MIN_TIME
    return MIN_TIME + min(max(timedelta(0), timedelta(microseconds=micros)), span)


def split_by_hour(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The records of each hour of event time, in order of topic, partition and offset."""
    if not rows.num_rows:
        return
    hours: Any = pc.strftime(rows["event_time"], "%Y-%m-%dT%H")
    for hour in sorted(map(str, hours.unique().to_pylist())):
        records = rows.filter(pc.equal(hours, pa.scalar(hour)))
        yield hour, records.sort_by([(name, "ascending") for name in ("topic", "partition", "offset")])
