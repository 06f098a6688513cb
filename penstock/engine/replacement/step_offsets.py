"""The offsets of the steps of a new version, and their entries in Spark's offset log."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.engine.checkpoint.offset_log import BatchPlan, TopicOffsets


@dataclass
class StepLimits:
    """What the watermark asks of a step: whether it reads all that there is."""

    reads_all: bool = False
    max_records: int = 0

    def limit_of(self, batch_id: int) -> int:  # noqa: ARG002
        return self.max_records

    def is_split(self, ends: TopicOffsets) -> bool:  # noqa: ARG002
        return not self.reads_all


def count_between(at: TopicOffsets, ends: TopicOffsets) -> int:
    """How many offsets there are between some and others; a partition that the first lack counts whole."""
    return sum(max(0, end - at.get(t, {}).get(p, 0)) for t, parts in ends.items() for p, end in parts.items())


def limit_ends(at: TopicOffsets, ends: TopicOffsets, limit: int) -> TopicOffsets:
    """The ends of a step of so many records at most, in proportion to what each partition has left."""
    left = count_between(at, ends)
    if left <= limit:
        return ends
    return {
        t: {p: min(end, (b := at.get(t, {}).get(p, 0)) + -(-(end - b) * limit // left)) for p, end in parts.items()}
        for t, parts in ends.items()
    }


def batch_entry(
    before: BatchPlan | None,
    first_metadata: Mapping[str, Any],
    subscriptions: Sequence[tuple[str, str]],
    ends: TopicOffsets,
    watermark_ms: int,
    at_ms: int,
) -> str:
    """The entry of a batch that begins where the one before ended.

    Args:
        before: The entry before; None for the first batch.
        first_metadata: The metadata of a first batch.
        subscriptions: The topic, or the pattern, of each source; the other one is empty.
        ends: The next offsets behind the batch; a source never goes back.
        watermark_ms: The watermark of the batch, epoch ms.
        at_ms: Its processing time, epoch ms.
    """
    version = before.text.partition("\n")[0] if before else "v1"
    read = before.sources if before else (None,) * len(subscriptions)
    metadata = {
        **(before.metadata if before else first_metadata), "batchWatermarkMs": watermark_ms, "batchTimestampMs": at_ms
    }  # fmt: skip
    lines = [
        json.dumps(_line(topic, pattern, source or {}, ends))
        for (topic, pattern), source in zip(subscriptions, read, strict=True)
    ]
    return "\n".join([version, json.dumps(metadata), *lines])


def _line(
    topic: str, pattern: str, read: Mapping[str, Mapping[str, int]], ends: TopicOffsets
) -> dict[str, dict[str, int]]:
    line = {t: dict(parts) for t, parts in read.items()}
    for name, parts in ends.items():
        if name == topic or (pattern and re.fullmatch(pattern, name)):
            own = line.setdefault(name, {})
            own.update({str(p): max(end, own.get(str(p), 0)) for p, end in parts.items()})
    return line
