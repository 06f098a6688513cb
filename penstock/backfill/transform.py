"""The rows that a backfill writes, computed from what it has read: one Parquet file with the columns of an archive.

For unchanged records, `topic`, `partition` and `offset` are the record's position; other rows are numbered: the name of
the backfill, the hundred thousands, and the number. So one hash compares archive, file and target.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.archive import records
from penstock.archive.state import Span, merge_spans
from penstock.backfill.job import BackfillJob, BackfillMarker, epoch_ms
from penstock.backfill.query_rows import check_query, encoded_rows, json_sql, query_errors, schema_id
from penstock.backfill.skipped_records import SkippedRecords
from penstock.codec.columnar import BAD_COLUMN, SOURCE_RECORD_COLUMN, RecordDecoder
from penstock.codec.formats import value_encoder
from penstock.codec.registry_values import RegistryValues
from penstock.errors import DeclarationError
from penstock.model.backfill import IcebergTable, RowsQuery
from penstock.model.output import TopicOutput
from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# Rows whose hashes are compared together if there are no partitions.
ROWS_PER_HASH = 100_000
MEMORY_LIMIT = "1GB"
# Bytes of rows that are read, hashed or written together, since a value may have a megabyte.
BATCH_BYTES = 16 << 20
# The latest event time that is accepted.
MAX_MICROS = 2**63 - 1
# In the folder of a run: the records of the source that give no row.
SKIPPED_FILE = "left-out.json"

Recompute = Callable[[Sequence[Stream], Sequence[str], datetime, datetime], Iterator[pa.Table]]
"""Runs a chain of streams over archived files; yields tables of `key` and `value`.

A generator may return the number of skipped records, and the reason for the first of them.
"""


def make_rows(
    job: BackfillJob, files: Sequence[Path], plan: BackfillMarker, folder: Path, recompute: Recompute
) -> Path:
    """Compute the rows of a job; a file that exists is complete and is used."""
    target = folder / "rows.parquet"
    if target.exists():
        return target
    if isinstance(job.backfill.target, Stream):
        assert job.begin is not None
        chain = [*job.backfill.via, job.backfill.target]
        rows = folder / "made.parquet"
        recomputed = _RecomputedTables(recompute(chain, [str(path) for path in files], job.begin, job.end))
        _write_tables(rows, recomputed)
        recomputed.skipped_records.save(folder / SKIPPED_FILE)
        source = f"SELECT key, value FROM {files_as_table([rows])}"
        with open_duckdb(folder) as connection:
            _sort_by_key(connection, job, source, target)
    elif job.backfill.rows is not None:
        assert isinstance(job.backfill.target, TopicOutput)
        _run_query(job, job.backfill.rows, job.backfill.target, files, folder, target)
    else:
        _copy_interval(job, files, plan, target)
    return target


def read_rows(path: Path, skip: int = 0, size: int = records.ROW_GROUP_ROWS) -> Iterator[pa.Table]:
    """Read the rows of a file in order, in batches of `size` rows or `BATCH_BYTES`, without the first `skip` rows."""
    with pq.ParquetFile(path, memory_map=True) as file:
        for batch in file.iter_batches(min(size, _rows_per_batch(file))):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            rows = pa.Table.from_batches([batch.slice(skip)])
            skip = 0
            yield from _split(rows.cast(records.SCHEMA))


def _rows_per_batch(file: pq.ParquetFile) -> int:
    """Rows that fit into `BATCH_BYTES`, by the largest average size of a row group."""
    groups = (file.metadata.row_group(n) for n in range(file.num_row_groups))
    return max(
        1, BATCH_BYTES // max((group.total_byte_size // max(1, group.num_rows) + 1 for group in groups), default=1)
    )


def _split(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows of a table, halved until each part has at most `BATCH_BYTES` or one row."""
    if rows.nbytes <= BATCH_BYTES or rows.num_rows == 1:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _split(rows.slice(0, half))
    yield from _split(rows.slice(half))


def count_rows(path: Path) -> int:
    with pq.ParquetFile(path) as file:
        return int(file.metadata.num_rows)


def count_null_keys(path: Path) -> int:
    """The number of rows without a key."""
    with pq.ParquetFile(path, memory_map=True) as file:
        return sum(batch.column(0).null_count for batch in file.iter_batches(_rows_per_batch(file), columns=["key"]))


