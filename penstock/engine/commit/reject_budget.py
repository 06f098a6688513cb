"""Limits how many rows in a row the outputs of a stream may refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import Blocked

if TYPE_CHECKING:
    from penstock.errors import Refused
    from penstock.model.stream import Stream


class RejectBudget:
    """Counts the refused rows of one stream since the last batch of which the outputs took all rows."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._earlier = self._in_batch = 0

    def begin_batch(self) -> None:
        """A batch is delivered, for the first time or again."""
        self._in_batch = 0

    def charge(self, refused: Refused) -> None:
        """Count rows of the batch that become dead letters.

        Raises:
            Blocked: they are more in a row than the stream's `max_poison`.
        """
        self._in_batch += sum(map(len, refused.rows.values()))
        first = next(why for of in refused.rows.values() for why in of.values())
        if self._earlier + self._in_batch > self._stream.max_poison:
            raise Blocked(
                f"stream {self._stream.name}: its outputs refuse more rows in a row than may become dead letters",
                got=f"{self._earlier + self._in_batch}, more than {self._stream.max_poison}, the first: {first}",
                hint="let the transform leave out what is large and name what has no key, with coalesce(key, ...), let "
                f"the topic take more, or give a larger max_poison=; then release app {self._stream.app}: it goes on "
                "with this batch, and nothing is lost",
            )

    def batch_written(self, rows: int) -> None:
        """A batch is written, with so many rows. A batch without any row does not end the count."""
        if self._in_batch or rows:
            self._earlier = self._earlier + self._in_batch if self._in_batch else 0
