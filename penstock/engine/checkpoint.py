"""What a checkpoint's offset log says about a batch.

Format: Spark's OffsetSeqLog, a version line, one JSON object of metadata (watermark, batch time, pinned settings), then
one line of JSON per source: `{"topic": {"0": next offset}}`, or `-` for a source that took no part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from penstock.engine.jvm import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESET = "penstock-reset.json"

Ends = dict[str, dict[int, int]]
Fit = Callable[[str, int, int], int | None]


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
        self._waiting = Folder(spark, f"{self.path}.reset")
        local = urlparse(self.path)
        # Each batch reads here, and through the JVM it takes tens of milliseconds.
        self._local = Path(local.path) if local.scheme in ("", "file") else None
        self._last: tuple[int, dict[str, Any], Ends] | None = None

    def batch(self, batch_id: int) -> Batch:
        """The batch as planned; it may not have been committed yet."""
        before = self._entry(batch_id - 1) if batch_id else ({}, self._initial())
        metadata, ends = self._entry(batch_id)
        self._last = (batch_id, metadata, ends)
        return Batch(
            batch_id,
            at_ms=int(metadata["batchTimestampMs"]),
            watermark_ms=int(before[0].get("batchWatermarkMs", 0)),
            starts=before[1],
            ends=ends,
        )

    @property
    def begun(self) -> bool:
        """Whether a batch was committed."""
        return bool(self._numbers("commits"))

    def watermark(self) -> int:
        """The latest watermark that any of its batches had, epoch ms; 0 for none."""
        last = max(self._numbers("offsets"), default=None)
        return int(self._entry(last)[0].get("batchWatermarkMs", 0)) if last is not None else 0

    def reset_in_force(self) -> str | None:
        """The reset that it began with."""
        return self._folder.read(RESET) if RESET in self._folder.names(".") else None

    def reset_waiting(self) -> str | None:
        """The reset that its next start takes up."""
        return self._waiting.read(RESET) if RESET in self._waiting.names(".") else None

    def ask_reset(self, text: str) -> None:
        """Let the next start take up a reset, in the place of one that waits."""
        self._waiting.replace(RESET, text)

    def step_aside(self) -> None:
        """Make room for the reset that waits; what is there is kept until the next one. The query must not run."""
        if self._folder.exists():
            self._folder.move(f"{self.path}.before")
        self._waiting.move(self.path)
        self._last = None

    @property
    def query(self) -> str:
        """The id of its query; empty if it was never started."""
        return str(json.loads(self._read("metadata"))["id"]) if "metadata" in self._folder.names(".") else ""

    def waiting(self) -> tuple[Ends, Ends]:
        """Next offsets of its inputs: behind the last batch that was committed, and behind the one planned since."""
        done, planned = self._edge()
        starts = self._entry(done)[1] if done >= 0 else self._initial()
        return starts, self._entry(planned)[1] if planned is not None else starts

    def rebase(self, fit: Fit) -> None:
        """Change where reading goes on, of the batch that is planned too. The query must not run.

        fit: gives the offset for a topic, a partition and its offset so far; None for a topic that is to be as if new.
        """
        done, planned = self._edge()
        for number in (planned, done):
            if number is not None and number >= 0:
                version, metadata, *sources = self._read(f"offsets/{number}").splitlines()
                changed = [_fitted(line, fit) for line in sources]
                if changed != sources:
                    self._folder.replace(f"offsets/{number}", "\n".join([version, metadata, *changed]))
        self._last = None

    def _edge(self) -> tuple[int, int | None]:
        """The number of the last batch that was committed, -1 for none, and of the one that is planned behind it."""
        done = max(self._numbers("commits"), default=-1)
        return done, done + 1 if done + 1 in self._numbers("offsets") else None

    def _initial(self) -> Ends:
        """The offsets at which its sources first began."""
        lines = []
        for source in self._folder.names("sources"):
            if "0" in self._folder.names(f"sources/{source}"):
                text = self._read(f"sources/{source}/0")
                # A zero byte and the version come first.
                lines.append(text[text.index("{") :])
        return _merged(lines)

    def _numbers(self, folder: str) -> list[int]:
        return [int(name) for name in self._folder.names(folder) if name.isdigit()]

    def _entry(self, batch_id: int) -> tuple[dict[str, Any], Ends]:
        if self._last and self._last[0] == batch_id:
            return self._last[1], self._last[2]
        _, metadata, *sources = self._read(f"offsets/{batch_id}").splitlines()
        return json.loads(metadata), _merged(sources)

    def _read(self, name: str) -> str:
        return (self._local / name).read_text() if self._local else self._folder.read(name)


def _fitted(line: str, fit: Fit) -> str:
    """A source's offsets, changed; the line as it was if none is."""
    if line.strip() in ("-", ""):
        return line
    was, now = json.loads(line), {}
    for topic, parts in was.items():
        fitted = {p: fit(topic, int(p), at) for p, at in parts.items()}
        if None not in fitted.values():
            now[topic] = fitted
    return line if now == was else json.dumps(now)


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