def count_up_to(files: Sequence[Path], last_offsets: Mapping[str, int]) -> dict[str, int]:
    """The number of records of each partition (`topic/partition`) up to an offset."""
    places, lasts = pa.array(last_offsets, pa.string()), pa.array(last_offsets.values(), pa.int64())
    with duckdb.connect() as connection:
        connection.register("known", pa.table({"place": places, "last": lasts}))
        return dict(
            connection.execute(
                f"""SELECT place, count(*) FROM {files_as_table(files)} r
                JOIN known ON place = r.topic || '/' || r.partition WHERE r."offset" <= last GROUP BY place"""
            ).fetchall()
        )


def row_spans(path: Path) -> dict[str, Span]:
    """The spans of the rows."""
    return merge_spans(map(records.spans_of, read_rows(path)))


def _copy_interval(job: BackfillJob, files: Sequence[Path], plan: BackfillMarker, target: Path) -> None:
    """Copy the records of the interval that the plan has and no earlier plan had."""
    places = [
        (*place.rsplit("/", 1), plan.after_offsets.get(place, 0), span.last)
        for place, span in plan.source_spans.items()
    ]
    with open_duckdb(target.parent) as connection:
        connection.execute('CREATE TABLE known (topic VARCHAR, partition INT, "first" BIGINT, "last" BIGINT)')
        if places:
            connection.executemany("INSERT INTO known VALUES (?, ?, ?, ?)", places)
        rows = (
            f"{files_as_table(files, numbered=True)} r JOIN known k USING (topic, partition) "
            f'WHERE {_interval_sql(job, "r.")} AND r."offset" BETWEEN k."first" AND k."last"'
        )
        disordered, duplicates = connection.execute(
            f"""SELECT count(*) FILTER (has_key AND event_time < latest),
              count(*) FILTER ("offset" IN (previous, next))
            FROM (
              SELECT key IS NOT NULL AS has_key, event_time, "offset", max(event_time) OVER log AS latest,
                lag("offset") OVER log AS previous, lead("offset") OVER log AS next
              FROM {rows} WINDOW log AS (PARTITION BY topic, partition ORDER BY "offset")
            )"""
        ).fetchall()[0]
        if duplicates:
            log.warning(
                "backfill %s: %d records have the offset of another one, of a topic that was recreated: their order is "
                "unknown",
                job.id, duplicates,
            )  # fmt: skip
        turn, moved = "event_time", ""
        if disordered:
            # Records of a key keep their order, whatever their event times: otherwise an older value would be the last,
            # or a deleted key would return. Between two partitions there is no order.
            connection.execute(
                f"""CREATE TABLE moved AS SELECT filename, file_row_number, max(event_time) OVER log AS turn
                FROM {rows} AND key IS NOT NULL
                WINDOW log AS (PARTITION BY topic, partition, md5_number(key) ORDER BY "offset")
                QUALIFY turn > event_time"""
            )
            turn, moved = "coalesce(turn, event_time)", "LEFT JOIN moved USING (filename, file_row_number)"
        columns = ", ".join(f'"{name}"' for name in records.SCHEMA.names)
        copy_query(
            connection,
            f"""SELECT {columns} FROM (SELECT * FROM {rows}) {moved}
            ORDER BY {turn}, topic, partition, "offset"{", md5(value)" if duplicates else ""}""",
            target,
        )


def _run_query(
    job: BackfillJob, rows: RowsQuery, output: TopicOutput, files: Sequence[Path], folder: Path, target: Path
) -> None:
    label = f"backfill {job.name}"
    with open_duckdb(folder) as connection:
        paths = list[Path]()
        if isinstance(job.backfill.source, IcebergTable):
            table = files_as_table(files)
        else:
            paths += _decode(job, rows, connection, files, folder)
            table = files_as_table(paths)
        connection.execute("SET VARIABLE begin = ?", [epoch_ms(job.begin) if job.begin else 0])
        connection.execute('SET VARIABLE "end" = ?', [epoch_ms(job.end)])
        connection.execute(f"CREATE VIEW records AS FROM {table}")
        check_query(connection, label, rows.query, output)
        with query_errors(label):
            connection.execute(f"CREATE TABLE given AS SELECT * FROM ({rows.query.strip().rstrip(';')}\n)")
        key, value = (json_sql(columns) for columns in (output.key, output.value))
        encoded = f"SELECT {key} AS key, {value} AS value FROM given"
        if schema := output.topic.registry_schema:
            encoder = value_encoder(schema, schema_id(job, schema, output.topic.name))
            paths.append(folder / "made.parquet")
            _write_tables(
                paths[-1], encoded_rows(label, connection.sql(f"SELECT {key} AS _key, * FROM given"), encoder)
            )
            encoded = f"SELECT key, value FROM {files_as_table(paths[-1:])}"
        _sort_by_key(connection, job, encoded, target)
    for path in paths:
        path.unlink()


