"""Checks whether a backfill may write to its target: the topic's settings, streams that write to it, and what was
written before."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backfill.job import BackfillJob, BackfillMarker, epoch_ms, utc_text
from penstock.backfill.transform import MAX_MICROS, count_up_to, read_rows
from penstock.errors import BackfillError, InputNotReady
from penstock.kafka.admin import admin, partition_counts, topic_configs, topic_ids
from penstock.model.stream import Stream

Watermarks = Callable[[], Mapping[str, int | None]]
"""Returns the watermark of each stream that has run, in epoch ms; None if it has reported none."""
# Seconds for which readers can read the oldest row.
MIN_RETENTION = 3600.0
# Bytes of a record in the log beside its key, value and headers, with the header of the row.
RECORD_LOG_BYTES = 90


class TargetTopic(NamedTuple):
    """The target topic.

    Attributes:
        compacted: whether it is compacted.
        id: the broker's topic id.
        settings: as the broker has them.
    """

    compacted: bool
    id: str
    settings: Mapping[str, str]


def check_new_records(
    job: BackfillJob, previous: BackfillMarker, ids: Mapping[str, str], files: Sequence[Path]
) -> None:
    """Refuse to copy the records behind those that an earlier run has copied, if they are not all that is new.

    Args:
        job: The job.
        previous: The marker of that run.
        ids: The present ids of the archived topics.
        files: All records of the interval.

    Raises:
        BackfillError: The topic was recreated, or the archive got earlier records since, as by `take-over`.
    """
    if changed := {topic for topic, topic_id in previous.topic_ids.items() if ids.get(topic, topic_id) != topic_id}:
        raise BackfillError(
            f"backfill {job.name}: the archived topic was recreated since this interval was written",
            got=", ".join(sorted(changed)),
            hint="old and new records cannot be told apart; to write all of them once more: --again",
        )
    spans = previous.source_spans
    counts = count_up_to(files, {partition: span.last for partition, span in spans.items()})
    if added := {partition: more for partition, n in sorted(counts.items()) if (more := n - spans[partition].rows) > 0}:
        raise BackfillError(
            f"backfill {job.name}: the archive has earlier records than when this interval was written",
            got=", ".join(f"{count:,} of {partition}" for partition, count in added.items()),
            hint="they cannot be put before those that were written; to write all of them once more: --again",
        )


def read_target(job: BackfillJob, bootstrap: str) -> TargetTopic:
    """Read the target topic; BackfillError if it does not exist or must not be written."""
    archived = job.archive.reads[0].name if job.archive else ""
    if job.target == archived or job.target.startswith("penstock."):
        raise BackfillError(
            f"backfill {job.name}: it cannot write to the archived topic or to a topic of Penstock", got=job.target,
            hint="choose another topic: --target",
        )  # fmt: skip
    client = admin(bootstrap)
    if job.target not in partition_counts(client, bootstrap):
        raise BackfillError(
            f"backfill {job.name}: there is no topic {job.target}",
            hint="declare it, then penstock topics --apply",
        )
    if not (config := topic_configs([job.target], bootstrap).get(job.target, {})):
        raise BackfillError(
            f"backfill {job.name}: the settings of topic {job.target} cannot be read",
            hint="allow Penstock in the broker's ACLs to describe its configuration",
        )
    cleanup, ids = config.get("cleanup.policy", ""), topic_ids(client, [job.target], bootstrap)
    return TargetTopic("compact" in cleanup, ids.get(job.target, ""), config)


class RowExtent(NamedTuple):
    """Size and time range of rows.

    Attributes:
        size: bytes, uncompressed.
        first: smallest timestamp, epoch ms; None if no row has one.
        last: greatest timestamp.
    """

    size: int
    first: int | None = None
    last: int | None = None


def row_extent(path: Path, skip: int, *, stamped: bool) -> RowExtent:
    """Size and time range of rows, without the first `skip`; `stamped`: whether they keep their timestamps."""
    size, times = 0, list[int]()
    for rows in read_rows(path, skip):
        size += rows.select(["key", "value", "headers"]).nbytes + RECORD_LOG_BYTES * rows.num_rows
        micros: Any = rows["timestamp"].cast(pa.int64())
        # Rows without a timestamp, or with 0, get the present time.
        bounds: Any = pc.min_max(micros.filter(pc.greater(micros, pa.scalar(0)))).as_py()
        times += [bound // 1000 for bound in bounds.values() if bound is not None]
    return RowExtent(size, min(times), max(times)) if stamped and times else RowExtent(size)


def check_retention(job: BackfillJob, target: TargetTopic, rows: RowExtent) -> None:
    """Raises BackfillError if the target would reject rows, or delete them at once.

    The broker decides by record timestamps and sizes, not by event times.
    """
    config, deletes = target.settings, "delete" in target.settings.get("cleanup.policy", "")
    size, label = int(config.get("retention.bytes", -1)), f"backfill {job.name}: topic {job.target}"
    if deletes and 0 <= size < rows.size:
        raise BackfillError(
            f"{label} would delete some of the rows as soon as all are written",
            got=f"retention.bytes={size:,} of a partition, and {rows.size:,} bytes of rows, which may lie in one",
            hint="raise its retention.bytes, or take shorter intervals",
        )
    retention_ms = int(config.get("retention.ms", -1))
    if rows.size and deletes and 0 <= retention_ms < MIN_RETENTION * 1000:
        raise BackfillError(
            f"{label} would delete any record within the hour",
            got=f"retention.ms={retention_ms}",
            hint="raise its retention.ms to an hour at least",
        )
    if rows.first is None or rows.last is None or config.get("message.timestamp.type") == "LogAppendTime":
        return
    now, problem = time.time() * 1000, ""
    age = now - rows.first
    if deletes and 0 <= retention_ms < age + MIN_RETENTION * 1000:
        problem = "would delete records as old as these at once, or within the hour"
        got = f"retention.ms={retention_ms}, and a record of {age / 86_400_000:,.1f} days ago by its own timestamp"
    elif age > (limit := int(config.get("message.timestamp.before.max.ms", MAX_MICROS))):
        problem, got = "takes no records as old as these", f"message.timestamp.before.max.ms={limit}, and {age:,.0f} ms"
    elif rows.last - now > (limit := int(config.get("message.timestamp.after.max.ms", MAX_MICROS))):
        problem = "takes no records that are stamped so far ahead"
        got = f"message.timestamp.after.max.ms={limit}, and {rows.last - now:,.0f} ms"
    if problem:
        raise BackfillError(
            f"{label} {problem}",
            got=got,
            hint="change that setting of the topic, or give them the time of now, if their event time is in their "
            "value: --timestamps now",
        )


def check_watermark(job: BackfillJob, watermarks: Watermarks) -> None:
    """Raises InputNotReady if a stream may still write the windows that are to be recomputed."""
    if not isinstance(job.backfill.target, Stream) or job.unclosed:
        return
    delay = sum(
        (stream.output_mode.watermark_delay for stream in (*job.backfill.via, job.backfill.target)), timedelta(0)
    )
    if job.end > datetime.now(UTC) - delay:
        raise InputNotReady(
            f"backfill {job.name}: stream {job.backfill.target.name} may still write windows of the interval",
            got=f"it ends at {job.end:%Y-%m-%dT%H:%M}, and records may come {delay} later",
            hint="wait so long, or let it end earlier",
        )
    # A stream that lags or is stopped writes them when it continues.
    name, by_stream = job.backfill.target.name, watermarks()
    watermark = by_stream.get(name)
    if name in by_stream and (watermark is None or watermark < epoch_ms(job.end)):
        watermark_text = "not known" if watermark is None else utc_text(datetime.fromtimestamp(watermark / 1000, UTC))
        raise InputNotReady(
            f"backfill {job.name}: stream {name} may still write windows of the interval over what is computed",
            got=f"its watermark is {watermark_text}, and the interval ends at {utc_text(job.end)}",
            hint=f"wait until it has come so far: penstock streams show {name}; or, if it is not to run again, take "
            "what is there: --unclosed",
        )
