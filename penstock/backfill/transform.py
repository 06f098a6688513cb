"""The rows that a backfill writes, computed from what it has read: one Parquet file with the columns of an archive.

For unchanged records, `topic`, `partition` and `offset` are the record's position; other rows are numbered: the name of
the backfill, the hundred thousands, and the number. So one hash compares archive, file and target.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.archive import parquet
from penstock.archive.layout import Span, merge_spans
from penstock.backfill.job import BackfillJob, BackfillMarker, epoch_ms
from penstock.backfill.skipped_records import SkippedRecords
from penstock.codec.columnar import BAD_COLUMN, SOURCE_RECORD_COLUMN, RecordDecoder
from penstock.errors import BackfillError, DeclarationError
from penstock.model.backfill import RowsQuery
from penstock.model.output import Columns, TopicOutput
from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# Rows whose hashes are compared together if there are no partitions.
ROWS_PER_HASH = 100_000
MEMORY_LIMIT = "1GB"
# Of rows that are held, hashed or written together: a value may be a megabyte.
BATCH_BYTES = 16 << 20
# No event time is later; a record of the future is no less a record.
MAX_MICROS = 2**63 - 1
# What is written as JSON in one way alone, in a key above all.
JSON_SAFE_TYPE = re.compile(
    r"(VARCHAR|BOOLEAN|U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|DECIMAL\([0-9, ]+\)|STRUCT"
    r"|\"[^\"]*\"|\w+ |[(),\[\] ])+"
)
# In the folder of a run: the records of the source that give no row.
SKIPPED_FILE = "left-out.json"

Recompute = Callable[[Sequence[Stream], Sequence[str], datetime, datetime], Iterator[pa.Table]]
"""A chain of streams over archived files: tables of `key` and `value`. A generator may return how many records are left
out, and why the first of them is."""


def make_rows(
    job: BackfillJob, files: Sequence[Path], plan: BackfillMarker, folder: Path, recompute: Recompute
) -> Path:
    """The file of rows; one that is there already is whole, and is taken."""
    target = folder / "rows.parquet"
    if target.exists():
        return target
    if isinstance(job.backfill.target, Stream):
        assert job.begin is not None
        chain = [*job.backfill.via, job.backfill.target]
        rows = folder / "made.parquet"
        given = _RecomputedTables(recompute(chain, [str(path) for path in files], job.begin, job.end))
        _write_tables(rows, given)
        given.skipped_records.save(folder / SKIPPED_FILE)
        source = f"SELECT key, value FROM {files_as_table([rows])}"
        with open_duckdb(folder) as connection:
            _sort_by_key(connection, job, source, target)
    elif job.backfill.rows is not None:
        assert isinstance(job.backfill.target, TopicOutput)
        _run_query(job, job.backfill.rows, job.backfill.target, files, folder, target)
    else:
        _copy_interval(job, files, plan, target)
    return target


def read_rows(path: Path, skip: int = 0, size: int = parquet.ROW_GROUP_ROWS) -> Iterator[pa.Table]:
    """The rows of a file in their order, some at a time: so many, or as many as BYTES hold. skip: how many of the first
    are left out."""
    with pq.ParquetFile(path, memory_map=True) as file:
        for batch in file.iter_batches(min(size, _rows_per_batch(file))):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            rows = pa.Table.from_batches([batch.slice(skip)])
            skip = 0
            yield from _split(rows.cast(parquet.SCHEMA))


def _rows_per_batch(file: pq.ParquetFile) -> int:
    """How many rows of a file BYTES hold, as they are on average where they are largest."""
    groups = (file.metadata.row_group(n) for n in range(file.num_row_groups))
    return max(
        1, BATCH_BYTES // max((group.total_byte_size // max(1, group.num_rows) + 1 for group in groups), default=1)
    )


def _split(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows of a table, in halves until each is of no more than BYTES, or one row."""
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
    """How many rows have no key."""
    with pq.ParquetFile(path, memory_map=True) as file:
        return sum(batch.column(0).null_count for batch in file.iter_batches(_rows_per_batch(file), columns=["key"]))


def row_spans(path: Path) -> dict[str, Span]:
    """What the rows come to."""
    return merge_spans(map(parquet.spans_of, read_rows(path)))


