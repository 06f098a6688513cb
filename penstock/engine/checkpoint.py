"""The checkpoint of a stream: what its offset log says of a batch, and that it is on the disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from penstock.engine import copies
from penstock.engine.jvm import Folder
from penstock.engine.plans import Ends, Plan
from penstock.engine.recovery import Recovery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.declare.outputs import Mark

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """A batch as planned; it may not have been committed yet. before: the plan of the one before, None of the first."""

    batch_id: int
    plan: Plan
    before: Plan | None

    @property
    def at_ms(self) -> int:
        """Its clock."""
        return self.plan.at_ms

    @property
    def watermark_ms(self) -> int:
        """What it dropped late records by."""
        return self.before.watermark_ms if self.before else 0

    @property
    def starts(self) -> Ends:
        return self.before.ends if self.before else {}

    @property
    def ends(self) -> Ends:
        return self.plan.ends

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
        self._folder = Folder(spark, self.path)
        local = urlparse(self.path)
        # Each batch reads here, and through the JVM it takes tens of milliseconds.
        self._local = Path(local.path) if local.scheme in ("", "file") else None
        self._last: tuple[int, Plan] | None = None
        self._synced: dict[str, set[str]] = {}
        self.copy = ""
        """Tells this folder from others that were copied from it."""

    def fits(self, mark: Mark, *, stateful: bool) -> None:
        """Mend what is missing in the log by the mark of what is written, and say so. The query must not run.

        Blocked if this checkpoint is not the one that wrote the mark, or is damaged. stateful: whether the query has
        state, which must have taken in each batch.
        """
        self._last = None
        self.copy = copies.taken(self._stream, self._folder, mark)
        for said in Recovery(self._stream, self._folder, mark, stateful=stateful).run():
            log.warning("the checkpoint of stream %s is mended: %s", self._stream, said)

    def sync(self) -> None:
        """Bring what Spark has written to the disk, on a local one: it renames files into place and no more.

        Called before a batch's output is made visible, when its plan and its state are written.
        """
        if self._local is None:
            return
        for folder, _, files in os.walk(self._local):
            known = self._synced.setdefault(folder, set())
            if fresh := [name for name in files if name not in known and not name.endswith(".tmp")]:
                for path in [*(Path(folder, name) for name in fresh), Path(folder)]:
                    _sync(path)
                self._synced[folder] = set(files)

    def batch(self, batch_id: int) -> Batch:
        before = self._plan(batch_id - 1) if batch_id else None
        plan = self._plan(batch_id)
        self._last = (batch_id, plan)
        return Batch(batch_id, plan, before)

    def forget(self, topics: Collection[str]) -> None:
        """Let the next batch read topics from their beginnings, as if they were new. The query must not run.

        What was planned and not committed is planned anew.
        """
        done = max(self._numbers("commits"), default=-1)
        for number in self._numbers("offsets"):
            if number > done:
                self._folder.delete(f"offsets/{number}")
        if done >= 0:
            self._folder.replace(f"offsets/{done}", self._plan(done).without(topics))
        self._last = None

    def _numbers(self, folder: str) -> list[int]:
        return [int(name) for name in self._folder.names(folder) if name.isdigit()]

    def _plan(self, batch_id: int) -> Plan:
        if self._last and self._last[0] == batch_id:
            return self._last[1]
        name = f"offsets/{batch_id}"
        text = (self._local / name).read_text() if self._local else self._folder.read(name)
        plan = Plan.read(text)
        assert plan, f"Spark has just written {name}"
        return plan


def _sync(path: Path) -> None:
    # Old files are removed meanwhile.
    with suppress(FileNotFoundError):
        at = os.open(path, os.O_RDONLY)
        try:
            os.fsync(at)
        finally:
            os.close(at)
