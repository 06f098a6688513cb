"""The checkpoint of a stream: its planned and committed batches, its resets, and its durability."""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from penstock.engine.checkpoint import ownership, s3a
from penstock.engine.checkpoint.offset_log import (
    BatchPlan,
    OffsetMapping,
    SourceOffsets,
    TopicOffsets,
    committed_watermark,
    merge_offsets,
    replace_offsets,
)
from penstock.engine.checkpoint.recovery import CheckpointRecovery
from penstock.engine.jvm.hadoop_fs import COPIED, HadoopFolder
from penstock.host.files import walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.model.output import CommitMarker

log = logging.getLogger(__name__)
RESET_FILE, SPLIT_FILE = "penstock-reset.json", "penstock-split.json"
# The ids of the topics that the first batch reads, until a commit marker has them.
TOPIC_IDS_FILE = "penstock-topic-ids.json"
# The folder of the checkpoints of previews, beside those of streams: no stream can have its name.
PREVIEWS = "_previews"


@dataclass(frozen=True)
class PlannedBatch:
    """A batch that the offset log has; it may not have been committed yet.

    Attributes:
        batch_id: Its number.
        at_ms: Its processing time, epoch ms.
        watermark_ms: The watermark by which it drops late records, epoch ms.
        starts: The first offsets that it reads.
        ends: The next offsets after it.
        plan: Its entry of the offset log.
        before: The entry of the batch before; None for the first batch.
    """

    batch_id: int
    at_ms: int
    watermark_ms: int
    starts: TopicOffsets
    ends: TopicOffsets
    plan: BatchPlan
    before: BatchPlan | None

    @property
    def plans(self) -> dict[int, str]:
        """For its commit marker: the entries of this batch and of the one before, as text."""
        previous = {self.batch_id - 1: self.before.text} if self.before else {}
        return {**previous, self.batch_id: self.plan.text}


