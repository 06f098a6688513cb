"""An entry of Spark's offset log, a batch's plan, and one of its commit log.

Format: Spark's OffsetSeqLog, a version line, one JSON object of metadata (watermark, batch time, pinned settings), then
one line of JSON per source: `{"topic": {"0": next offset}}`, or `-` for a source that took no part. The commit log has
a version line and `{"nextBatchWatermarkMs": ms}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

TopicOffsets = dict[str, dict[int, int]]
SourceOffsets = dict[str, dict[str, int]] | None
# Gives the offset for a topic, a partition and its offset so far; None for a topic that is to be as if new.
OffsetMapping = Callable[[str, int, int], int | None]


@dataclass(frozen=True)
class BatchPlan:
    """text: the entry as it is. sources: the next offsets of each source, None for one that took no part."""

    text: str
    metadata: dict[str, Any]
    sources: tuple[SourceOffsets, ...]

    @classmethod
    def read(cls, text: str) -> BatchPlan | None:
        """None if the text is no whole entry."""
        version, _, rest = text.partition("\n")
        first, *lines = rest.split("\n")
        try:
            metadata = json.loads(first)
            sources = tuple(None if line.strip() in ("-", "") else json.loads(line) for line in lines)
        except ValueError:
            return None
        if not version.startswith("v") or "batchTimestampMs" not in metadata or not sources:
            return None
        return cls(text, metadata, sources)

    @property
    def at_ms(self) -> int:
        return int(self.metadata["batchTimestampMs"])

    @property
    def watermark_ms(self) -> int:
        """Of this batch; by that of the batch before it late records are dropped."""
        return int(self.metadata.get("batchWatermarkMs", 0))

    @cached_property
    def ends(self) -> TopicOffsets:
        """Next offsets of all sources by topic; where two sources read one topic, of the one that lags."""
        return merge_offsets(self.sources)

    def fitted(self, fit: OffsetMapping) -> str:
        """The entry as text, with other offsets; as it was if none is another."""
        version, metadata, *lines = self.text.split("\n")
        fresh = [replace_offsets(line, source, fit) for line, source in zip(lines, self.sources, strict=True)]
        return "\n".join([version, metadata, *fresh])


def replace_offsets(line: str, source: SourceOffsets, fit: OffsetMapping) -> str:
    """A source's line with other offsets; as it was if none is another."""
    if source is None:
        return line
    now = {}
    for topic, parts in source.items():
        offsets = {p: fit(topic, int(p), at) for p, at in parts.items()}
        if None not in offsets.values():
            now[topic] = offsets
    return line if now == source else json.dumps(now)


def merge_offsets(sources: Iterable[SourceOffsets]) -> TopicOffsets:
    found: TopicOffsets = {}
    for source in sources:
        for topic, parts in (source or {}).items():
            known = found.setdefault(topic, {})
            for partition, offset in parts.items():
                known[int(partition)] = min(offset, known.get(int(partition), offset))
    return found


def commit_entry(watermark_ms: int) -> str:
    """An entry of the commit log."""
    return f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}'


def committed_watermark(text: str) -> int | None:
    """The watermark that an entry of the commit log holds; None if it is no whole entry."""
    try:
        found = json.loads(text.partition("\n")[2])
        return int(found["nextBatchWatermarkMs"])
    except (ValueError, KeyError, TypeError):
        return None
