"""Waiting, and forgetting what was read of the environment, for every kind of test."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from penstock import catalog
from penstock.control import connect
from penstock.settings import settings

T = TypeVar("T")


def wait_until(condition: Callable[[], T], deadline: float = 180.0, *, every: float = 0.1, what: str = "") -> T:
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


def forget() -> None:
    """Let this process read its settings, its declarations and the control database's place again."""
    for cached in (settings, connect, catalog.load, catalog.partial_catalog):
        cached.cache_clear()


def forget_jobs() -> None:
    """Let the package `jobs`, as every project calls its own, be imported from another project."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "jobs"]:
        del sys.modules[name]
