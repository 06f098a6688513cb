"""Splits what a store gets into requests of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def chunks(items: Sequence[T], count: int, total: int, size: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Items in chunks of bounded count and total size; an item that is larger by itself has its own chunk."""
    start = used = 0
    for at, item in enumerate(items):
        if at > start and (at - start == count or used + size(item) > total):
            yield items[start:at]
            start, used = at, 0
        used += size(item)
    if start < len(items):
        yield items[start:]
