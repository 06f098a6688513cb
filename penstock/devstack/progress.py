"""How the steps of `penstock up` and `penstock down` report progress."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class ProgressStep(Protocol):
    """Progress of one step."""

    def tick(self, done: int, total: int) -> None:
        """Report `done` of about `total` bytes."""

    def say(self, text: str) -> None:
        """Report what the step is doing, or its result."""


class ProgressReporter(Protocol):
    """Shows the steps to a person."""

    def step(self, title: str) -> AbstractContextManager[ProgressStep]: ...
