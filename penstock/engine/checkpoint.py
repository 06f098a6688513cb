"""What a checkpoint's offset log says about a batch.

Format: Spark's OffsetSeqLog, a version line, one JSON object of metadata (watermark, batch time, pinned settings), then
one line of JSON per source: `{"topic": {"0": next offset}}`, or `-` for a source that took no part.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from penstock.engine.jvm import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Ends = dict[str, dict[int, int]]


@dataclass(frozen=True)
class Batch:
    """One batch of the log. at_ms: its clock; watermark_ms: what it dropped late records by; offsets are next ones."""

    batch_id: int
    at_ms: int
    watermark_ms: int
    starts: Ends
    ends: Ends


class Checkpoint:
    """The checkpoint of one stream, on whatever file system its URI names."""

    def __init__(self, spark: SparkSession, root: str, stream: str) -> None:
        self.path = f"{root.rstrip('/')}/{stream}"
        self._folder = Folder(spark, self.path)
        local = urlparse(self.path)
        # Each batch reads here, and through the JVM it takes tens of milliseconds.
        self._local = Path(local.path) if local.scheme in ("", "file") else None
        self._last: tuple[int, dict[str, Any], Ends] | None = None

    def batch(self, batch_id: int) -> Batch:
        """The batch as planned; it may not have been committed yet."""
        before = self._entry(batch_id - 1) if batch_id else ({}, {})
        metadata, ends = self._entry(batch_id)
        self._last = (batch_id, metadata, ends)
        return Batch(
            batch_id,
            at_ms=int(metadata["batchTimestampMs"]),
            watermark_ms=int(before[0].get("batchWatermarkMs", 0)),
            starts=before[1],
            ends=ends,
        )

    def forget(self, topics: Collection[str]) -> None:
        """Let the next batch read topics from their beginnings, as if they were new. The query must not run.

        What was planned and not committed is planned anew.
        """
        done = max(self._numbers("commits"), default=-1)
        for number in self._numbers("offsets"):
            if number > done:
                self._folder.delete(f"offsets/{number}")
        if done >= 0:
            version, metadata, *sources = self._read(f"offsets/{done}").splitlines()
            kept = [_without(line, topics) for line in sources]
            self._folder.replace(f"offsets/{done}", "\n".join([version, metadata, *kept]))
        self._last = None

    def _numbers(self, folder: str) -> list[int]:
        return [int(name) for name in self._folder.names(folder) if name.isdigit()]

    def _entry(self, batch_id: int) -> tuple[dict[str, Any], Ends]:
        if self._last and self._last[0] == batch_id:
            return self._last[1], self._last[2]
        _, metadata, *sources = self._read(f"offsets/{batch_id}").splitlines()
        return json.loads(metadata), _merged(sources)

    def _read(self, name: str) -> str:
        return (self._local / name).read_text() if self._local else self._folder.read(name)


def _without(line: str, topics: Collection[str]) -> str:
    """A source's offsets without some topics."""
    if line.strip() in ("-", ""):
        return line
    return json.dumps({topic: parts for topic, parts in json.loads(line).items() if topic not in topics})


def _merged(sources: Iterable[str]) -> Ends:
    """Offsets of all sources by topic; where two sources read one topic, the one that lags."""
    merged: Ends = {}
    for line in sources:
        if line.strip() in ("-", ""):
            continue
        for topic, parts in json.loads(line).items():
            known = merged.setdefault(topic, {})
            for partition, offset in parts.items():
                known[int(partition)] = min(offset, known.get(int(partition), offset))
    return merged
