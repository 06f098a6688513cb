"""Waiting for conditions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], deadline: float = 180.0, *, every: float = 0.2, what: str = "") -> T:
    """Wait until a condition gives something true, and return that; AssertionError after `deadline` seconds.

    what: what was waited for, for the message.
    """
    end = time.monotonic() + deadline
    while not (found := condition()):
        if time.monotonic() > end:
            name = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"{name} did not hold within {deadline:g} s; last value: {found!r}")
        time.sleep(every)
    return found


def tended(tend: Callable[[], None], condition: Callable[[], object]) -> bool:
    """Whether a condition holds after a stream was looked after once, as its driver does again and again."""
    tend()
    return bool(condition())
