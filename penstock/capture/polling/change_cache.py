"""The last values that a capture wrote, so that a row that is read again unchanged is not written again."""

from __future__ import annotations

from itertools import islice

# Of rows that may be read again, how many are known not to have changed; the others are written again, unchanged.
MOST_KEYS = 500_000


class LastValueCache:
    """The last value of each key, for the newest keys only.

    It keeps hashes of both: a wrong match needs both to collide. They take a tenth of the memory of the bytes, which
    also hold the buffers that they were made in.
    """

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._last)

    def has(self, key: bytes, value: bytes | None) -> bool:
        """Whether this is the key's last value."""
        return self._last.get(hash(key)) == hash(value)

    def knows(self, key: bytes) -> bool:
        return hash(key) in self._last

    def note(self, key: bytes, value: bytes | None) -> None:
        self._last[hash(key)] = hash(value)

    @property
    def room(self) -> int:
        """How many keys more may be noted."""
        return max(0, MOST_KEYS - len(self._last))

    def trim(self) -> None:
        """Forget the keys that were noted first, if there are too many."""
        for key in list(islice(self._last, max(0, len(self._last) - MOST_KEYS))):
            del self._last[key]
