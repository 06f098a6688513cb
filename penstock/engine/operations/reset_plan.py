"""The plan of a reset: what it would read again, what becomes of the output, and what would be incorrect.

A record's event time is taken to be at most its input's `max_ahead` later than its own timestamp. What was
removed is taken to be no newer than what the topic now removes for its age, nor than the first record that is left by
more than what the output mode allows; if it was removed by size, that is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from penstock.codec.event_time import LAST
from penstock.engine.checkpoint import offset_log
from penstock.engine.checkpoint import plan_fingerprint as plans
from penstock.engine.jvm import bridge
from penstock.engine.operations.reset import Reset
from penstock.errors import BrokerError, DeclarationError, PenstockError
from penstock.kafka.admin import (
    RetentionPolicy,
    admin,
    end_offsets,
    first_offsets,
    offsets_for_times,
    partition_counts,
    retention_of,
    topic_config,
    topic_ids,
)
from penstock.kafka.commit_marker import read_commit_marker
from penstock.kafka.replay import replayed_records
from penstock.model.output_mode import EmitChanges, EmitFinal, Stateless, millis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.checkpoint.layout import Checkpoint
    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.kafka.dead_letters import RecordLocation
    from penstock.model.output import CommitMarker
    from penstock.model.stream import Stream

Place = tuple[str, int]
ResetTarget = Literal["earliest", "latest"] | int | Mapping[Place, int]
"""Where to start: epoch ms, or offsets of some partitions; other partitions do not change."""


@dataclass(frozen=True)
class PartitionReset:
    """One partition. next: the offset that is read next without a reset; start: with it."""

    topic: str
    partition: int
    first: int
    end: int
    next: int
    start: int


@dataclass
class ResetPlan:
    """What a reset would do.

    Attributes:
        reset: The reset.
        parts: The partitions of the inputs.
        notes: What becomes of the output.
        objections: Why the output would be incorrect.
    """

    reset: Reset
    parts: list[PartitionReset]
    notes: list[str] = field(default_factory=list)
    objections: list[str] = field(default_factory=list)

    @property
    def reread(self) -> int:
        return sum(max(0, part.next - part.start) for part in self.parts)

    @property
    def skipped(self) -> int:
        return sum(max(0, part.start - part.next) for part in self.parts)


def parse_target(text: str) -> ResetTarget:
    """The target of `earliest`, `latest`, a time (UTC if it has no zone), or offsets `topic:0=120,topic:1=80`.

    Raises:
        PenstockError: the text is none of them.
    """
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        if "=" in text:
            offsets = {}
            for part in text.split(","):
                position, offset = part.split("=")
                topic, partition = position.rsplit(":", 1)
                offsets[topic.strip(), int(partition)] = int(offset)
            return offsets
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except ValueError as e:
        raise PenstockError(
            "this is not a position to start at",
            got=repr(text),
            hint="earliest, latest, a time such as 2026-01-31T12:00:00, or offsets as topic:0=120,topic:1=80",
        ) from e


def plan_reset(
    stream: Stream, spark: SparkSession, bootstrap: str, checkpoint: Checkpoint, to: ResetTarget
) -> ResetPlan:
    """Plan a reset; nothing is changed. spark: a session for the stream, which does not run."""
    counts, logs = input_logs(stream, bootstrap)
    starts = start_offsets(stream, bootstrap, logs, to)
    ids, mark, text = (
        topic_ids(admin(bootstrap), counts, bootstrap),
        read_commit_marker(stream.name, bootstrap),
        checkpoint.active_reset(),
    )
    # One that is damaged is replaced by this one.
    before = Reset.read(text) if text else None
    read = _read(checkpoint, mark, before, ids)
    parts = []
    for (t, p), (first, end) in logs.items():
        at = min(max(read.get(t, {}).get(p, 0), first), end)
        parts.append(PartitionReset(t, p, first, end, at, starts.get((t, p), at)))
    offsets: TopicOffsets = {}
    for part in parts:
        offsets.setdefault(part.topic, {})[part.partition] = part.start
    plan = ResetPlan(Reset(offsets, None, ids, emitted=_emitted(checkpoint, mark, before)), parts)
    if compacted := [topic for topic in counts if "compact" in topic_config(topic, "cleanup.policy", bootstrap)]:
        plan.objections.append(f"{', '.join(compacted)}: compaction has removed records that were read before")
    _note_replayed(stream, plan, replayed_records(bootstrap))
    removed = {topic: retention_of(topic, bootstrap) for topic in {part.topic for part in parts if part.first}}
    all_left = {part.topic for part in parts if part.first and part.start == part.first}
    by_size = sorted(
        topic for topic in all_left if removed[topic].deletes_by_size and not removed[topic].timestamps_increase
    )
    if by_size and not isinstance(stream.output_mode, Stateless):
        plan.objections.append(
            f"{', '.join(by_size)}: records were removed for their size, and nothing tells of which time they were, as "
            "timestamps need not rise"
        )
    floor = _floor(stream, bootstrap, parts, to if isinstance(to, int) else None, removed)
    _note_effects(stream, plan, _windows(stream, spark, bootstrap), floor)
    return plan


def _read(checkpoint: Checkpoint, mark: CommitMarker, before: Reset | None, ids: Mapping[str, str]) -> TopicOffsets:
    """The next offsets after what is written. before: the active reset."""
    read, _ = checkpoint.pending_offsets()
    if not checkpoint.wrote_marker(mark):
        if before is None or checkpoint.has_commits:
            return read
        reset_starts = {t: parts for t, parts in before.starts.items() if before.ids.get(t) == ids.get(t)}
        return {t: {**reset_starts.get(t, {}), **read.get(t, {})} for t in reset_starts.keys() | read.keys()}
    next_offsets: TopicOffsets = {}
    for topic, now in ids.items():
        if mark.topic_ids.get(topic, now) == now:
            in_checkpoint, in_marker = read.get(topic, {}), mark.offsets.get(topic, {})
            next_offsets[topic] = {
                p: max(in_checkpoint.get(p, 0), in_marker.get(p, 0)) for p in in_checkpoint.keys() | in_marker.keys()
            }
    return next_offsets


def _emitted(checkpoint: Checkpoint, mark: CommitMarker, before: Reset | None) -> int:
    """The latest watermark, epoch ms, of batches that are written; 0 for none."""
    plans = [plan for text in mark.plans.values() if (plan := offset_log.BatchPlan.read(text))]
    watermarks = [plan.watermark_ms for plan in plans] + ([before.emitted] if before else [])
    if not (plans and checkpoint.wrote_marker(mark)):
        watermarks.append(checkpoint.watermark())
    return max(watermarks, default=0)


def _note_replayed(stream: Stream, plan: ResetPlan, replayed: Iterable[tuple[RecordLocation, str]]) -> None:
    """Note how many records are read again that a replay has also sent to the topic. replayed: with the id of their
    topic, empty where it is not known."""
    ranges = {(part.topic, part.partition): range(part.start, part.next) for part in plan.parts}
    ids = plan.reset.ids
    origins = {origin for origin, topic_id in replayed if topic_id in ("", ids.get(origin.topic, topic_id))}
    if count := sum(origin.offset in ranges.get(origin[:2], ()) for origin in origins):
        is_idempotent = isinstance(stream.output_mode, Stateless) and all(
            output.keyed for output in stream.outputs.values()
        )
        text = f"{count:,} of the records that are read again were dead letters that were replayed"
        (plan.notes if is_idempotent else plan.objections).append(f"{text}, so each of them is in its topic twice")


def input_logs(stream: Stream, bootstrap: str) -> tuple[dict[str, int], dict[Place, tuple[int, int]]]:
    """The topics of a stream's inputs with their numbers of partitions, and each partition's first and end offset.

    Raises:
        BrokerError: A partition does not answer.
    """
    client, inputs = admin(bootstrap), stream.sources.values()
    all_counts = partition_counts(client, bootstrap)
    counts = {topic: n for topic, n in all_counts.items() if any(input_.reads_topic(topic) for input_ in inputs)}
    partitions = [(topic, p) for topic, count in counts.items() for p in range(count)]
    firsts, ends = first_offsets(client, partitions, bootstrap), end_offsets(client, partitions, bootstrap)
    if silent := sorted(set(partitions) - (firsts.keys() & ends.keys())):
        raise BrokerError("partitions do not answer", got=_format_partitions(silent), hint="try again when they do")
    return counts, {partition: (firsts[partition], ends[partition]) for partition in partitions}


def start_offsets(
    stream: Stream, bootstrap: str, logs: Mapping[Place, tuple[int, int]], to: ResetTarget
) -> dict[Place, int]:
    """The offsets to begin at, by partition. logs: the first and the end offset of each partition."""
    if to == "earliest":
        return {partition: first for partition, (first, _) in logs.items()}
    if to == "latest":
        return {partition: end for partition, (_, end) in logs.items()}
    if isinstance(to, int):
        times = {partition: max(0, to - _ahead(stream, partition[0])) for partition in logs}
        offsets = offsets_for_times(admin(bootstrap), times, bootstrap)
        return {
            partition: logs[partition][1] if at is None else max(at, logs[partition][0])
            for partition, at in offsets.items()
        }
    assert isinstance(to, Mapping)
    for partition, at in to.items():
        first, end = logs.get(partition, (0, -1))
        if not first <= at <= end:
            raise DeclarationError(
                f"stream {stream.name} cannot begin there",
                got=f"{_format_partitions([partition])}={at}",
                hint="; ".join(f"{_format_partitions([p])}={a} to {b}" for p, (a, b) in sorted(logs.items())),
            )
    return dict(to)


def _ahead(stream: Stream, topic: str) -> int:
    """How much later, in ms, the event time of a topic's records may be than their own timestamps."""
    if isinstance(stream.output_mode, Stateless):
        return 0
    ahead = (input_.max_ahead for input_ in stream.sources.values() if input_.reads_topic(topic))
    return max(millis(length) for length in ahead if length is not None)


