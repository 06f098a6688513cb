"""Whether the target holds what was to be written: counts, and hashes that no order matters to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
from confluent_kafka import Message as KafkaMessage

from penstock.archive import parquet
from penstock.archive.layout import Span, merge_spans
from penstock.archive.reader import span_difference
from penstock.backfill import transform as given
from penstock.backfill.job import BackfillJob, BackfillMarker
from penstock.backfill.writer import ROW_HEADER
from penstock.kafka.admin import admin, first_offsets
from penstock.kafka.commit_marker import stable_end_offsets
from penstock.kafka.dead_letters import open_consumer, read_range_batches
from penstock.kafka.limits import Headers, as_bytes

COLUMNS: list[tuple[str, Any]] = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("mark", pa.binary()),
    ("position", pa.int64()),
    ("partition", pa.int32()),
]
RAW_SCHEMA = pa.schema(COLUMNS)


@dataclass(frozen=True)
class VerifyResult:
    """ok: whether the target holds every row, once and unchanged; summary: in a sentence."""

    ok: bool
    summary: str


def verify_target(
    job: BackfillJob, done: BackfillMarker, path: Path, bootstrap: str, compacts: bool, told: Callable[[int], None]
) -> VerifyResult:
    """Compare the rows with what the target holds from where the first of them may lie."""
    found, parts, firsts = dict[str, Span](), dict[int, int](), dict[int, int]()
    count = 0
    with duckdb.connect() as connection:
        for table in _job_rows(connection, done, _read_target(job, done, bootstrap)):
            found = merge_spans([found, parquet.spans_of(table)])
            for p, n in zip(*(c.to_pylist() for c in table["target"].value_counts().flatten()), strict=True):
                parts[p] = parts.get(p, 0) + n
            for row in table.group_by("target").aggregate([("position", "min")]).to_pylist():
                p, at = row["target"], row["position_min"]
                firsts[p] = min(at, firsts.get(p, at))
            told(count := count + table.num_rows)
    # All records of the plan, as the archive's manifests have them, need not be hashed here once more.
    whole = job.replays and not done.after_offsets and not span_difference(done.source_spans, found)
    wanted = found if whole and count == done.rows else given.row_spans(path)
    rows = sum(span.rows for span in wanted.values())
    right = "as they are in the source" if job.replays else "as they were made"
    total = sum(span.sum for span in wanted.values()) % 2**64
    where = ", ".join(f"{job.target}[{p}] {n:,}" for p, n in sorted(parts.items())) or "none"
    # What was read may be gone by now.
    starts = first_offsets(admin(bootstrap), [(job.target, p) for p in firsts], bootstrap)
    if removed := [f"{job.target}[{p}] begins at {starts[job.target, p]}, and a row was at {at}"
                   for p, at in sorted(firsts.items()) if starts.get((job.target, p), 0) > at]:  # fmt: skip
        return VerifyResult(False, f"rows were removed from {job.target} again: {', '.join(removed)}")
    if not (why := span_difference(wanted, found)):
        return VerifyResult(True, f"{rows:,} rows, hash {total:016x}, are in {job.target} {right}: {where}")
    gone = count_replaced(done.run, path, _read_target(job, done, bootstrap)) if compacts else None
    if gone is None:
        return VerifyResult(False, f"{job.target} does not hold what the source gives: {why}")
    return VerifyResult(
        True, f"{rows:,} rows, hash {total:016x}; of {gone:,} the topic keeps a newer record of their keys, all others "
        f"are in {job.target} {right}: {where}",
    )  # fmt: skip


def _job_rows(
    connection: duckdb.DuckDBPyConnection, done: BackfillMarker, tables: Iterable[pa.Table]
) -> Iterator[pa.Table]:
    """The rows of this job in its target, in the columns of an archive; `target INT, position BIGINT`: its place."""
    for table in tables:
        connection.register("raw", table)
        yield connection.sql(
            f"""SELECT said[2] AS topic, try_cast(said[3] AS INT) AS partition,
            try_cast(said[4] AS BIGINT) AS "offset", key, value, target, position
            FROM (SELECT key, value, partition AS target, position, split(TRY(decode(mark)), '/') AS said FROM raw
            WHERE mark IS NOT NULL) WHERE said[1] = '{done.run}'"""
        ).to_arrow_table()


def count_replaced(run: str, path: Path, tables: Iterable[pa.Table]) -> int | None:
    """Of a compacted topic, how many rows are gone because a newer record has their key; None if that does not explain
    what is missing.

    tables: what the topic holds: `key BINARY, value BINARY, mark BINARY` (the header of a row), `position BIGINT` (its
    offset), `partition INT`.

    Rows are written in their order, and those of a key into one partition. So a row that is there is newer than each
    one before it, and somebody else's record than each row that lies before it; an older record explains nothing. Of a
    key whose last row is a tombstone nothing at all may be left: in time the topic forgets that too.
    """
    with given.open_duckdb(path.parent) as connection:
        connection.execute(
            "CREATE TABLE there (key BLOB, partition INT, position BIGINT, hash VARCHAR, place VARCHAR, ours BOOL)"
        )
        for table in tables:
            connection.register("raw", table)
            connection.execute(
                """INSERT INTO there
                SELECT key, partition, position, md5(value), place, coalesce(starts_with(place, ?), false)
                FROM (SELECT *, TRY(decode(mark)) AS place FROM raw)""",
                [f"{run}/"],
            )
        connection.execute(
            f"""CREATE TABLE wanted AS
            SELECT key, '{run}/' || topic || '/' || partition || '/' || "offset" AS place, md5(value) AS hash,
              value IS NULL AS removes, file_row_number AS n
            FROM {given.files_as_table([path], numbered=True)}"""
        )
        asked = connection.execute(
            """WITH own AS (
              SELECT r.key, r.n, t.partition, t.position, t.hash IS DISTINCT FROM r.hash AS changed
              FROM wanted r JOIN there t ON t.ours AND t.place = r.place
            ), others AS (
              SELECT key, partition, max(position) AS position FROM there WHERE NOT ours GROUP BY ALL
            ), newer AS (
              SELECT key, max(n) AS n FROM (
                SELECT key, n FROM own
                UNION ALL
                -- Newer than all rows before the first that lies behind it.
                SELECT o.key, coalesce(own.n, 9223372036854775807)
                FROM others o ASOF LEFT JOIN own ON o.partition = own.partition AND o.position < own.position
              ) GROUP BY key
            ), removed AS (
              SELECT key, max(n) AS n FROM wanted w WHERE removes AND NOT EXISTS (FROM there t WHERE t.key = w.key)
              GROUP BY key
            ), missing AS (
              SELECT w.n < coalesce(newer.n, -1) OR w.n <= coalesce(removed.n, -1) AS explained
              FROM wanted w ANTI JOIN own USING (n) LEFT JOIN newer ON newer.key = w.key
              LEFT JOIN removed ON removed.key = w.key
            )
            SELECT (SELECT count(*) FROM missing), (SELECT count(*) FROM missing WHERE NOT explained),
              (SELECT count(*) FROM own WHERE changed),
              (SELECT count(*) - count(DISTINCT place) FROM there WHERE ours)"""
        ).fetchone()
    assert asked is not None
    missing, unexplained, changed, twice = asked
    return None if unexplained or changed or twice or not missing else int(missing)


def _read_target(job: BackfillJob, done: BackfillMarker, bootstrap: str) -> Iterator[pa.Table]:
    """What the target holds from the first row on, up to its end as it is now."""
    places = [(job.target, p) for p in done.first_offsets]
    # A commit is answered before it can be read.
    ends = stable_end_offsets(places, bootstrap, "what was written")
    starts = first_offsets(admin(bootstrap), places, bootstrap)
    with open_consumer(bootstrap) as reader:
        for place, end in sorted(ends.items()):
            start = max(done.first_offsets[place[1]], starts.get(place, 0))
            yield from _coalesce(_to_table(taken, place[1]) for taken in read_range_batches(reader, *place, start, end))


def _to_table(taken: Sequence[KafkaMessage], partition: int) -> pa.Table:
    columns: list[Any] = [
        map(of, taken) for of in (KafkaMessage.key, KafkaMessage.value, _row_header, KafkaMessage.offset)
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, RAW_SCHEMA.types[:-1], strict=True)]
    return pa.Table.from_arrays([*arrays, pa.repeat(pa.scalar(partition, pa.int32()), len(taken))], schema=RAW_SCHEMA)


def _row_header(taken: KafkaMessage) -> bytes | None:
    """Ours is the last of its name, and written behind all others."""
    for name, value in reversed(cast("Headers", taken.headers() or [])):
        if name == ROW_HEADER and value is not None:
            return as_bytes(value)
    return None


def _coalesce(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, of many tables in one: a query for each few hundred costs more than the rows do."""
    held, rows, size = list[pa.Table](), 0, 0
    for table in tables:
        held.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= parquet.ROW_GROUP_ROWS or size >= given.BATCH_BYTES:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)