def _decode(
    job: BackfillJob, rows: RowsQuery, connection: duckdb.DuckDBPyConnection, files: Sequence[Path], folder: Path
) -> Iterator[Path]:
    """The files of the decoded records: at least one, which has their columns."""
    label, read = f"backfill {job.name}", job.backfill.registry_schema
    values = RegistryValues(read) if read else None
    decoder = RecordDecoder(label, label, job.backfill.ddl, rows.event_time, None, keep_records=False, registry=values)
    if not decoder.computes_event_time:
        raise DeclarationError(
            f"{label}: its event time cannot be computed without Spark",
            got=rows.event_time,
            hint="write timestamp_millis(column), timestamp_micros(column), timestamp_seconds(column) or a column",
        )
    skipped_records = SkippedRecords()
    tables = (_decode_file(decoder, job, connection, path, skipped_records) for path in files)
    for number, table in enumerate(tables if files else [_decoded_schema(decoder).empty_table()]):
        decoded = folder / f"decoded-{number:06}.parquet"
        # Statistics leave out NaN, which is the greatest number in DuckDB: it would not look into the row group.
        pq.write_table(table, decoded, compression="lz4", write_statistics=False)
        yield decoded
    skipped_records.save(folder / SKIPPED_FILE)


def _decoded_schema(decoder: RecordDecoder) -> pa.Schema:
    return pa.schema(
        [decoder.output_schema.field(f.name) for f in decoder.fields] + [decoder.output_schema.field("event_time")]
    )


def _decode_file(
    decoder: RecordDecoder,
    job: BackfillJob,
    connection: duckdb.DuckDBPyConnection,
    path: Path,
    skipped_records: SkippedRecords,
) -> pa.Table:
    """The valid records in the columns of the schema, with their event time; others go to `skipped_records`."""
    interval: pa.Table = connection.sql(
        f"""SELECT key, value, partition, "offset", {MAX_MICROS} AS clock FROM {files_as_table([path])} r
        WHERE {_interval_sql(job, "r.")}"""
    ).to_arrow_table()
    decoded = pa.Table.from_batches(list(decoder(iter(interval.to_batches()))), decoder.output_schema)
    record: dict[str, Any]
    for record in decoded.filter(decoded[BAD_COLUMN])[SOURCE_RECORD_COLUMN].to_pylist():  # type: ignore[assignment]
        if job.archive is None:
            location = f"document {bytes(record['key']).decode(errors='replace')}"
        else:
            location = f"{job.archive.reads[0].name}[{record['partition']}]@{record['offset']}"
        skipped_records.add(location, record["reason"])
    return decoded.filter(pc.invert(decoded[BAD_COLUMN])).select(_decoded_schema(decoder).names)


def _interval_sql(job: BackfillJob, alias: str) -> str:
    """SQL of whether a record of an archive is in the interval; documents have no time, so all are."""
    if job.archive is None:
        return "true"
    begin = f"{alias}event_time >= make_timestamptz({epoch_ms(job.begin)}000) AND " if job.begin else ""
    return f"{begin}{alias}event_time < make_timestamptz({epoch_ms(job.end)}000)"


def _sort_by_key(connection: duckdb.DuckDBPyConnection, job: BackfillJob, source: str, target: Path) -> None:
    """Write rows in order of their keys, each key once."""
    numbered_sql = f"SELECT key, value, row_number() OVER (ORDER BY key, value) - 1 AS n FROM ({source})"
    location_sql = f"""'{job.name}' AS topic, (n // {ROWS_PER_HASH})::INT AS partition, n AS "offset\""""
    columns = f"{location_sql}, key, value, NULL AS timestamp, NULL AS headers, NULL AS event_time"
    unchecked = target.with_suffix(".unchecked")
    copy_query(connection, f"SELECT {columns} FROM ({numbered_sql}) ORDER BY n", unchecked)
    _check_keys(job, unchecked)
    unchecked.replace(target)