class Checkpoint:
    """The checkpoint of one stream, on whatever file system its URI names."""

    def __init__(self, spark: SparkSession, root: str, stream: str) -> None:
        self._stream = stream
        self.path = f"{root.rstrip('/')}/{stream}"
        self._folder = HadoopFolder(spark, self.path)
        self._waiting = HadoopFolder(spark, f"{self.path}.reset")
        local = urlparse(self.path)
        # Each batch reads here, and through the JVM it takes tens of milliseconds.
        self._local = Path(local.path) if local.scheme in ("", "file") else None
        self._last: tuple[int, BatchPlan] | None = None
        self._synced: dict[str, set[str]] = {}
        self.copy_id = ""
        """Distinguishes this folder from its copies."""

    @property
    def supports_rebuild(self) -> bool:
        """Whether a rebuilt state can be put here."""
        return not s3a.is_object_store(self.path)

    def check_reachable(self) -> None:
        """Check that its object store can be reached, if it is in one; Wait or SinkError says why it cannot."""
        if s3a.is_object_store(self.path):
            s3a.store_below(self.path).ensure_exists()

    def recover(self, mark: CommitMarker, *, stateful: bool, restores: Callable[[], bool] = lambda: False) -> None:
        """Repair the log by the commit marker. The query must not run.

        Args:
            mark: The marker of the last batch that is written.
            stateful: Whether the query has state, which must have taken in each batch.
            restores: Whether the state can be rebuilt.

        Raises:
            Blocked: Another checkpoint wrote the marker, or this one is damaged.
        """
        self._last, self._synced = None, {}
        self.copy_id = ownership.claim(self._stream, self._folder, mark)
        reset = self.active_reset()
        recovery = CheckpointRecovery(
            self._stream, self._folder, mark, stateful=stateful, anew=reset is not None,
            continues=[mark.query, mark.batch] == json.loads(reset or "{}").get("continues"),
            restores=lambda: self.supports_rebuild and restores(),
        )  # fmt: skip
        for repair in recovery.run():
            log.warning("the checkpoint of stream %s is repaired: %s", self._stream, repair)

    def sync(self) -> None:
        """Flush what was written to the local disk: Spark renames files into place and does not wait for the disk.

        Called before a batch's output is made visible, when its plan and its state are written.
        """
        if self._local is None:
            return
        if not self._synced:
            _sync(self._local.parent)
        for folder, below, names in walk(self._local):
            synced, present = self._synced.setdefault(folder, set()), [*names, *below]
            if fresh := [name for name in present if name not in synced and not name.endswith(".tmp")]:
                for path in [*(Path(folder, name) for name in fresh), Path(folder)]:
                    _sync(path)
                self._synced[folder] = set(present)

    def batch(self, batch_id: int) -> PlannedBatch:
        """A batch that is planned; it may not have been committed yet."""
        before = self._plan(batch_id - 1) if batch_id else None
        plan = self._plan(batch_id)
        self._last = (batch_id, plan)
        return PlannedBatch(
            batch_id,
            at_ms=plan.at_ms,
            watermark_ms=before.watermark_ms if before else 0,
            starts=before.ends if before else self._initial(),
            ends=plan.ends,
            plan=plan,
            before=before,
        )

    def plans(self, batch_id: int) -> dict[int, str]:
        """For the marker of a batch: its entry of the offset log and the one before; none if it is not planned.

        The one before is missing in a lost checkpoint that goes on after its marker.
        """
        texts = {n: self.plan_text(n) for n in (batch_id - 1, batch_id)}
        return {n: text for n, text in texts.items() if text} if texts[batch_id] else {}

    @property
    def has_commits(self) -> bool:
        """Whether a batch is committed."""
        return bool(self.committed_batches())

    @property
    def last_commit(self) -> int:
        """The last batch that is committed; -1 for none."""
        return self._last_batches()[0]

    def watermark(self) -> int:
        """The latest watermark of its batches, epoch ms; 0 for none."""
        plans = (BatchPlan.read(self.plan_text(n)) for n in self._folder.list_numbers("offsets"))
        return max((plan.watermark_ms for plan in plans if plan), default=0)

    def active_reset(self) -> str | None:
        """The text of the reset that it began with; empty if it is damaged, None if there is none."""
        return self._folder.read_verified(RESET_FILE)

    def pending_reset(self) -> str | None:
        """The text of the reset that its next start activates; empty if it is damaged, None if there is none."""
        return self._waiting.read_verified(RESET_FILE)

    def request_reset(self, text: str) -> None:
        """Let the next start activate a reset, instead of a pending one."""
        there = self._waiting.list_names(".")
        if COPIED in there or ("metadata" in there and not json.loads(text).get("rebuilt")):
            # The rest of one that was activated; or a rebuilt state, which would go on from its own offsets.
            self._waiting.remove()
        self._waiting.replace(RESET_FILE, text)

    def begin_with(self, reset: str) -> None:
        """Let this checkpoint, which another one's query goes on with, have begun with a reset, given as text."""
        self._folder.replace(RESET_FILE, reset)

    def withdraw_reset(self) -> None:
        """Undo `begin_with`."""
        self._folder.delete(RESET_FILE)

    def topic_ids(self) -> dict[str, str]:
        """The ids of the topics that the first batch of its query was to read; none if that has not begun."""
        query, ids = json.loads(self._folder.read_verified(TOPIC_IDS_FILE) or '["", {}]')
        return dict(ids) if query == self.query_id else {}

    def save_topic_ids(self, ids: Mapping[str, str]) -> None:
        """Keep the ids of the topics that the first batch of its query reads."""
        self._folder.replace(TOPIC_IDS_FILE, json.dumps([self.query_id, dict(ids)]))

    def batch_split(self) -> str | None:
        """How its batches are split while memory does not hold them; None if they are not."""
        return self._folder.read_verified(SPLIT_FILE)

    def save_batch_split(self, text: str) -> None:
        """Let batches be split so from the next start on; not at all if the text is empty."""
        if text:
            self._folder.replace(SPLIT_FILE, text)
        else:
            self._folder.delete(SPLIT_FILE)

    def activate_pending_reset(self) -> None:
        """Replace this checkpoint by the pending one; it is kept until the next reset. The query must not run."""
        if self.active_reset() == self.pending_reset():
            # It is activated already, and the driver died before the copy was removed.
            self._waiting.remove()
            return
        if self._folder.exists():
            self._folder.move(f"{self.path}.before")
        self._waiting.move(self.path)
        self._last, self._synced = None, {}

    @property
    def query_id(self) -> str:
        """The id of its query; empty if it never started."""
        return str(json.loads(self._text("metadata"))["id"]) if "metadata" in self._folder.list_names(".") else ""

    def wrote_marker(self, mark: CommitMarker) -> bool:
        """Whether a marker is of its query. If its id cannot be read it is, unless it just began with a reset."""
        try:
            query = str(json.loads(self._folder.read_verified("metadata") or "")["id"])
        except (ValueError, TypeError, KeyError):
            fresh = not self._folder.list_numbers("offsets") and not self._folder.list_numbers("commits")
            return not (fresh and self.active_reset() is not None)
        return query == mark.query

    def pending_offsets(self) -> tuple[TopicOffsets, TopicOffsets]:
        """Next offsets of its inputs: after the last committed batch, and after the one that is planned since.

        Both are empty if the log cannot be read.
        """
        done, planned = self._last_batches()
        starts = self._ends(done) if done >= 0 else self._initial()
        return starts, self._ends(planned) if planned is not None else starts

    def replace_offsets(self, mapping: OffsetMapping, written: CommitMarker) -> None:
        """Change where reading goes on, also in the planned batch. The query must not run.

        The planned batch may have its watermark by heartbeats, and no longer reads them: it gets the one that the batch
        before has ended with.

        Args:
            mapping: New offsets.
            written: Marker of the last batch that is written: its watermark stays, as its rows depend on it.
        """
        done, planned = self._last_batches()
        ended_with = committed_watermark(self.commit_text(done)) if done >= 0 else 0
        is_written = planned == written.batch and self.wrote_marker(written)
        for source in self._folder.list_names("sources") if done < 0 else ():
            name = f"sources/{source}/0"
            head, brace, rest = (self._folder.read_verified(name) or "").partition("{")
            if brace and (changed := replace_offsets(brace + rest, json.loads(brace + rest), mapping)) != brace + rest:
                self._folder.replace(name, head + changed)
        for number in (planned, done):
            if number is not None and number >= 0:
                plan = self._plan(number)
                watermark_ms = ended_with if number == planned and not is_written else None
                if (changed := plan.replace_offsets(mapping, watermark_ms)) != plan.text:
                    self._folder.replace(f"offsets/{number}", changed)
        self._last = None

    def planned_batch(self) -> PlannedBatch | None:
        """The batch that is planned and not committed; None if there is none."""
        _, planned = self._last_batches()
        return None if planned is None else self.batch(planned)

    def committed_batches(self) -> list[int]:
        """The numbers of the batches in the commit log, which keeps the last ones."""
        return self._folder.list_numbers("commits")

    def commit_text(self, batch_id: int) -> str:
        """The entry of a batch in the commit log; empty if there is none, or it is damaged."""
        return self._folder.read_verified(f"commits/{batch_id}") or ""

    def plan_text(self, batch_id: int) -> str:
        """The entry of a batch in the offset log; empty if there is none, or it is damaged."""
        return self._folder.read_verified(f"offsets/{batch_id}") or ""

    def forget_sources(self) -> None:
        """Remove what the sources of the query wrote of themselves. The query must not run."""
        self._folder.delete_folder("sources")

    def write_source_log(self, text: str) -> None:
        """Write the first entry of the log of the query's only source, in place of Spark. The query must not run."""
        self._folder.replace("sources/0/0", text)

    def plan_batch(self, batch_id: int, text: str) -> None:
        """Plan a batch, in place of Spark. The query must not run; it gets an id if it has none."""
        if not self.query_id:
            self._folder.replace("metadata", json.dumps({"id": str(uuid.uuid4())}))
        self._folder.replace(f"offsets/{batch_id}", text)
        self._last = None

    def withdraw_plan(self, batch_id: int) -> None:
        """Forget a batch that was planned and has never run. The query must not run."""
        self._folder.delete(f"offsets/{batch_id}")
        self._last = None

    def shorten_batch(self, batch: PlannedBatch, ends: TopicOffsets) -> None:
        """Let a planned batch end earlier. The query must not run, and nothing of the batch may be written."""
        before = batch.before.sources if batch.before else (None,) * len(batch.plan.sources)
        version, metadata, *lines = batch.plan.text.split("\n")
        fresh = []
        for line, source, start in zip(lines, batch.plan.sources, before, strict=True):
            # Of two inputs that read one topic, one may be ahead.
            def fit(topic: str, partition: int, at: int, start: SourceOffsets = start) -> int:
                least = (start or {}).get(topic, {}).get(str(partition), 0)
                return min(at, max(least, ends.get(topic, {}).get(partition, at)))

            fresh.append(replace_offsets(line, source, fit))
        self._folder.replace(f"offsets/{batch.batch_id}", "\n".join([version, metadata, *fresh]))
        self._last = None

    def _last_batches(self) -> tuple[int, int | None]:
        """The last batch that is committed, -1 for none; and the one that is planned after it, None for none."""
        done = max(self.committed_batches(), default=-1)
        return done, done + 1 if done + 1 in self._folder.list_numbers("offsets") else None

    def _initial(self) -> TopicOffsets:
        """The offsets at which its sources began."""
        lines = []
        for source in self._folder.list_names("sources"):
            # A zero byte and a version come before the JSON.
            _, brace, text = (self._folder.read_verified(f"sources/{source}/0") or "").partition("{")
            if brace:
                lines.append(json.loads(brace + text))
        return merge_offsets(lines)

    def _ends(self, batch_id: int) -> TopicOffsets:
        plan = BatchPlan.read(self.plan_text(batch_id))
        return plan.ends if plan else {}

    def _plan(self, batch_id: int) -> BatchPlan:
        if self._last and self._last[0] == batch_id:
            return self._last[1]
        plan = BatchPlan.read(self._text(f"offsets/{batch_id}"))
        assert plan, f"Spark has just written offsets/{batch_id}"
        return plan

    def _text(self, name: str) -> str:
        return (self._local / name).read_text() if self._local else self._folder.read(name)


def move_durably(folder: Path, target: Path) -> None:
    """Bring a local folder to the disk, then move it to a path, in place of what is there."""
    for parent, below, names in walk(folder):
        for entry in [*(Path(parent, name) for name in (*names, *below)), Path(parent)]:
            _sync(entry)
    if target.exists():
        shutil.rmtree(target)
    folder.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    # Spark removes old files meanwhile.
    with suppress(FileNotFoundError):
        at = os.open(path, os.O_RDONLY)
        try:
            os.fsync(at)
        finally:
            os.close(at)
