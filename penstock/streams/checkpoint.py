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
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._folder = jvm.org.apache.hadoop.fs.Path(self.path)
        self._fs = self._folder.getFileSystem(spark._jsc.hadoopConfiguration())
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
                self._fs.delete(self._at(f"offsets/{number}"), False)
        if done >= 0:
            version, metadata, *sources = self._read(f"offsets/{done}").splitlines()
            kept = [_without(line, topics) for line in sources]
            self._replace(f"offsets/{done}", "\n".join([version, metadata, *kept]))
        self._last = None

    def _numbers(self, folder: str) -> list[int]:
        if not self._fs.exists(self._at(folder)):
            return []
        names = (status.getPath().getName() for status in self._fs.listStatus(self._at(folder)))
        return [int(name) for name in names if name.isdigit()]

    def _replace(self, name: str, text: str) -> None:
        """Through Hadoop, which keeps a checksum beside a local file."""
        fresh = self._at(f"{name}.fresh")
        out = self._fs.create(fresh, True)
        try:
            out.write(text.encode())
        finally:
            out.close()
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        how = self._gateway.new_array(rename, 1)
        how[0] = rename.OVERWRITE
        self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._fs.getUri()).rename(
            self._fs.makeQualified(fresh), self._fs.makeQualified(self._at(name)), how
        )

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, name)

    def _entry(self, batch_id: int) -> tuple[dict[str, Any], Ends]:
        if self._last and self._last[0] == batch_id:
            return self._last[1], self._last[2]
        text = self._read(f"offsets/{batch_id}")
        _, metadata, *sources = text.splitlines()
        return json.loads(metadata), _merged(sources)

    def _read(self, name: str) -> str:
        if self._local:
            return (self._local / name).read_text()
        stream = self._fs.open(self._at(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()


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