def _copy_interval(job: BackfillJob, files: Sequence[Path], plan: BackfillMarker, target: Path) -> None:
    """The records of the interval that the plan has and no earlier one had."""
    places = {place: (plan.after_offsets.get(place, 0), span.last + 1) for place, span in plan.source_spans.items()}
    after, upto = zip(*places.values(), strict=True) if places else ((), ())
    known = pa.table(
        {
            "place": pa.array(places, pa.string()),
            "after": pa.array(after, pa.int64()),
            "upto": pa.array(upto, pa.int64()),
        }
    )
    with open_duckdb(target.parent) as connection:
        connection.register("known", known)
        # No record comes before an earlier one of its key, whatever their event times: else an older value would be the
        # last, or what was deleted be back. Of two partitions no order is promised.
        connection.execute(
            f"""CREATE TABLE turns AS SELECT filename, file_row_number, CASE WHEN key IS NULL THEN event_time
              ELSE max(event_time) OVER (PARTITION BY r.topic, r.partition, md5(key) ORDER BY r."offset") END AS turn,
              count(*) OVER (PARTITION BY r.topic, r.partition, r."offset") AS together
            FROM {files_as_table(files, numbered=True)} r JOIN known k ON k.place = r.topic || '/' || r.partition
            WHERE {_interval_sql(job, "r.")} AND r."offset" >= k.after AND r."offset" < k.upto"""
        )
        if twice := connection.execute("SELECT count(*) FROM turns WHERE together > 1").fetchone()[0]:  # type: ignore[index]
            log.warning(
                "backfill %s: %d records lie in one place with another one, of a topic that was made again: which of a "
                "key comes first is not known",
                job.id, twice,
            )  # fmt: skip
        _copy_query(
            connection,
            f"""SELECT {", ".join(f'r."{name}"' for name in parquet.SCHEMA.names)}
            FROM {files_as_table(files, numbered=True)} r JOIN turns USING (filename, file_row_number)
            ORDER BY turn, topic, partition, "offset", md5(value)""",
            target,
        )


def _run_query(
    job: BackfillJob, rows: RowsQuery, output: TopicOutput, files: Sequence[Path], folder: Path, target: Path
) -> None:
    what = f"backfill {job.name}"
    reading = RecordDecoder(what, what, rows.schema, rows.event_time, None, keep_records=False)
    if not reading.computes_event_time:
        raise DeclarationError(
            f"{what}: its event time is none that can be told without Spark",
            got=rows.event_time,
            hint="write timestamp_millis(column), timestamp_micros(column), timestamp_seconds(column) or a column",
        )
    skipped_records = SkippedRecords()
    with open_duckdb(folder) as connection:
        paths = []
        for number, path in enumerate(files):
            decoded = folder / f"decoded-{number:06}.parquet"
            pq.write_table(_decode_file(reading, job, connection, path, skipped_records), decoded, compression="lz4")
            paths.append(decoded)
        skipped_records.save(folder / SKIPPED_FILE)
        connection.execute("SET VARIABLE begin = ?", [epoch_ms(job.begin) if job.begin else 0])
        connection.execute('SET VARIABLE "end" = ?', [epoch_ms(job.end)])
        connection.execute(
            f"CREATE VIEW records AS FROM {files_as_table(paths) if paths else _empty_table(connection, reading)}"
        )
        _check_query(connection, what, rows.query, output)
        connection.execute(f"CREATE TABLE given AS SELECT * FROM ({rows.query.strip().rstrip(';')}\n)")
        key, value = (_json_sql(columns) for columns in (output.key, output.value))
        _sort_by_key(connection, job, f"SELECT {key} AS key, {value} AS value FROM given", target)
    for path in paths:
        path.unlink()


def _empty_table(connection: duckdb.DuckDBPyConnection, reading: RecordDecoder) -> str:
    connection.register("nothing", _decoded_schema(reading).empty_table())
    return "nothing"


def _decoded_schema(reading: RecordDecoder) -> pa.Schema:
    return pa.schema(
        [reading.output_schema.field(f.name) for f in reading.fields] + [reading.output_schema.field("event_time")]
    )


