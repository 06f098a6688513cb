"""Rows that the outputs of a stream never take: they are put aside, so many in a row and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import Blocked

if TYPE_CHECKING:
    from penstock.errors import Refused
    from penstock.model.stream import Stream


class RejectBudget:
    """Counts those of one stream, since the last batch whose rows were all taken."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._before = self._now = 0

    def begin_batch(self) -> None:
        """A batch is given, or given again."""
        self._now = 0

    def charge(self, refused: Refused) -> None:
        """Rows of the batch are to be put aside; Blocked if they are too many in a row."""
        self._now += sum(map(len, refused.rows.values()))
        first = next(why for of in refused.rows.values() for why in of.values())
        if self._before + self._now > self._stream.max_poison:
            raise Blocked(
                f"stream {self._stream.name}: its outputs do not take more rows than are put aside in a row",
                got=f"{self._before + self._now}, more than {self._stream.max_poison}, the first: {first}",
                hint="let the transform leave out what is large and name what has no key, with coalesce(key, ...), let "
                f"the topic take more, or give a larger max_poison=; then release app {self._stream.app}: it goes on "
                "with this batch, and nothing is lost",
            )

    def batch_written(self, taken: int) -> None:
        """A batch is written, so many rows of it are taken. One without rows tells nothing of what is taken."""
        if self._now or taken:
            self._before = self._before + self._now if self._now else 0
