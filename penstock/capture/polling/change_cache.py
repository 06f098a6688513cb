"""The last values that a capture wrote, so that a row that is read again unchanged is not written again."""

from __future__ import annotations

from itertools import islice

# Keys in the cache; unchanged rows of other keys are written again if they are read again.
MOST_KEYS = 500_000


class LastValueCache:
    """The last value of each key, for the newest keys only.

    It stores hashes of both, with a tenth of the memory; a wrong match would need both to collide.
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
        """The number of keys that may be added."""
        return max(0, MOST_KEYS - len(self._last))

    def trim(self) -> None:
        """Remove the oldest keys above the limit."""
        for key in list(islice(self._last, max(0, len(self._last) - MOST_KEYS))):
            del self._last[key]