def _read_interval(connection: duckdb.DuckDBPyConnection, job: BackfillJob, path: Path) -> pa.Table:
    """The records of a file, as the decoder takes them."""
    found: pa.Table = connection.sql(
        f"""SELECT key, value, partition, "offset", {MAX_MICROS} AS clock FROM {files_as_table([path])} r
        WHERE {_interval_sql(job, "r.")}"""
    ).to_arrow_table()
    return found


def _decode_file(
    reading: RecordDecoder,
    job: BackfillJob,
    connection: duckdb.DuckDBPyConnection,
    path: Path,
    skipped_records: SkippedRecords,
) -> pa.Table:
    """The good records, in the columns of the schema, and their event time. skipped_records: is told of the others."""
    given = _read_interval(connection, job, path)
    found = pa.Table.from_batches(list(reading(iter(given.to_batches()))), reading.output_schema)
    record: dict[str, Any]
    for record in found.filter(found[BAD_COLUMN])[SOURCE_RECORD_COLUMN].to_pylist():  # type: ignore[assignment]
        if job.archive is None:
            place = f"document {bytes(record['key']).decode(errors='replace')}"
        else:
            place = f"{job.archive.reads[0].name}[{record['partition']}]@{record['offset']}"
        skipped_records.add(place, record["reason"])
    return found.filter(pc.invert(found[BAD_COLUMN])).select(_decoded_schema(reading).names)


def _interval_sql(job: BackfillJob, of: str) -> str:
    """Documents have no time that they would be chosen by."""
    if job.archive is None:
        return "true"
    begin = f"{of}event_time >= make_timestamptz({epoch_ms(job.begin)}000) AND " if job.begin else ""
    return f"{begin}{of}event_time < make_timestamptz({epoch_ms(job.end)}000)"


def _check_query(connection: duckdb.DuckDBPyConnection, what: str, query: str, output: TopicOutput) -> None:
    """DeclarationError if the query is none, or does not give what its output takes."""
    try:
        found = connection.execute(f"DESCRIBE ({query.strip().rstrip(';')}\n)").fetchall()
    except duckdb.Error as e:
        raise DeclarationError(
            f"{what}: its query is none", got=str(e).splitlines()[0], hint="write a SELECT of DuckDB over records"
        ) from e
    kinds = {str(name).lower(): str(kind) for name, kind, *_ in found}
    wanted = [*_column_names(output.key), *_column_names(output.value)]
    if missing := [name for name in wanted if name.lower() not in kinds]:
        raise DeclarationError(
            f"{what}: its query does not give what its output takes",
            got=f"{', '.join(kinds)}; lacking {', '.join(missing)}",
            hint="give these columns, or leave them out of the output's key and value",
        )
    if odd := {name: kinds[name.lower()] for name in wanted if not JSON_SAFE_TYPE.fullmatch(kinds[name.lower()])}:
        raise DeclarationError(
            f"{what}: its query gives columns that JSON has no one text for",
            got=", ".join(f"{name} {kind}" for name, kind in odd.items()),
            hint="cast them: times as epoch_ms(...), bytes as hex(...), all else as text",
        )


def _column_names(columns: Columns) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _json_sql(columns: Columns) -> str:
    """As an output's columns are written: one as text, several as an object."""
    if isinstance(columns, str):
        return f'encode(CAST("{columns}" AS VARCHAR))'
    fields = ", ".join(f'"{name}" := "{name}"' for name in columns)
    return f"encode(CAST(to_json(struct_pack({fields})) AS VARCHAR))"


def _sort_by_key(connection: duckdb.DuckDBPyConnection, job: BackfillJob, source: str, target: Path) -> None:
    """Rows in order of their keys, each key once."""
    numbered = f"SELECT key, value, row_number() OVER (ORDER BY key, value) - 1 AS n FROM ({source})"
    place = f"""'{job.name}' AS topic, (n // {ROWS_PER_HASH})::INT AS partition, n AS "offset\""""
    columns = f"{place}, key, value, NULL AS timestamp, NULL AS headers, NULL AS event_time"
    part = target.with_suffix(".unchecked")
    _copy_query(connection, f"SELECT {columns} FROM ({numbered}) ORDER BY n", part)
    _check_keys(job, part)
    part.replace(target)


