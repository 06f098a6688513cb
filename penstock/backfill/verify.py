"""Verifies that the target has the written rows, by counts and hashes that do not depend on order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
from confluent_kafka import Message as KafkaMessage

from penstock.archive import records
from penstock.archive.state import Span, merge_spans, span_difference
from penstock.backfill import transform as given
from penstock.backfill.job import BackfillJob, BackfillMarker
from penstock.backfill.writer import ROW_HEADER
from penstock.kafka.admin import admin, first_offsets, partition_counts
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
    """The result: `ok` if the target has every row once and unchanged; `summary` as a sentence."""

    ok: bool
    summary: str


def verify_target(
    job: BackfillJob,
    marker: BackfillMarker,
    path: Path,
    bootstrap: str,
    compacts: bool,
    on_progress: Callable[[int], None],
) -> VerifyResult:
    """Compare the rows with the records of the target, from the first offset at which a row may be."""
    written, counts, firsts = dict[str, Span](), dict[int, int](), dict[int, int]()
    count = 0
    with duckdb.connect() as connection:
        for table in _job_rows(connection, marker, _read_target(job, marker, bootstrap)):
            written = merge_spans([written, records.spans_of(table)])
            for p, n in zip(*(c.to_pylist() for c in table["target"].value_counts().flatten()), strict=True):
                counts[p] = counts.get(p, 0) + n
            for row in table.group_by("target").aggregate([("position", "min")]).to_pylist():
                p, position = row["target"], row["position_min"]
                firsts[p] = min(position, firsts.get(p, position))
            on_progress(count := count + table.num_rows)
    # If they equal the archive's manifests, the rows need not be hashed again.
    matches_source = job.replays and not marker.after_offsets and not span_difference(marker.source_spans, written)
    expected = written if matches_source and count == marker.rows else given.row_spans(path)
    rows = sum(span.rows for span in expected.values())
    condition = "as they are in the source" if job.replays else "as they were made"
    total = sum(span.sum for span in expected.values()) % 2**64
    counts_text = ", ".join(f"{job.target}[{p}] {n:,}" for p, n in sorted(counts.items())) or "none"
    # Records that were read may be deleted by now.
    starts = first_offsets(admin(bootstrap), [(job.target, p) for p in firsts], bootstrap)
    if lost := [f"{job.target}[{p}] begins at {starts[job.target, p]}, and a row was at {position}"
                   for p, position in sorted(firsts.items()) if starts.get((job.target, p), 0) > position]:  # fmt: skip
        return VerifyResult(False, f"rows were removed from {job.target} again: {', '.join(lost)}")
    if not (difference := span_difference(expected, written)):
        return VerifyResult(True, f"{rows:,} rows, hash {total:016x}, are in {job.target} {condition}: {counts_text}")
    replaced = count_replaced(marker.run, path, _read_target(job, marker, bootstrap)) if compacts else None
    if replaced is None:
        return VerifyResult(False, f"{job.target} does not hold what the source gives: {difference}")
    return VerifyResult(
        True, f"{rows:,} rows, hash {total:016x}; of {replaced:,} the topic keeps a newer record of their keys, "
        f"all others are in {job.target} {condition}: {counts_text}",
    )  # fmt: skip


def _job_rows(
    connection: duckdb.DuckDBPyConnection, marker: BackfillMarker, tables: Iterable[pa.Table]
) -> Iterator[pa.Table]:
    """The rows of this job in the target, in columns of an archive, with their partition and offset there."""
    for table in tables:
        connection.register("raw", table)
        yield connection.sql(
            f"""SELECT said[2] AS topic, try_cast(said[3] AS INT) AS partition,
            try_cast(said[4] AS BIGINT) AS "offset", key, value, target, position
            FROM (SELECT key, value, partition AS target, position, split(TRY(decode(mark)), '/') AS said FROM raw
            WHERE mark IS NOT NULL) WHERE said[1] = '{marker.run}'"""
        ).to_arrow_table()


def count_replaced(run: str, path: Path, tables: Iterable[pa.Table]) -> int | None:
    """Count the rows of a compacted topic that a newer record of their key has replaced.

    Rows are written in order, and those of a key into one partition. So a row in the topic is newer than all rows of
    its key before it, and a record of another writer is newer than the rows at smaller offsets. If the last row of a
    key is a tombstone, the topic may have no record of it at all.

    Args:
        run: The id of the run in the headers of its rows.
        path: The file of rows.
        tables: The records of the topic: `key BINARY, value BINARY, mark BINARY` (the header of a row), `position
            BIGINT` (its offset), `partition INT`.

    Returns:
        The number; None if it does not explain all missing rows.
    """
    with given.open_duckdb(path.parent) as connection:
        connection.execute(
            "CREATE TABLE there (key BLOB, partition INT, position BIGINT, hash VARCHAR, place VARCHAR, ours BOOL)"
        )
        for table in tables:
            connection.register("raw", table)
            connection.execute(
                """INSERT INTO there
                SELECT key, partition, position, coalesce(md5(value), ''), place, coalesce(starts_with(place, ?), false)
                FROM (SELECT *, TRY(decode(mark)) AS place FROM raw)""",
                [f"{run}/"],
            )
        connection.execute(
            f"""CREATE TABLE wanted AS
            SELECT key, '{run}/' || topic || '/' || partition || '/' || "offset" AS place,
              coalesce(md5(value), '') AS hash, value IS NULL AS removes, file_row_number AS n
            FROM {given.files_as_table([path], numbered=True)}"""
        )
        counts = connection.execute(
            """WITH own AS (
              -- Of an archived topic that was recreated, two records may have one place.
              SELECT r.key, r.n, t.partition, t.position
              FROM wanted r JOIN there t ON t.ours AND t.place = r.place AND t.key = r.key AND t.hash = r.hash
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
            ), unexpected AS (
              -- Changed rows, and rows that are there more often than they were written.
              SELECT place, key, hash FROM there WHERE ours EXCEPT ALL SELECT place, key, hash FROM wanted
            )
            SELECT (SELECT count(*) FROM missing), (SELECT count(*) FROM missing WHERE NOT explained),
              (SELECT count(*) FROM unexpected)"""
        ).fetchone()
    assert counts is not None
    missing, unexplained, unexpected = counts
    return None if unexplained or unexpected or not missing else int(missing)


def _read_target(job: BackfillJob, marker: BackfillMarker, bootstrap: str) -> Iterator[pa.Table]:
    """Read the target from the first possible row to its present end."""
    # Partitions that it got since hold rows from their first record on.
    count = partition_counts(admin(bootstrap), bootstrap).get(job.target, 0)
    partitions = [(job.target, p) for p in {*marker.first_offsets, *range(count)}]
    # A commit is acknowledged before its records are readable.
    ends = stable_end_offsets(partitions, bootstrap, "the target")
    starts = first_offsets(admin(bootstrap), partitions, bootstrap)
    with open_consumer(bootstrap) as reader:
        for partition, end in sorted(ends.items()):
            start = max(marker.first_offsets.get(partition[1], 0), starts.get(partition, 0))
            yield from _coalesce(
                _to_table(messages, partition[1]) for messages in read_range_batches(reader, *partition, start, end)
            )


def _to_table(messages: Sequence[KafkaMessage], partition: int) -> pa.Table:
    columns: list[Any] = [
        map(getter, messages) for getter in (KafkaMessage.key, KafkaMessage.value, _row_header, KafkaMessage.offset)
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, RAW_SCHEMA.types[:-1], strict=True)]
    return pa.Table.from_arrays(
        [*arrays, pa.repeat(pa.scalar(partition, pa.int32()), len(messages))], schema=RAW_SCHEMA
    )


def _row_header(message: KafkaMessage) -> bytes | None:
    """The last header of its name; the record's own ones come before it."""
    for name, value in reversed(cast("Headers", message.headers() or [])):
        if name == ROW_HEADER and value is not None:
            return as_bytes(value)
    return None


def _coalesce(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, of many tables in one: a query for each few hundred costs more than the rows do."""
    held, rows, size = list[pa.Table](), 0, 0
    for table in tables:
        held.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= records.ROW_GROUP_ROWS or size >= given.BATCH_BYTES:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)
