"""Which records the state of a stream is made of: how far behind the watermark their event times may be.

A window that is open at watermark W ends after W, so its records are later than W minus its length. A stream-stream
join keeps a row for as long as a partner may follow. A fold says it by its `input_retention`. Sessions, timers and
other state may go back for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.checkpoint.offset_log import by_topic
from penstock.engine.jvm import bridge
from penstock.engine.operations.rebuild_from_inputs import incomplete_partitions
from penstock.engine.operations.reset_plan import format_time, input_logs, start_offsets
from penstock.errors import DeclarationError
from penstock.kafka.admin import admin, topic_ids
from penstock.model.output_mode import EmitChanges, EmitFinal, StreamJoin, millis

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame

    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.jvm.bridge import EventTimeWindows
    from penstock.engine.replacement.input_archive import InputArchive
    from penstock.kafka.commit_marker import TopicAndPartition
    from penstock.model.fold import Fold
    from penstock.model.stream import Stream

COMPARED_RECORDS = 10_000
"""Records of each partition that a stream without state reads again, to compare its rows."""


def state_retention_ms(stream: Stream, frame: DataFrame, folds: Collection[Fold]) -> int | None:
    """How far behind the watermark the records may be that a stream's state is made of, ms.

    Args:
        stream: The stream.
        frame: What its transform returns.
        folds: The folds of its transform.

    Returns:
        0 for a stream without state, None if there is no limit.
    """
    mode = stream.output_mode
    if not stream.stateful_steps:
        return 0
    if folds:
        retentions = [fold.input_retention for fold in folds]
        limited = [millis(one) for one in retentions if one is not None]
        return sum(limited) if len(limited) == len(retentions) else None
    if isinstance(mode, StreamJoin):
        return millis(mode.within)
    lengths = [millis(window.length) for window in bridge.event_time_windows(frame)]
    if isinstance(mode, EmitFinal | EmitChanges) and lengths:
        # Deduplication before the windows keeps a record for `first_step`.
        return max(lengths) + millis(mode.record_retention)
    return None


@dataclass(frozen=True)
class BuildStart:
    """Where a new version begins to read.

    Attributes:
        starts: The first offsets.
        ids: The ids of the topics.
        complete_at: Watermark, epoch ms, from which on the state lacks no record; 0 if it is complete once the
            backlog is read.
        since: Epoch ms: every record of this time or later is read; None for all that the topics hold.
        records: How many records there are from there to the ends of the topics.
        floor: Epoch ms: records of windows that begin before are not read, as those windows would be upserted without
            all of their records. None for no such windows.
    """

    starts: TopicOffsets
    ids: Mapping[str, str]
    complete_at: int
    since: int | None
    records: int
    floor: int | None = None


def build_start(
    stream: Stream,
    bootstrap: str,
    retention_ms: int | None,
    watermark_ms: int,
    since: int | None = None,
    windows: Collection[EventTimeWindows] = (),
    archive: InputArchive | None = None,
) -> BuildStart:
    """Where a new version of a stream begins to read.

    By default it begins twice its retention before the watermark, so that there are rows to compare.

    Args:
        stream: The new version.
        bootstrap: The broker.
        retention_ms: As `state_retention_ms` says.
        watermark_ms: The watermark of the running version, epoch ms; 0 for none.
        since: Epoch ms to begin at, if its state needs no record before; None for the default.
        windows: The windows of its plan.
        archive: Of its input.

    Raises:
        DeclarationError: The state may be of records that were deleted, or there is nothing to read.
    """
    counts, logs = input_logs(stream, bootstrap)
    ids = topic_ids(admin(bootstrap), counts, bootstrap)
    archived = archive.partitions(ids, logs) if archive else set()
    if not archived and not any(first < end for first, end in logs.values()):
        raise DeclarationError(
            f"the inputs of stream {stream.name} have no record, so there is no state to build",
            got=", ".join(sorted(counts)) or "no topic",
            hint=f"stop it, `penstock streams reset {stream.name} --to earliest`, and release its app",
        )
    if since is None and retention_ms != 0:
        since = _since(stream, bootstrap, logs, retention_ms, watermark_ms, archived)
    starts = (
        {place: max(first, end - COMPARED_RECORDS) for place, (first, end) in logs.items()}
        if since is None and retention_ms == 0
        else start_offsets(stream, bootstrap, logs, "earliest" if since is None else since)
    )
    if archive and archived and retention_ms != 0:
        lacking = archived.intersection(_incomplete(stream, bootstrap, logs, since))
        starts.update({place: min(starts[place], archive.first_offset(place, since)) for place in lacking})
    complete_at = 0 if since is None or retention_ms is None else since + retention_ms
    if all(start >= logs[place][1] for place, start in starts.items()):
        # Spark plans no first batch without a record.
        place = max(logs, key=lambda one: logs[one][1] - logs[one][0])
        starts = {**starts, place: logs[place][1] - 1}
    records = sum(max(0, logs[place][1] - start) for place, start in starts.items())
    floor = None
    if since is not None and isinstance(stream.output_mode, EmitChanges):
        floor = complete_at = _first_whole_window(stream, windows, since)
    return BuildStart(by_topic(starts), ids, complete_at, since, records, floor)


def _first_whole_window(stream: Stream, windows: Collection[EventTimeWindows], since: int) -> int:
    """When the first window begins of which all records are read, epoch ms."""
    if any(window.length != window.slide for window in windows):
        raise DeclarationError(
            f"stream {stream.name} updates windows that overlap, and its inputs do not hold all that they ever "
            "held, so some windows would be written with a part of their records",
            got=f"records since {format_time(since)}",
            hint="let it emit each window once, with EmitFinal; or start it anew: `penstock streams reset "
            f"{stream.name} --to TIME`",
        )
    length, phase = millis(stream.output_mode.window_length), millis(stream.output_mode.window_phase)
    return since + (phase - since) % length


def _since(
    stream: Stream,
    bootstrap: str,
    logs: Mapping[TopicAndPartition, tuple[int, int]],
    retention_ms: int | None,
    watermark_ms: int,
    archived: Collection[TopicAndPartition],
) -> int | None:
    """The time, epoch ms, from which on all records are read; None for all that there ever were."""
    if retention_ms is None or not watermark_ms:
        candidates: list[int | None] = [None]
    else:
        candidates = [max(0, watermark_ms - 2 * retention_ms), max(0, watermark_ms - retention_ms)]
    for since in candidates:
        incomplete = sorted(_incomplete(stream, bootstrap, logs, since) - set(archived))
        if not incomplete:
            return since
    topic, partition = incomplete[0]
    needed = f"records since {format_time(since)}" if since else "all records, as nothing says how long one stays in it"
    raise DeclarationError(
        f"the inputs of stream {stream.name} do not hold all that its state is made of: {needed}",
        got=f"{topic}[{partition}] begins at offset {logs[topic, partition][0]}",
        hint="give --from TIME if its state needs no record before; for a fold, declare input_retention; and keep the "
        "records for longer, for the next time",
    )


def _incomplete(
    stream: Stream, bootstrap: str, logs: Mapping[TopicAndPartition, tuple[int, int]], since: int | None
) -> set[TopicAndPartition]:
    """The partitions that may have lost records of this time, epoch ms, or later; None for records of any time."""
    firsts = {place: first for place, (first, _) in logs.items()}
    read = by_topic({place: end for place, (_, end) in logs.items()})
    return set(incomplete_partitions(stream, bootstrap, firsts, read, since or 0))