def _check_keys(job: BackfillJob, path: Path) -> None:
    """DeclarationError for a key that is NULL, or there twice."""
    before: bytes | None = None
    for rows in read_rows(path):
        keys = rows["key"].combine_chunks()
        if keys.null_count:
            raise DeclarationError(
                f"backfill {job.name}: it gives rows without a key",
                got=f"{keys.null_count} rows",
                hint="leave them out",
            )
        both = pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1))
        twice = keys.slice(1).filter(both)[:1].to_pylist() or ([before] if keys[0].as_py() == before else [])
        if twice:
            raise DeclarationError(
                f"backfill {job.name}: it gives a key twice, and the topic would keep either",
                got=bytes(twice[0] or b"")[:200].decode(errors="replace"),
                hint="group by the columns of the key",
            )
        before = keys[-1].as_py()


class _RecomputedTables:
    """The tables of a recompute. skipped_records: what it returns at its end."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = cast("Generator[pa.Table, None, tuple[int, str] | None]", tables)
        self.skipped_records = SkippedRecords()

    def __iter__(self) -> Iterator[pa.Table]:
        found = yield from self._tables
        if found and found[0]:
            self.skipped_records.add_many(found[0], "the first of them", found[1])


def _write_tables(path: Path, given: Iterable[pa.Table]) -> None:
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    with pq.ParquetWriter(path, schema, compression="lz4") as writer:
        for table in given:
            writer.write_table(table.select(["key", "value"]).cast(schema))


def files_as_table(paths: Sequence[Path], *, numbered: bool = False) -> str:
    """Files of records as a table of SQL; numbered: with `filename` and a row's number in it, `file_row_number`."""
    if not paths:
        kinds = COLUMN_TYPES | ({"filename": "VARCHAR", "file_row_number": "BIGINT"} if numbered else {})
        columns = ", ".join(f"NULL::{kind} AS {name}" for name, kind in kinds.items())
        return f"(SELECT {columns} WHERE false)"
    more = ", file_row_number = true, filename = true" if numbered else ""
    return f"read_parquet([{', '.join(map(_sql_path, paths))}]{more})"


def _sql_path(path: Path) -> str:
    """A path as SQL has text."""
    return "'" + str(path).replace("'", "''") + "'"


COLUMN_TYPES = {
    "topic": "VARCHAR", "partition": "INT", '"offset"': "BIGINT", "key": "BLOB", "value": "BLOB",
    "timestamp": "TIMESTAMPTZ", "headers": "STRUCT(key VARCHAR, value BLOB)[]", "event_time": "TIMESTAMPTZ",
}  # fmt: skip


def _copy_query(connection: duckdb.DuckDBPyConnection, query: str, target: Path) -> None:
    part = target.with_suffix(".part")
    try:
        options = f"FORMAT parquet, COMPRESSION lz4_raw, ROW_GROUP_SIZE {parquet.ROW_GROUP_ROWS}"
        connection.execute(f"COPY ({query}) TO {_sql_path(part)} ({options})")
    except duckdb.OutOfMemoryException as e:
        raise BackfillError(
            "the rows do not fit on the disk", got=str(e).splitlines()[0], hint="make room, or take shorter intervals"
        ) from e
    part.replace(target)


@contextmanager
def open_duckdb(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB, which keeps on the disk what its memory does not hold."""
    with duckdb.connect(
        config={"threads": 2, "memory_limit": MEMORY_LIMIT, "temp_directory": str(folder / "spill")}
    ) as connection:
        connection.execute("SET timezone = 'UTC'")
        with _interrupt_on_signal(connection):
            yield connection


@contextmanager
def _interrupt_on_signal(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let a signal end the query too. What its handler raises ends the main thread's part of it alone, and DuckDB then
    waits for the other threads, for as long as their part of the query takes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = (signal.SIGTERM, signal.SIGINT)
    before = {number: handler for number in asked if callable(handler := signal.getsignal(number))}

    def end(number: int, frame: FrameType | None) -> None:
        connection.interrupt()
        before[signal.Signals(number)](number, frame)

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
