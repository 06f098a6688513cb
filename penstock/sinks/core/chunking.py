"""What a store is given in several requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar


class Sized(Protocol):
    """Something of which it is known how many bytes it is."""

    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)


def parts(items: Sequence[T], rows: int, size: int) -> Iterator[list[T]]:
    """Items in requests of so many rows and bytes at most; one that is larger by itself has its own."""
    part: list[T] = []
    had = 0
    for one in items:
        if part and (len(part) == rows or had + one.size > size):
            yield part
            part, had = [], 0
        part.append(one)
        had += one.size
    if part:
        yield part
