"""Records that lie beside already, put there before a reset let them be read again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.kafka import dead_letters
from penstock.kafka.admin import admin, partition_counts
from penstock.kafka.commit_marker import stable_end_offsets
from penstock.model.topic import DEAD_LETTERS

if TYPE_CHECKING:
    from penstock.engine.operations.reset import Reset
    from penstock.model.stream import Stream


class DeadLetterIndex:
    """Of one run of a query. The letters are read once, when a record is first asked for that was seen before.

    ids: the broker's ids of the topics that the present batch is of.
    """

    def __init__(self, stream: Stream, bootstrap: str, reset: Reset | None) -> None:
        self._stream, self._bootstrap, self._reset = stream, bootstrap, reset
        self.topic_ids: Mapping[str, str] = {}

    def contains(self, record: Mapping[str, Any], target: str) -> bool:
        """Whether a record lies in a topic; one that is only counted, whose target is empty, whether it was seen.

        That it was seen is not enough: what was good for the old code may be bad for the new one.
        """
        if self._reset is None or not self._reset.was_processed(record):
            return False
        place = (target, record["topic"], record["partition"], record["offset"])
        # Letters of an earlier version do not say of which topic of the name they are.
        known = {"", self.topic_ids.get(record["topic"], "")}
        return not target or not known.isdisjoint(self._letters.get(place, ()))

    @cached_property
    def _letters(self) -> dict[tuple[str, str, int, int], set[str]]:
        """The ids of the topics of the records whose letters there are."""
        found: dict[tuple[str, str, int, int], set[str]] = {}
        topics = [*self._stream.side_outputs, DEAD_LETTERS.name]
        there = partition_counts(admin(self._bootstrap), self._bootstrap)
        # Another stream's open transaction may hide letters behind it.
        stable_end_offsets(
            [(t, p) for t in topics for p in range(there.get(t, 0))], self._bootstrap, "what was put aside"
        )
        for one in dead_letters.read_dead_letters(topics, self._bootstrap, sys.maxsize):
            if one.stream == self._stream.name and one.origin:
                found.setdefault((one.topic, *one.origin), set()).add(one.topic_id)
        return found