def _floor(
    stream: Stream, bootstrap: str, parts: list[PartitionReset], at: int | None, removed: Mapping[str, RetentionPolicy]
) -> int | None:
    """The event time, epoch ms, from which on all records are read; None if all records are read.

    Args:
        stream: The stream.
        bootstrap: The broker.
        parts: The partitions of its inputs.
        at: The time asked for, epoch ms; None for offsets.
        removed: What was deleted, of topics whose records are not complete.
    """
    now = int(time.time() * 1000)
    # Records before the start; also deleted ones, where the log does not begin with its first record.
    before = {part: max(part.start, part.first + 1 if part.first else 0) for part in parts if part.start}
    if at is not None:
        before = {part: to for part, to in before.items() if part.start == part.first}
    floors = [] if at is None or not any(part.start for part in parts) else [at]
    newest = _newest_timestamps(
        bootstrap, {(p.topic, p.partition): to for p, to in before.items() if p.first < p.end}, now
    )
    for part in before:
        upto = newest.get((part.topic, part.partition), now)
        if part.first:
            # Whatever their order was.
            upto = max(upto, removed[part.topic].deleted_before or 0)
        late = millis(stream.output_mode.watermark_delay) if part.start == part.first else 0
        floors.append(upto + _ahead(stream, part.topic) + late)
    return max(floors, default=None)


