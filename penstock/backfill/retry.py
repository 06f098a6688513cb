"""Retries calls to a store that is unavailable, with exponential backoff."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_exponential,
)

from penstock.errors import Wait

T = TypeVar("T")
OnWait = Callable[[str], None]
"""Called with the reason of a wait."""

# Seconds for which a store may be unavailable, and between two attempts at most.
RETRY_TIMEOUT, MAX_PAUSE = 120.0, 15.0


def retry_while_away(call: Callable[[], T], on_wait: OnWait, stop_event: Event | None = None) -> T:
    """Calls until the store answers.

    Args:
        ask: the call.
        waits: called with the reason before each wait.
        ended: set when the answer is no longer needed.

    Raises:
        Wait: the store was unavailable for RETRY_TIMEOUT seconds.
    """
    stop = stop_event or Event()

    def report_wait(state: RetryCallState) -> None:
        on_wait(str(state.outcome.exception() if state.outcome else ""))

    retrying = Retrying(
        stop=stop_after_delay(RETRY_TIMEOUT) | stop_when_event_set(stop), sleep=sleep_using_event(stop),
        wait=wait_exponential(multiplier=0.5, max=MAX_PAUSE), retry=retry_if_exception_type(Wait),
        before_sleep=report_wait, reraise=True,
    )  # fmt: skip
    try:
        return retrying(call)
    except Wait as e:
        e.restate(
            e.what,
            f"check that it runs; it did not answer for {RETRY_TIMEOUT:,.0f} s. Then run it again: it is resumed",
        )
        raise
