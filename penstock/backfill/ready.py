"""Whether a backfill may write to its target: what the topic is, and whether a stream still writes the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from penstock.backfill.job import Job, minute, ms
from penstock.declare.stream import Stream
from penstock.errors import BackfillError, NotYet
from penstock.kafka.admin import admin, partitions, setting, topic_ids

Watermarks = Callable[[], Mapping[str, int | None]]
"""The watermark of each stream that has run, epoch ms; None where it has told none."""


class Target(NamedTuple):
    """compacts: whether it is cleaned of older records of a key. id: the broker's."""

    compacts: bool
    id: str


def target_of(job: Job, bootstrap: str) -> Target:
    """BackfillError if there is no such topic, or it would not keep what it is given."""
    archived = job.archive.reads[0].name if job.archive else ""
    if job.target == archived or job.target.startswith("penstock."):
        raise BackfillError(
            f"backfill {job.name}: it would be read again, or taken for Penstock's own", got=job.target,
            fix="take another topic: --target",
        )  # fmt: skip
    client = admin(bootstrap)
    if job.target not in partitions(client, bootstrap):
        raise BackfillError(
            f"backfill {job.name}: there is no topic {job.target}", fix="create it: penstock topics --apply"
        )
    cleanup, kept = (setting(job.target, name, bootstrap) for name in ("cleanup.policy", "retention.ms"))
    found = Target("compact" in cleanup, topic_ids(client, [job.target], bootstrap).get(job.target, ""))
    if not (job.replays and job.timestamps == "original"):
        return found
    age = time.time() * 1000 - (ms(job.begin) if job.begin else 0)
    if "delete" in cleanup and int(kept) >= 0 and age > int(kept):
        raise BackfillError(
            f"backfill {job.name}: topic {job.target} would delete records as old as these at once",
            got=f"retention.ms={kept}, and records of {age / 86_400_000:,.1f} days ago",
            fix="raise its retention, or give them the time of now, if their event time is in their value: "
            "--timestamps now",
        )
    return found


def settled(job: Job, watermarks: Watermarks) -> None:
    """NotYet if a stream may still write the windows that are to be computed again."""
    if not isinstance(job.backfill.target, Stream) or job.unclosed:
        return
    delay = sum((one.promise.delay for one in (*job.backfill.through, job.backfill.target)), timedelta(0))
    if job.end + delay > datetime.now(UTC):
        raise NotYet(
            f"backfill {job.name}: stream {job.backfill.target.name} may still write windows of the interval",
            got=f"it ends at {job.end:%Y-%m-%dT%H:%M}, and records may come {delay} later",
            fix="wait so long, or let it end earlier",
        )
    # Who is behind, or was stopped, still writes them when it goes on.
    name, known = job.backfill.target.name, watermarks()
    at = known.get(name)
    if name in known and (at is None or at < ms(job.end)):
        come = "not known" if at is None else minute(datetime.fromtimestamp(at / 1000, UTC))
        raise NotYet(
            f"backfill {job.name}: stream {name} may still write windows of the interval over what is computed",
            got=f"its watermark is {come}, and the interval ends at {minute(job.end)}",
            fix=f"wait until it has come so far: penstock streams show {name}; or, if it is not to run again, take "
            "what is there: --unclosed",
        )