def _newest_timestamps(bootstrap: str, upto: Mapping[Place, int], now: int) -> dict[Place, int]:
    """The time after the newest timestamp, epoch ms but at most now, of the records before an offset, by partition."""
    low, high = dict.fromkeys(upto, 0), dict.fromkeys(upto, now)
    while middles := {
        partition: (low[partition] + high[partition]) // 2 for partition in upto if low[partition] < high[partition]
    }:
        for partition, at in offsets_for_times(admin(bootstrap), middles, bootstrap).items():
            if at is None or at >= upto[partition]:
                high[partition] = middles[partition]
            else:
                low[partition] = middles[partition] + 1
    return high


def _windows(stream: Stream, spark: SparkSession, bootstrap: str) -> list[bridge.EventTimeWindows]:
    return bridge.event_time_windows(plans.build_frame(spark, stream, bootstrap, plans.empty_tables(stream, spark)))


def _note_effects(stream: Stream, plan: ResetPlan, windows: list[bridge.EventTimeWindows], floor: int | None) -> None:
    """Set the floor of a plan, and note what becomes of the output."""
    output_mode, unkeyed = stream.output_mode, ", ".join(o.name for o in stream.outputs.values() if not o.keyed)
    if plan.skipped:
        plan.notes.append(f"{plan.skipped:,} records are never read")
    if isinstance(output_mode, Stateless):
        if plan.reread and unkeyed:
            plan.objections.append(
                f"{plan.reread:,} records give their rows once more; {unkeyed} would hold them twice"
            )
        elif plan.reread:
            plan.notes.append("rows of records that are read again are written over themselves")
        return
    has_windows = (
        isinstance(output_mode, EmitChanges | EmitFinal) and output_mode.window_length and stream.stateful_steps == 1
    )
    if not (has_windows and windows and all(window.length == window.slide for window in windows)):
        if floor is not None:
            plan.objections.append(
                "its aggregates are not of tumbling windows, so rows would be computed of fewer records"
            )
        elif plan.reread and unkeyed:
            plan.objections.append(f"all rows come once more; {unkeyed} would hold them twice")
        return
    size, phase = millis(output_mode.window_length), millis(output_mode.window_phase)
    emitted = plan.reset.emitted
    unfinished = emitted - (emitted - phase) % size if emitted else None
    if floor is not None:
        floor += (phase - floor) % size
    if isinstance(output_mode, EmitFinal) and unkeyed and unfinished is not None:
        floor = max(floor or 0, unfinished)
    plan.reset = replace(plan.reset, floor=floor)
    if floor is not None:
        plan.notes.append(f"windows that begin before {format_time(floor)} are left as they are")
        if unfinished is not None and unfinished < floor:
            effect = "are never emitted" if isinstance(output_mode, EmitFinal) else "stay as they were when it stopped"
            plan.notes.append(f"of these, the windows that were open, from {format_time(unfinished)} on, {effect}")
    if plan.reread:
        plan.notes.append(
            "later windows are emitted again once they close, under the same keys and with all of their records"
            if isinstance(output_mode, EmitFinal) and not unkeyed
            else "windows that were emitted are not emitted again"
            if isinstance(output_mode, EmitFinal)
            else "later windows are counted anew in one batch, and written over what is there"
        )


def format_time(ms: int) -> str:
    """Format a time, epoch ms, in UTC; times after the last calendar date as that date."""
    at = datetime.fromtimestamp(min(ms, LAST // 1000) / 1000, UTC)
    return at.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _format_partitions(partitions: Iterable[Place]) -> str:
    return ", ".join(f"{topic}:{partition}" for topic, partition in partitions)
