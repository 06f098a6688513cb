"""Where the running version of a stream is: what its last commit marker says, and the ends of its output then."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import BrokerError
from penstock.kafka.admin import admin, end_offsets, partition_counts
from penstock.kafka.commit_marker import CommitMarkerReader
from penstock.model.output import NO_COMMIT, CommitMarker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kafka.commit_marker import TopicAndPartition

# Seconds within which the ends of the output must be read between two of the running version's batches.
TIMEOUT = 60.0


@dataclass(frozen=True)
class RunningPosition:
    """A batch of the running version.

    Attributes:
        marker: Its commit marker.
        output_ends: The next offsets of the output topics right after it, by topic and partition.
    """

    marker: CommitMarker
    output_ends: dict[TopicAndPartition, int]


class RunningVersion:
    """Observes the version of a stream that writes.

    Args:
        stream: The name of the stream.
        topics: Its output topics.
        bootstrap: The broker.
    """

    def __init__(self, stream: str, topics: Sequence[str], bootstrap: str) -> None:
        self._stream, self._topics, self._bootstrap = stream, topics, bootstrap
        self._markers = CommitMarkerReader(bootstrap, [stream])

    def marker(self) -> CommitMarker:
        """Its last commit marker; NO_COMMIT if it has written nothing. BrokerError if it cannot be read."""
        value = self._markers.read().get(self._stream)
        return NO_COMMIT if value is None else CommitMarker.read(value)

    def position(self) -> RunningPosition:
        """Its last batch with the ends of its output.

        Raises:
            BrokerError: The broker does not answer, or each batch ends before the ends of the output are read.
        """
        deadline = time.monotonic() + TIMEOUT
        client = admin(self._bootstrap)
        counts = partition_counts(client, self._bootstrap)
        partitions = {(topic, p) for topic in self._topics for p in range(counts.get(topic, 0))}
        marker = self.marker()
        while time.monotonic() < deadline:
            # A batch and its marker are one transaction: if no marker came meanwhile, no row did.
            ends = end_offsets(client, partitions, self._bootstrap)
            before, marker = marker, self.marker()
            if before == marker and ends.keys() == partitions:
                return RunningPosition(marker, ends)
        raise BrokerError(
            f"the output of stream {self._stream} cannot be read between two of its batches",
            got=f"{TIMEOUT:g} s without an answer of all partitions",
            hint="nothing, if the broker returns: it is tried again",
        )

    def close(self) -> None:
        self._markers.close()
