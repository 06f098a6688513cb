"""Whether the target holds what was to be written: counts, and hashes that no order matters to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.archive import records
from penstock.archive.layout import Span, added
from penstock.archive.reading import differs
from penstock.backfill import rows as given
from penstock.backfill.job import Done, Job
from penstock.backfill.writing import HEADER
from penstock.errors import BrokerError
from penstock.kafka.admin import admin, end_offsets, first_offsets, log_ends
from penstock.kafka.letters import consumer, headers_of

# Records asked for at once, seconds that they are waited for, and after which the broker does not answer.
AT_ONCE, SHORTLY, PATIENCE = 10_000, 0.2, 60.0
COLUMNS: list[tuple[str, Any]] = [
    ("key", pa.binary()), ("value", pa.binary()), ("mark", pa.binary()), ("partition", pa.int32()),
]  # fmt: skip
RAW = pa.schema(COLUMNS)


@dataclass(frozen=True)
class Verdict:
    """right: whether the target holds every row, once and unchanged. said: in a sentence."""

    right: bool
    said: str


def verify(job: Job, done: Done, path: Path, bootstrap: str, compacts: bool, told: Callable[[int], None]) -> Verdict:
    """Compare the rows with what the target holds from where the first of them may lie."""
    wanted = given.spans(path)
    found, parts = dict[str, Span](), dict[int, int]()
    count = 0
    for table in _ours(job, done, bootstrap):
        found = added([found, records.spans_of(table)])
        for p, n in zip(*(c.to_pylist() for c in table["target"].value_counts().flatten()), strict=True):
            parts[p] = parts.get(p, 0) + n
        told(count := count + table.num_rows)
    rows = sum(span.rows for span in wanted.values())
    total = sum(span.sum for span in wanted.values()) % 2**64
    where = ", ".join(f"{job.target}[{p}] {n:,}" for p, n in sorted(parts.items())) or "none"
    if not (why := differs(wanted, found)):
        return Verdict(
            True, f"{rows:,} rows, hash {total:016x}, are in {job.target} as they are in the source: {where}"
        )
    gone = _replaced(job, done, path, bootstrap) if compacts else None
    if gone is None:
        return Verdict(False, f"{job.target} does not hold what the source gives: {why}")
    return Verdict(
        True, f"{rows:,} rows, hash {total:016x}; of {gone:,} the topic keeps a newer record of their keys, all others "
        f"are in {job.target} as they are in the source: {where}",
    )  # fmt: skip


def _ours(job: Job, done: Done, bootstrap: str) -> Iterator[pa.Table]:
    """The rows of this job in its target, in the columns of an archive; `target INT`: the target's partition."""
    with duckdb.connect() as connection:
        for table in _read(job, done, bootstrap):
            connection.register("raw", table)
            yield connection.sql(
                f"""SELECT said[2] AS topic, try_cast(said[3] AS INT) AS partition,
                try_cast(said[4] AS BIGINT) AS "offset", key, value, target
                FROM (SELECT key, value, partition AS target, split(TRY(decode(mark)), '/') AS said FROM raw
                WHERE mark IS NOT NULL) WHERE said[1] = '{done.run}'"""
            ).to_arrow_table()


def _replaced(job: Job, done: Done, path: Path, bootstrap: str) -> int | None:
    """Of a compacted topic, how many rows are gone because a newer record has their key; None if that does not explain
    what is missing."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE there (key BLOB, place VARCHAR, hash VARCHAR)")
        for table in _read(job, done, bootstrap):
            connection.register("raw", table)
            connection.execute(
                "INSERT INTO there SELECT key, CASE WHEN starts_with(TRY(decode(mark)), ?) "
                "THEN TRY(decode(mark)) END, md5(value) FROM raw",
                [f"{done.run}/"],
            )
        row = f"""SELECT key, '{done.run}/' || topic || '/' || partition || '/' || "offset" AS place,
            md5(value) AS hash FROM {given.as_table([path])}"""
        asked = connection.execute(
            f"""SELECT count(*) FILTER (t.place IS NULL), count(*) FILTER (t.place IS NULL AND newer.key IS NULL),
              count(*) FILTER (t.place IS NOT NULL AND t.hash IS DISTINCT FROM r.hash),
              (SELECT count(*) - count(DISTINCT place) FROM there WHERE place IS NOT NULL)
            FROM ({row}) r LEFT JOIN there t USING (place)
            LEFT JOIN (SELECT DISTINCT key FROM there) newer ON newer.key = r.key"""
        ).fetchone()
    assert asked is not None
    missing, unexplained, changed, twice = asked
    return None if unexplained or changed or twice or not missing else int(missing)


def _read(job: Job, done: Done, bootstrap: str) -> Iterator[pa.Table]:
    """What the target holds from the first row on, up to its end as it is now."""
    places = [(job.target, p) for p in done.first]
    ends, starts = _settled(places, bootstrap), first_offsets(admin(bootstrap), places, bootstrap)
    with consumer(bootstrap) as reader:
        for (_, p), end in sorted(ends.items()):
            begin = max(done.first[p], starts.get((job.target, p), 0))
            yield from _partition(reader, job.target, p, begin, end)


def _settled(places: list[tuple[str, int]], bootstrap: str) -> dict[tuple[str, int], int]:
    """Where each partition ends now, once all before it is decided: a commit is answered before it can be read."""
    client, deadline = admin(bootstrap), time.monotonic() + PATIENCE
    wanted = log_ends(client, places, bootstrap)
    while True:
        found = end_offsets(client, places, bootstrap)
        if len(wanted) == len(places) and all(found.get(place, -1) >= end for place, end in wanted.items()):
            return wanted
        if time.monotonic() > deadline:
            open_ = [f"{t}[{p}]" for (t, p) in places if found.get((t, p), -1) < wanted.get((t, p), 0)]
            raise BrokerError(
                "what was written cannot be read yet: a transaction that somebody has left open lies before it",
                got=", ".join(open_) or "partitions without leader",
                fix="end it (kafka-transactions.sh list, abort) and run it again: nothing is written twice",
            )
        wanted = wanted or log_ends(client, places, bootstrap)
        time.sleep(0.1)


def _partition(reader: Consumer, topic: str, partition: int, begin: int, end: int) -> Iterator[pa.Table]:
    if begin >= end:
        return
    try:
        reader.assign([TopicPartition(topic, partition, begin)])
        ended, heard = False, time.monotonic()
        while not ended:
            # It waits for as many as are asked for, however few there are.
            taken = reader.consume(AT_ONCE, SHORTLY)
            if taken:
                heard = time.monotonic()
            elif time.monotonic() > heard + PATIENCE:
                raise BrokerError(f"topic {topic} cannot be read", got=f"no answer for {PATIENCE:g} s")
            rows: list[tuple[object, object, object]] = []
            for message in taken:
                if error := message.error():
                    if error.code() == KafkaError._PARTITION_EOF:
                        ended = ended or (message.offset() or 0) >= end
                        continue
                    raise BrokerError(f"topic {topic} cannot be read", got=error)
                said = dict(headers_of(message)).get(HEADER)
                if (message.offset() or 0) < end:
                    rows.append((message.key(), message.value(), said))
                ended = ended or (message.offset() or 0) >= end - 1
            if rows:
                columns = [pa.array(column, pa.binary()) for column in zip(*rows, strict=True)]
                yield pa.Table.from_arrays(
                    [*columns, pa.repeat(pa.scalar(partition, pa.int32()), len(rows))], schema=RAW
                )
    except KafkaException as e:
        raise BrokerError(f"topic {topic} cannot be read", got=e.args[0]) from e
