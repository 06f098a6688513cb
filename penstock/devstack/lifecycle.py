"""Servers that can be started, waited for and stopped, alone or together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Lifecycle(ABC):
    """Something that can be started and stopped. As a context manager it is started, waited for, and stopped."""

    @abstractmethod
    def start(self) -> bool:
        """Start it, unless it runs; True if it was started. Does not wait until it serves."""

    @abstractmethod
    def wait(self, seconds: float | None = None, tick: Callable[[], None] = lambda: None) -> None:
        """Wait until it serves. HostError if it ends, or takes longer than it may."""

    @abstractmethod
    def stop(self) -> bool:
        """Stop it and everything it started; True if it ran. Its data stays."""

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
