"""Reports of the start of a platform."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Silent:
    """A report that keeps the titles of its steps, and what they say."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.said: list[str] = []

    def tick(self, done: int, total: int) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def step(self, title: str) -> Iterator[Silent]:
        self.titles.append(title)
        yield self
