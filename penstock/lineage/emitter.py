"""Sends OpenLineage events by its client, beside the streams: these neither wait for a receiver nor fail with it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING

from penstock.errors import SettingError, optional_packages
from penstock.settings import settings

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent

log = logging.getLogger(__name__)

CAPACITY = 1000
LOOK_EVERY_S = 0.2
# Seconds between two attempts: the first, and the longest as they grow.
RETRY_FIRST_S, RETRY_MOST_S = 0.5, 30.0
# Answers of HTTP that are about the event itself: another attempt gets them too.
REFUSALS = (400, 413, 415, 422)
TRANSPORT_HINT = "set OPENLINEAGE_URL, or OPENLINEAGE_CONFIG to the path of a file with a transport"


class LineageEmitter:
    """A thread that makes and sends events in the order in which they were given.

    Args:
        client: What sends them.
    """

    def __init__(self, client: OpenLineageClient) -> None:
        self._client = client
        self._events: Queue[Callable[[], RunEvent]] = Queue(CAPACITY)
        self._closing, self._closed = Event(), Event()
        self._failing = False
        self._dropped = 0
        self._sending = self._refused = False
        self._thread = Thread(target=self._run, name="lineage", daemon=True)
        self._thread.start()

    def emit(self, make_event: Callable[[], RunEvent]) -> None:
        """Send an event soon. Returns at once; the event is dropped while too many wait.

        Args:
            make_event: Makes the event, in the thread.
        """
        try:
            self._events.put_nowait(make_event)
        except Full:
            if not self._dropped:
                log.warning(
                    "OpenLineage events are dropped, as %d wait; streams go on; hint: see that the receiver answers",
                    CAPACITY,
                )
            self._dropped += 1

    def close(self, timeout: float) -> None:
        """Send what waits, for some seconds at most."""
        self._closing.set()
        self._thread.join(timeout)
        self._closed.set()
        if waiting := self._events.qsize() + self._sending:
            log.warning("%d OpenLineage events are not sent: the receiver is down or too slow", waiting)

    def _run(self) -> None:
        while not (self._failing and self._closed.is_set()):
            try:
                make_event = self._events.get(timeout=LOOK_EVERY_S)
            except Empty:
                if self._closing.is_set():
                    return
                continue
            self._sending = True
            try:
                self._send(make_event())
                self._refused = False
            except Exception as e:
                if not self._refused:
                    log.warning("OpenLineage events are left out; streams go on: %s: %s", type(e).__name__, e)
                self._refused = True
            self._sending = False

    def _send(self, event: RunEvent) -> None:
        """Send an event, again and again until the receiver takes it or this is closed.

        Raises:
            Exception: The receiver refuses it.
        """
        wait = RETRY_FIRST_S
        while True:
            try:
                self._client.emit(event)
            except Exception as e:
                if getattr(getattr(e, "response", None), "status_code", None) in REFUSALS:
                    raise
                if not self._failing:
                    log.warning(
                        "OpenLineage events cannot be sent, and wait; streams go on: %s: %s; hint: see that the "
                        "receiver of OPENLINEAGE_URL or OPENLINEAGE_CONFIG answers",
                        type(e).__name__, e,
                    )  # fmt: skip
                self._failing = True
            else:
                break
            if self._closing.wait(wait) and self._closed.wait(RETRY_FIRST_S):
                return
            wait = min(2 * wait, RETRY_MOST_S)
        if self._failing or self._dropped:
            log.info("OpenLineage events are sent again; %d were dropped", self._dropped)
        self._failing, self._dropped = False, 0


def open_emitter() -> LineageEmitter | None:
    """The emitter of this process; None if lineage is off.

    Raises:
        MissingExtra: OpenLineage's client is not installed.
        SettingError: OpenLineage's configuration names no transport, or is not valid.
    """
    if not settings().lineage:
        return None
    with optional_packages():
        from openlineage.client import OpenLineageClient
        from openlineage.client.transport.console import ConsoleTransport
    # The client's transport tries each event several times, and warns each time.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    try:
        client = OpenLineageClient()
    except Exception as e:
        # Each transport raises what it likes.
        raise SettingError(
            "PENSTOCK_LINEAGE is on, and OpenLineage's configuration is not valid",
            got=f"{type(e).__name__}: {e}",
            hint=TRANSPORT_HINT,
        ) from e
    if isinstance(client.transport, ConsoleTransport) and not client.config.transport:
        raise SettingError(
            "PENSTOCK_LINEAGE is on, and OpenLineage has no transport", got="no configuration", hint=TRANSPORT_HINT
        )
    return LineageEmitter(client)


def job_namespace() -> str:
    """The namespace of jobs, as OpenLineage's integrations take it from the environment."""
    return os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
