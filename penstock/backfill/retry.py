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
"""Is told what is waited for."""

# Seconds for which a store may be away, and between two tries at most.
RETRY_TIMEOUT, MAX_PAUSE = 120.0, 15.0


def retry_while_away(ask: Callable[[], T], waits: OnWait, ended: Event | None = None) -> T:
    """Calls until the store answers.

    Args:
        ask: the call.
        waits: called with the reason before each wait.
        ended: set when the answer is no longer needed.

    Raises:
        Wait: the store was unavailable for RETRY_TIMEOUT seconds.
    """
    given_up = ended or Event()

    def told(call: RetryCallState) -> None:
        waits(str(call.outcome.exception() if call.outcome else ""))

    again = Retrying(
        stop=stop_after_delay(RETRY_TIMEOUT) | stop_when_event_set(given_up), sleep=sleep_using_event(given_up),
        wait=wait_exponential(multiplier=0.5, max=MAX_PAUSE), retry=retry_if_exception_type(Wait),
        before_sleep=told, reraise=True,
    )  # fmt: skip
    try:
        return again(ask)
    except Wait as e:
        e.restate(
            e.what,
            f"see that it runs; it was asked for {RETRY_TIMEOUT:,.0f} s. Then run it again: it goes on where it was",
        )
        raise
