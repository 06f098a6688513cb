"""Reports of the start of a platform."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Silent:
    """A report that keeps the titles of its steps."""

    def __init__(self) -> None:
        self.titles: list[str] = []

    def tick(self, done: int, total: int) -> None: ...

    def say(self, text: str) -> None: ...

    @contextmanager
    def step(self, title: str) -> Iterator[Silent]:
        self.titles.append(title)
        yield self
