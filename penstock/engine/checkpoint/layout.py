"""The checkpoint of a stream: what its offset log says of a batch, and that it is on the disk."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
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
    merge_offsets,
    replace_offsets,
)
from penstock.engine.checkpoint.recovery import CheckpointRecovery
from penstock.engine.jvm.hadoop_fs import HadoopFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.model.output import CommitMarker

log = logging.getLogger(__name__)
RESET_FILE, SPLIT_FILE = "penstock-reset.json", "penstock-split.json"


@dataclass(frozen=True)
class PlannedBatch:
    """A batch as planned; it may not have been committed yet.

    at_ms: its clock; watermark_ms: what it dropped late records by; offsets are next ones. plan: what the log says of
    it; before: the same of the batch before it, None for the first.
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
        """For its mark: its own plan and the one before, as text."""
        known = {self.batch_id - 1: self.before.text} if self.before else {}
        return {**known, self.batch_id: self.plan.text}


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
        """Tells this folder from others that were copied from it."""

    @property
    def supports_rebuild(self) -> bool:
        """Whether state that was made anew can be put here."""
        return not s3a.is_object_store(self.path)

    def check_reachable(self) -> None:
        """See that its object store can be reached, if it lies in one; Wait or SinkError says why not."""
        if s3a.is_object_store(self.path):
            s3a.store_below(self.path).ready()

    def recover(self, mark: CommitMarker, *, stateful: bool, restores: Callable[[], bool] = lambda: False) -> None:
        """Mend what is missing in the log by the mark of what is written, and say so. The query must not run.

        Blocked if this checkpoint is not the one that wrote the mark, or is damaged. stateful: whether the query has
        state, which must have taken in each batch. restores: whether its topics hold it.
        """
        self._last, self._synced = None, {}
        self.copy_id = ownership.claim(self._stream, self._folder, mark)
        anew = self.active_reset() is not None
        look = CheckpointRecovery(
            self._stream, self._folder, mark, stateful=stateful, anew=anew,
            restores=lambda: self.supports_rebuild and restores(),
        )  # fmt: skip
        for said in look.run():
            log.warning("the checkpoint of stream %s is mended: %s", self._stream, said)

    def sync(self) -> None:
        """Bring what Spark has written to the disk, on a local one: it renames files into place and no more.

        Called before a batch's output is made visible, when its plan and its state are written.
        """
        if self._local is None:
            return
        if not self._synced:
            _sync(self._local.parent)
        for folder, below, files in os.walk(self._local):
            known, now = self._synced.setdefault(folder, set()), [*files, *below]
            if fresh := [name for name in now if name not in known and not name.endswith(".tmp")]:
                for path in [*(Path(folder, name) for name in fresh), Path(folder)]:
                    _sync(path)
                self._synced[folder] = set(now)

    def batch(self, batch_id: int) -> PlannedBatch:
        """The batch as planned; it may not have been committed yet."""
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

    @property
    def has_commits(self) -> bool:
        """Whether a batch was committed."""
        return bool(self._folder.list_numbers("commits"))

    @property
    def last_commit(self) -> int:
        """The last batch that was committed, -1 for none."""
        return self._edge()[0]

    def watermark(self) -> int:
        """The latest watermark that any of its batches had, epoch ms; 0 for none."""
        plans = (
            BatchPlan.read(self._folder.read_verified(f"offsets/{n}") or "")
            for n in self._folder.list_numbers("offsets")
        )
        return max((plan.watermark_ms for plan in plans if plan), default=0)

    def active_reset(self) -> str | None:
        """The reset that it began with; empty if that is damaged."""
        return self._folder.read_verified(RESET_FILE)

    def pending_reset(self) -> str | None:
        """The reset that its next start takes up; empty if that is damaged."""
        return self._waiting.read_verified(RESET_FILE)

    def request_reset(self, text: str) -> None:
        """Let the next start take up a reset, in the place of one that waits."""
        if not json.loads(text).get("rebuilt") and "metadata" in self._waiting.list_names("."):
            # What was rebuilt would go on where it stood.
            self._waiting.remove()
        self._waiting.replace(RESET_FILE, text)

    def batch_split(self) -> str | None:
        """How its batches are cut, while memory does not hold them whole."""
        return self._folder.read_verified(SPLIT_FILE)

    def save_batch_split(self, text: str) -> None:
        """Let batches be cut so from the next start on; as they come, if the text is empty."""
        if text:
            self._folder.replace(SPLIT_FILE, text)
        else:
            self._folder.delete(SPLIT_FILE)

    def activate_pending_reset(self) -> None:
        """Make room for the reset that waits; what is there is kept until the next one. The query must not run."""
        if self.active_reset() == self.pending_reset():
            # It has taken its place, and the driver died before what it was copied from was gone.
            self._waiting.remove()
            return
        if self._folder.exists():
            self._folder.move(f"{self.path}.before")
        self._waiting.move(self.path)
        self._last, self._synced = None, {}

    @property
    def query_id(self) -> str:
        """The id of its query; empty if it was never started."""
        return str(json.loads(self._text("metadata"))["id"]) if "metadata" in self._folder.list_names(".") else ""

    def wrote_marker(self, mark: CommitMarker) -> bool:
        """Whether a mark is of its query; it is taken for it if that cannot be read, unless it just began anew."""
        try:
            query = str(json.loads(self._folder.read_verified("metadata") or "")["id"])
        except (ValueError, TypeError, KeyError):
            fresh = not self._folder.list_numbers("offsets") and not self._folder.list_numbers("commits")
            return not (fresh and self.active_reset() is not None)
        return query == mark.query

    def pending_offsets(self) -> tuple[TopicOffsets, TopicOffsets]:
        """Next offsets of its inputs: behind the last batch that was committed, and behind the one planned since.

        None are known of a log that cannot be read.
        """
        done, planned = self._edge()
        starts = self._ends(done) if done >= 0 else self._initial()
        return starts, self._ends(planned) if planned is not None else starts

    def replace_offsets(self, fit: OffsetMapping) -> None:
        """Change where reading goes on, of the batch that is planned too. The query must not run."""
        done, planned = self._edge()
        for source in self._folder.list_names("sources") if done < 0 else ():
            name = f"sources/{source}/0"
            head, brace, rest = (self._folder.read_verified(name) or "").partition("{")
            if brace and (changed := replace_offsets(brace + rest, json.loads(brace + rest), fit)) != brace + rest:
                self._folder.replace(name, head + changed)
        for number in (planned, done):
            if number is not None and number >= 0:
                plan = self._plan(number)
                if (changed := plan.fitted(fit)) != plan.text:
                    self._folder.replace(f"offsets/{number}", changed)
        self._last = None

    def planned_batch(self) -> PlannedBatch | None:
        """The batch that is planned and not committed, if there is one."""
        _, planned = self._edge()
        return None if planned is None else self.batch(planned)

    def shorten_batch(self, batch: PlannedBatch, ends: TopicOffsets) -> None:
        """Let a batch that is planned end earlier. The query must not run, and nothing of the batch be written."""
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

    def _edge(self) -> tuple[int, int | None]:
        """The number of the last batch that was committed, -1 for none, and of the one that is planned behind it."""
        done = max(self._folder.list_numbers("commits"), default=-1)
        return done, done + 1 if done + 1 in self._folder.list_numbers("offsets") else None

    def _initial(self) -> TopicOffsets:
        """The offsets at which its sources first began."""
        lines = []
        for source in self._folder.list_names("sources"):
            # A zero byte and the version come first.
            _, brace, text = (self._folder.read_verified(f"sources/{source}/0") or "").partition("{")
            if brace:
                lines.append(json.loads(brace + text))
        return merge_offsets(lines)

    def _ends(self, batch_id: int) -> TopicOffsets:
        plan = BatchPlan.read(self._folder.read_verified(f"offsets/{batch_id}") or "")
        return plan.ends if plan else {}

    def _plan(self, batch_id: int) -> BatchPlan:
        if self._last and self._last[0] == batch_id:
            return self._last[1]
        plan = BatchPlan.read(self._text(f"offsets/{batch_id}"))
        assert plan, f"Spark has just written offsets/{batch_id}"
        return plan

    def _text(self, name: str) -> str:
        return (self._local / name).read_text() if self._local else self._folder.read(name)


def _sync(path: Path) -> None:
    # Old files are removed meanwhile.
    with suppress(FileNotFoundError):
        at = os.open(path, os.O_RDONLY)
        try:
            os.fsync(at)
        finally:
            os.close(at)
