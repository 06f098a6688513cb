"""An entry of Spark's offset log, a batch's plan, and one of its commit log.

Format: Spark's OffsetSeqLog, a version line, one JSON object of metadata (watermark, batch time, pinned settings), then
one line of JSON per source: `{"topic": {"0": next offset}}`, or `-` for a source that took no part. The commit log has
a version line and `{"nextBatchWatermarkMs": ms}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

TopicOffsets = dict[str, dict[int, int]]
SourceOffsets = dict[str, dict[str, int]] | None
# Maps a topic, a partition and its offset to another offset; None for a topic that is to be read as if it were new.
OffsetMapping = Callable[[str, int, int], int | None]


@dataclass(frozen=True)
class BatchPlan:
    """An entry of the offset log.

    Attributes:
        text: The entry.
        metadata: Its line of metadata.
        sources: The next offsets of each source; None for a source that took no part.
    """

    text: str
    metadata: dict[str, Any]
    sources: tuple[SourceOffsets, ...]

    @classmethod
    def read(cls, text: str) -> BatchPlan | None:
        """Parse an entry; None if the text is not a complete one."""
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
        """The batch's processing time, epoch ms."""
        return int(self.metadata["batchTimestampMs"])

    @property
    def watermark_ms(self) -> int:
        """The watermark of this batch, epoch ms. Late records are dropped by that of the batch before."""
        return int(self.metadata.get("batchWatermarkMs", 0))

    @cached_property
    def ends(self) -> TopicOffsets:
        """The next offsets of all sources by topic; where two sources read a topic, of the one that lags."""
        return merge_offsets(self.sources)

    def replace_offsets(self, mapping: OffsetMapping, watermark_ms: int | None = None) -> str:
        """The entry as text, with mapped offsets, and then with another watermark; unchanged if no offset changes."""
        version, metadata, *lines = self.text.split("\n")
        fresh = [replace_offsets(line, source, mapping) for line, source in zip(lines, self.sources, strict=True)]
        if watermark_ms is not None and fresh != lines:
            metadata = json.dumps(self.metadata | {"batchWatermarkMs": watermark_ms}, separators=(",", ":"))
        return "\n".join([version, metadata, *fresh])


def replace_offsets(line: str, source: SourceOffsets, mapping: OffsetMapping) -> str:
    """A source's line with mapped offsets; unchanged if no offset changes."""
    if source is None:
        return line
    now = {}
    for topic, parts in source.items():
        offsets = {p: mapping(topic, int(p), at) for p, at in parts.items()}
        if None not in offsets.values():
            now[topic] = offsets
    return line if now == source else json.dumps(now)


def merge_offsets(sources: Iterable[SourceOffsets]) -> TopicOffsets:
    merged: TopicOffsets = {}
    for source in sources:
        for topic, parts in (source or {}).items():
            offsets = merged.setdefault(topic, {})
            for partition, offset in parts.items():
                offsets[int(partition)] = min(offset, offsets.get(int(partition), offset))
    return merged


def by_topic(offsets: Mapping[tuple[str, int], int]) -> TopicOffsets:
    """Offsets of topics and partitions, by topic."""
    topics: TopicOffsets = {}
    for (topic, partition), at in offsets.items():
        topics.setdefault(topic, {})[partition] = at
    return topics


def commit_entry(watermark_ms: int) -> str:
    """An entry of the commit log."""
    return f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}'


def committed_watermark(text: str) -> int | None:
    """The watermark that an entry of the commit log holds; None if it is no whole entry."""
    try:
        entry = json.loads(text.partition("\n")[2])
        return int(entry["nextBatchWatermarkMs"])
    except (ValueError, KeyError, TypeError):
        return None
