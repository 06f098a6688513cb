"""Reset of a stream: it starts again from other offsets, and its output stays correct.

A pending reset is a file in a folder next to the checkpoint, written while the stream is stopped. The next start
activates it: the checkpoint is moved to `<stream>.before`, and the folder takes its place. If the driver dies in
between, the next start completes it.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import Blocked
from penstock.kafka.admin import admin, topic_ids

if TYPE_CHECKING:
    from penstock.engine.checkpoint.layout import Checkpoint
    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.model.output import CommitMarker

log = logging.getLogger(__name__)

RESETS_KEPT = 10


@dataclass(frozen=True)
class Reset:
    """A reset, as it is kept in the checkpoint.

    Attributes:
        starts: The first offsets to read; other partitions are read from their first record.
        floor: Epoch ms at which a window begins. Windows that begin before are not written, as some of their records
            may not be read again.
        ids: The ids of the topics that the offsets are of.
        processed: Records of offsets below these were processed before.
        ready: Whether `processed` is known.
        emitted: Epoch ms; final windows that end by then were emitted before.
        rebuilt: Whether the folder holds a rebuilt state, so that nothing is read again.
        continues: Query and batch of the marker that a new version of the stream goes on after; None for no new
            version.
        cut_batch: Number of the batch that also writes what the new version's rows differ in; None for none.
        cut_watermark: Watermark, epoch ms, that this batch moves to, though it reads no record: that which the records
            before it allow.
        id: Distinguishes it from other resets.
        earlier: Those before it, for commit markers.
    """

    starts: TopicOffsets
    floor: int | None = None
    ids: Mapping[str, str] = field(default_factory=dict)
    processed: TopicOffsets = field(default_factory=dict)
    ready: bool = False
    emitted: int = 0
    rebuilt: bool = False
    continues: tuple[str, int] | None = None
    cut_batch: int | None = None
    cut_watermark: int = 0
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    earlier: Sequence[tuple[str, int | None, int]] = ()

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Reset:
        fields = json.loads(text)
        fields |= {name: _ends(fields[name]) for name in ("starts", "processed")}
        if continues := fields.get("continues"):
            fields["continues"] = tuple(continues)
        return cls(**fields | {"earlier": tuple(map(tuple, fields.get("earlier", ())))})

    def of(self, ids: Mapping[str, str]) -> Reset:
        """The reset of the present topics, without offsets of those that were recreated since. ids: the present ids."""
        starts, below = (
            {t: p for t, p in of.items() if ids.get(t) == self.ids.get(t)} for of in (self.starts, self.processed)
        )
        now = {t: ids[t] for t in self.ids if t in ids}
        return replace(self, starts=starts, processed=below, ids=now)

    @property
    def recomputes(self) -> tuple[str, int | None]:
        """Its id and floor, for commit markers; of a rebuilt state none, because nothing is computed again."""
        return ("", None) if self.rebuilt else (self.id, self.floor)

    def was_processed(self, record: Mapping[str, Any]) -> bool:
        """Whether a record was processed before the reset."""
        return bool(record["offset"] < self.processed.get(record["topic"], {}).get(record["partition"], 0))


def activate_reset(checkpoint: Checkpoint, mark: CommitMarker) -> Reset | None:
    """Activate the pending reset, if there is one; the active reset then. The query must not run.

    Args:
        checkpoint: The checkpoint.
        mark: The marker of the last batch that is written.
    """
    if (text := checkpoint.pending_reset()) is not None:
        waiting = _parse(text, f"{checkpoint.path}.reset")
        if not waiting.ready:
            previous = checkpoint.active_reset()
            processed = processed_offsets(Reset.read(previous) if previous else None, mark, waiting.ids)
            waiting = replace(waiting, processed=processed, ready=True, earlier=resets_of(mark))
            checkpoint.request_reset(waiting.text())
        checkpoint.activate_pending_reset()
        action = (
            "goes on with its new version" if waiting.continues
            else "goes on with its rebuilt state" if waiting.rebuilt
            else "starts again from other offsets"
        )  # fmt: skip
        log.warning("%s %s; the old checkpoint is in %s.before", checkpoint.path, action, checkpoint.path)
    text = checkpoint.active_reset()
    return None if text is None else _parse(text, checkpoint.path)


def follow_topics(reset: Reset, checkpoint: Checkpoint, bootstrap: str, ids: Mapping[str, str]) -> Reset:
    """The active reset of the present topics, which the checkpoint keeps from now on.

    Until the first batch is written, its ids say which topics the checkpoint's offsets are of. So they change only when
    the checkpoint has no offsets of older ones. The query must not run.

    Args:
        reset: The reset.
        checkpoint: The checkpoint that began with it.
        bootstrap: The brokers.
        ids: The ids of the topics that the checkpoint has offsets of.
    """
    now = reset.of({**topic_ids(admin(bootstrap), reset.ids, bootstrap), **ids})
    if now != reset:
        checkpoint.begin_with(now.text())
    return now


def resets_of(mark: CommitMarker) -> list[tuple[str, int | None, int]]:
    """The last resets of a stream up to a commit marker, as `CommitMarker.earlier_resets`."""
    last = [(mark.reset_id, mark.reset_floor, mark.watermark_ms)] if mark.reset_id else []
    return [*mark.earlier_resets, *last][-RESETS_KEPT:]


def _parse(text: str, path: str) -> Reset:
    if not text:
        raise Blocked("a reset is damaged", got=path, hint="stop the stream and reset it again")
    return Reset.read(text)


def processed_offsets(before: Reset | None, mark: CommitMarker, ids: Mapping[str, str]) -> TopicOffsets:
    """The offsets below which all records were processed, of topics that are still the same.

    Args:
        before: The active reset: records that it skipped were not processed, so later offsets do not count either.
        mark: The commit marker.
        ids: The present ids of the topics.
    """
    processed: TopicOffsets = {}
    for topic, now in ids.items():
        previous = before if before is not None and before.ids.get(topic) == now else Reset({})
        seen_before, starts = previous.processed.get(topic, {}), previous.starts.get(topic, {})
        read = mark.offsets.get(topic, {}) if mark.topic_ids.get(topic, now) == now else {}
        read_since = {p: at for p, at in read.items() if starts.get(p, 0) <= seen_before.get(p, 0)}
        if seen_before or read_since:
            processed[topic] = {
                p: max(seen_before.get(p, 0), read_since.get(p, 0)) for p in seen_before.keys() | read_since.keys()
            }
    return processed


def _ends(offsets: Mapping[str, Mapping[str, int]]) -> TopicOffsets:
    return {topic: {int(p): at for p, at in parts.items()} for topic, parts in offsets.items()}