def _check_keys(job: BackfillJob, path: Path) -> None:
    """Raises DeclarationError if a key is NULL or not unique."""
    last_key: bytes | None = None
    for rows in read_rows(path):
        keys = rows["key"].combine_chunks()
        if keys.null_count:
            raise DeclarationError(
                f"backfill {job.name}: it returns rows without a key",
                got=f"{keys.null_count} rows",
                hint="exclude them by WHERE",
            )
        is_repeated = pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1))
        duplicates = keys.slice(1).filter(is_repeated)[:1].to_pylist() or (
            [last_key] if keys[0].as_py() == last_key else []
        )
        if duplicates:
            raise DeclarationError(
                f"backfill {job.name}: it returns a key twice, and the topic would keep one of the rows",
                got=bytes(duplicates[0] or b"")[:200].decode(errors="replace"),
                hint="group by the columns of the key",
            )
        last_key = keys[-1].as_py()


class _RecomputedTables:
    """The tables of a recompute; `skipped_records` is known after the last one."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = cast("Generator[pa.Table, None, tuple[int, str] | None]", tables)
        self.skipped_records = SkippedRecords()

    def __iter__(self) -> Iterator[pa.Table]:
        skipped = yield from self._tables
        if skipped and skipped[0]:
            self.skipped_records.add_many(skipped[0], "the first of them", skipped[1])


def _write_tables(path: Path, tables: Iterable[pa.Table]) -> None:
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    with pq.ParquetWriter(path, schema, compression="lz4") as writer:
        for table in tables:
            writer.write_table(table.select(["key", "value"]).cast(schema))


def files_as_table(paths: Sequence[Path], *, numbered: bool = False) -> str:
    """SQL of a table of all records of files; `numbered` adds `filename` and `file_row_number`."""
    if not paths:
        kinds = COLUMN_TYPES | ({"filename": "VARCHAR", "file_row_number": "BIGINT"} if numbered else {})
        columns = ", ".join(f"NULL::{kind} AS {name}" for name, kind in kinds.items())
        return f"(SELECT {columns} WHERE false)"
    # A folder such as day=1 in the path would be a column, and hide that of the file.
    options = f"hive_partitioning = false{', file_row_number = true, filename = true' if numbered else ''}"
    return f"read_parquet([{', '.join(map(_sql_path, paths))}], {options})"


def _sql_path(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


COLUMN_TYPES = {
    "topic": "VARCHAR", "partition": "INT", '"offset"': "BIGINT", "key": "BLOB", "value": "BLOB",
    "timestamp": "TIMESTAMPTZ", "headers": "STRUCT(key VARCHAR, value BLOB)[]", "event_time": "TIMESTAMPTZ",
}  # fmt: skip


def copy_query(connection: duckdb.DuckDBPyConnection, query: str, target: Path) -> None:
    """Write the rows of a query to a file, which gets its name when it is complete."""
    part = target.with_suffix(".part")
    options = f"FORMAT parquet, COMPRESSION lz4_raw, ROW_GROUP_SIZE {records.ROW_GROUP_ROWS}"
    connection.execute(f"COPY ({query}) TO {_sql_path(part)} ({options})")
    part.replace(target)


@contextmanager
def open_duckdb(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB that spills to the folder."""
    with duckdb.connect(
        config={"threads": 2, "memory_limit": MEMORY_LIMIT, "temp_directory": str(folder / "spill")}
    ) as connection:
        connection.execute("SET timezone = 'UTC'")
        with _interrupt_on_signal(connection):
            yield connection


@contextmanager
def _interrupt_on_signal(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let a signal interrupt the query.

    An exception of the signal handler ends only the main thread's part of a query, and DuckDB waits for its others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGTERM, signal.SIGINT)
    handlers = {number: handler for number in signals if callable(handler := signal.getsignal(number))}

    def interrupt(number: int, frame: FrameType | None) -> None:
        connection.interrupt()
        handlers[signal.Signals(number)](number, frame)

    for number in handlers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
