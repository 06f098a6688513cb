"""Whether a backfill may write to its target: what the topic is, and whether a stream still writes the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backfill.job import BackfillJob, epoch_ms, utc_text
from penstock.backfill.transform import MAX_MICROS, read_rows
from penstock.errors import BackfillError, InputNotReady
from penstock.kafka.admin import admin, partition_counts, topic_configs, topic_ids
from penstock.model.stream import Stream

Watermarks = Callable[[], Mapping[str, int | None]]
"""The watermark of each stream that has run, epoch ms; None where it has told none."""
# Seconds for which the oldest row stays at least, for its readers.
MIN_RETENTION = 3600.0
# Bytes that a record takes in a log beside its key, value and headers, with the header that says which row it is.
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


def read_target(job: BackfillJob, bootstrap: str) -> TargetTopic:
    """BackfillError if there is no such topic, or it is none to write to."""
    archived = job.archive.reads[0].name if job.archive else ""
    if job.target == archived or job.target.startswith("penstock."):
        raise BackfillError(
            f"backfill {job.name}: it would be read again, or taken for Penstock's own", got=job.target,
            hint="take another topic: --target",
        )  # fmt: skip
    client = admin(bootstrap)
    if job.target not in partition_counts(client, bootstrap):
        raise BackfillError(
            f"backfill {job.name}: there is no topic {job.target}", hint="create it: penstock topics --apply"
        )
    if not (found := topic_configs([job.target], bootstrap).get(job.target, {})):
        raise BackfillError(
            f"backfill {job.name}: the settings of topic {job.target} are not told, so nobody knows what it keeps",
            hint="let the broker's ACLs allow Penstock to describe its configuration",
        )
    cleanup, known = found.get("cleanup.policy", ""), topic_ids(client, [job.target], bootstrap)
    return TargetTopic("compact" in cleanup, known.get(job.target, ""), found)


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
    """How large rows are, without the first of them, and from when. stamped: whether they keep their timestamps."""
    size, times = 0, list[int]()
    for rows in read_rows(path, skip):
        size += rows.select(["key", "value", "headers"]).nbytes + RECORD_LOG_BYTES * rows.num_rows
        micros: Any = rows["timestamp"].cast(pa.int64())
        # What has none, or 0, gets the time of now.
        bounds: Any = pc.min_max(micros.filter(pc.greater(micros, pa.scalar(0)))).as_py()
        times += [at // 1000 for at in bounds.values() if at is not None]
    return RowExtent(size, min(times), max(times)) if stamped and times else RowExtent(size)


def check_retention(job: BackfillJob, target: TargetTopic, rows: RowExtent) -> None:
    """Raises BackfillError if the target would reject rows, or delete them at once.

    The broker decides by record timestamps and sizes, not by event times.
    """
    config, deletes = target.settings, "delete" in target.settings.get("cleanup.policy", "")
    size, what = int(config.get("retention.bytes", -1)), f"backfill {job.name}: topic {job.target}"
    if deletes and 0 <= size < rows.size:
        raise BackfillError(
            f"{what} would delete some of the rows as soon as all are written",
            got=f"retention.bytes={size:,} of a partition, and {rows.size:,} bytes of rows, which may lie in one",
            hint="raise its retention.bytes, or take shorter intervals",
        )
    if rows.first is None or rows.last is None or config.get("message.timestamp.type") == "LogAppendTime":
        return
    now, wrong = time.time() * 1000, ""
    age, kept = now - rows.first, int(config.get("retention.ms", -1))
    if deletes and 0 <= kept < age + MIN_RETENTION * 1000:
        wrong = "would delete records as old as these at once, or within the hour"
        got = f"retention.ms={kept}, and a record of {age / 86_400_000:,.1f} days ago by its own timestamp"
    elif age > (most := int(config.get("message.timestamp.before.max.ms", MAX_MICROS))):
        wrong, got = "takes no records as old as these", f"message.timestamp.before.max.ms={most}, and {age:,.0f} ms"
    elif rows.last - now > (most := int(config.get("message.timestamp.after.max.ms", MAX_MICROS))):
        wrong = "takes no records that are stamped so far ahead"
        got = f"message.timestamp.after.max.ms={most}, and {rows.last - now:,.0f} ms"
    if wrong:
        raise BackfillError(
            f"{what} {wrong}",
            got=got,
            hint="change that setting of the topic, or give them the time of now, if their event time is in their "
            "value: --timestamps now",
        )


def check_watermark(job: BackfillJob, watermarks: Watermarks) -> None:
    """Raises InputNotReady if a stream may still write the windows that are to be recomputed."""
    if not isinstance(job.backfill.target, Stream) or job.unclosed:
        return
    delay = sum((one.output_mode.watermark_delay for one in (*job.backfill.via, job.backfill.target)), timedelta(0))
    if job.end > datetime.now(UTC) - delay:
        raise InputNotReady(
            f"backfill {job.name}: stream {job.backfill.target.name} may still write windows of the interval",
            got=f"it ends at {job.end:%Y-%m-%dT%H:%M}, and records may come {delay} later",
            hint="wait so long, or let it end earlier",
        )
    # Who is behind, or was stopped, still writes them when it goes on.
    name, known = job.backfill.target.name, watermarks()
    at = known.get(name)
    if name in known and (at is None or at < epoch_ms(job.end)):
        come = "not known" if at is None else utc_text(datetime.fromtimestamp(at / 1000, UTC))
        raise InputNotReady(
            f"backfill {job.name}: stream {name} may still write windows of the interval over what is computed",
            got=f"its watermark is {come}, and the interval ends at {utc_text(job.end)}",
            hint=f"wait until it has come so far: penstock streams show {name}; or, if it is not to run again, take "
            "what is there: --unclosed",
        )
