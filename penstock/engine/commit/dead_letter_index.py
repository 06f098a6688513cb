"""A stream's dead letters: their records become none again after a reset, and are no part of a rebuilt state."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.kafka import dead_letters
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.commit_marker import stable_end_offsets
from penstock.kafka.dead_letters import RecordLocation
from penstock.model.topic import DEAD_LETTERS

if TYPE_CHECKING:
    from penstock.engine.operations.reset import Reset
    from penstock.model.stream import Stream


class DeadLetterIndex:
    """The dead letters of one run of a query, read once, when the first record from before a reset is asked for.

    Args:
        stream: the stream.
        bootstrap: the brokers.
        reset: the reset that the query began with.
        topic_ids: the broker's ids of the inputs' topics.
    """

    def __init__(
        self, stream: Stream, bootstrap: str, reset: Reset | None, topic_ids: Mapping[str, str] | None = None
    ) -> None:
        self._stream, self._bootstrap, self._reset = stream, bootstrap, reset
        self.topic_ids = topic_ids or {}

    def update_topic_ids(self, topic_ids: Mapping[str, str]) -> None:
        """Take the ids of the topics that the present batch reads."""
        self.topic_ids = topic_ids

    def contains(self, record: Mapping[str, Any], target: str) -> bool:
        """Whether the dead letter of a record is in a topic; without a target, whether the record was read before.

        That it was read is not enough: what was good for the old code may be bad for the new one.
        """
        if self._reset is None or not self._reset.was_processed(record):
            return False
        position = (target, record["topic"], record["partition"], record["offset"])
        return not target or self._is_of_present_topic(record["topic"], self._letters.get(position, ()))

    def locations(self) -> set[RecordLocation]:
        """The records of the present topics that have a dead letter."""
        return {
            RecordLocation(topic, partition, offset)
            for (_, topic, partition, offset), topic_ids in self._letters.items()
            if self._is_of_present_topic(topic, topic_ids)
        }

    def _is_of_present_topic(self, topic: str, letter_ids: Collection[str]) -> bool:
        """Whether one of a record's dead letters is of the topic that there is now."""
        # A letter has no topic id if the broker did not tell it.
        return not {"", self.topic_ids.get(topic, "")}.isdisjoint(letter_ids)

    @cached_property
    def _letters(self) -> dict[tuple[str, str, int, int], set[str]]:
        """Topic ids by (dead letter topic, topic, partition, offset) of the record."""
        letters: dict[tuple[str, str, int, int], set[str]] = {}
        topics = [*self._stream.side_outputs, DEAD_LETTERS.name]
        counts = partition_counts(admin(self._bootstrap), self._bootstrap)
        # Another stream's open transaction may hide later dead letters.
        stable_end_offsets([(t, p) for t in topics for p in range(counts.get(t, 0))], self._bootstrap, "dead letters")
        for letter in dead_letters.read_dead_letters(topics, self._bootstrap, sys.maxsize):
            if letter.stream == self._stream.name and letter.origin:
                letters.setdefault((letter.topic, *letter.origin), set()).add(letter.topic_id)
        return letters
