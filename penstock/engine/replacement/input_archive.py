"""The archive of a stream's input, if there is one that its state can be built of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.output_mode import millis
from penstock.model.record_reader import open_reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.kafka.commit_marker import TopicAndPartition
    from penstock.model.record_reader import RecordReader
    from penstock.model.stream import Stream


@dataclass(frozen=True)
class InputArchive:
    """The records of a stream's only input in an archive.

    Attributes:
        topic: The topic.
        reader: Reads the archive.
        ahead_ms: How much earlier a record may be by the archive's event time than by the stream's, ms; None if that is
            unknown.
    """

    topic: str
    reader: RecordReader
    ahead_ms: int | None

    def partitions(
        self, ids: Mapping[str, str], logs: Mapping[TopicAndPartition, tuple[int, int]]
    ) -> set[TopicAndPartition]:
        """The partitions of which the archive and the topic have all records that there ever were.

        Args:
            ids: The ids of the topics.
            logs: The first and the end offset that the topics hold.
        """
        begins, ends = self.reader.begins, self.reader.ends
        if not self.is_of(ids):
            return set()
        return {
            (topic, p)
            for (topic, p), (first, _) in logs.items()
            if topic == self.topic and begins.get(p) == 0 and ends.get(p, -1) >= first
        }

    def is_of(self, ids: Mapping[str, str]) -> bool:
        """Whether it is of the present topic, and not of one that was deleted."""
        return bool(self.reader.topic_id) and self.reader.topic_id == ids.get(self.topic)

    def first_offset(self, partition: TopicAndPartition, since: int | None) -> int:
        """The offset to begin at for the records of a time and later, epoch ms; None for all."""
        if since is None or self.ahead_ms is None:
            return 0
        first = self.reader.first_offsets(max(0, since - self.ahead_ms))
        return first.get(partition[1], self.reader.ends[partition[1]])


def find_archive(stream: Stream, streams: Iterable[Stream]) -> InputArchive | None:
    """The archive of a stream's input; None if there is none, or it has another one's values.

    A stream of several inputs, or of topics by a pattern, has none.

    Args:
        stream: The stream.
        streams: All streams of the project, those of archives too.

    Raises:
        SinkError: The archive cannot be read.
        Wait: Its store does not answer.
    """
    inputs = list(stream.sources.values())
    if len(inputs) != 1 or inputs[0].topic is None:
        return None
    topic = inputs[0].topic.name
    for other in streams:
        for output in other.outputs.values():
            if output.reader and not output.mask and any(one.reads_topic(topic) for one in other.sources.values()):
                return InputArchive(topic, open_reader(output, topic), _ahead_ms(stream, other))
    return None


def _ahead_ms(stream: Stream, archive: Stream) -> int | None:
    [own], [archived] = stream.sources.values(), archive.sources.values()
    if own.event_time == archived.event_time:
        return 0
    return millis(own.max_ahead) if archived.uses_record_timestamp and own.max_ahead is not None else None
