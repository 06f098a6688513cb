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
        call: the call.
        on_wait: called with the reason before each wait.
        stop_event: set when the answer is no longer needed.

    Raises:
        Wait: the store was unavailable for RETRY_TIMEOUT seconds, from the end of the first call that failed: a long
            call alone is no reason to end.
    """
    stop = stop_event or Event()
    failed_at: float | None = None

    def unavailable_too_long(state: RetryCallState) -> bool:
        nonlocal failed_at
        now = state.outcome_timestamp or 0.0
        failed_at = now if failed_at is None else failed_at
        return now - failed_at >= RETRY_TIMEOUT

    def report_wait(state: RetryCallState) -> None:
        on_wait(str(state.outcome.exception() if state.outcome else ""))

    retrying = Retrying(
        stop=lambda state: stop.is_set() or unavailable_too_long(state), sleep=sleep_using_event(stop),
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
