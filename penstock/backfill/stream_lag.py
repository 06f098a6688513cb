"""Lag and watermarks of streams, as their drivers report them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.backfill.preflight import Watermarks
from penstock.backfill.run import ReaderLag
from penstock.catalog import Catalog
from penstock.control import Control
from penstock.errors import ControlError, InputNotReady

log = logging.getLogger(__name__)

# Milliseconds without a report after which a driver counts as dead, and is not waited for.
DRIVER_TIMEOUT_MS = 60_000


def reader_lag(catalog: Catalog, topic: str, control: Control) -> ReaderLag:
    """Returns a function that reads the lag in seconds of the live readers of a topic.

    Readers that are stopped or blocked, or whose driver does not report, are left out; so are all if the control
    database does not answer.
    """
    names = catalog.readers(topic)
    reported = set[str]()

    def read_lag() -> Mapping[str, float]:
        try:
            now, progress = control.stream_progress()
        except ControlError as e:
            log.warning("the lag of the readers of %s is not known: %s", topic, e)
            return {}
        live = {
            name: stream
            for name in names
            if (stream := progress.get(name))
            and stream.desired == "on"
            and now - stream.reported_at < DRIVER_TIMEOUT_MS
        }
        blocked = {name for name, stream in live.items() if stream.state == "blocked"}
        for name in sorted(blocked - reported):
            log.warning(
                "stream %s is blocked, and is not waited for: what is written to %s it reads later", name, topic
            )
        reported.update(blocked)
        live = {name: stream for name, stream in live.items() if name not in blocked}
        return {
            name: (now - stream.caught_up_at) / 1000 for name, stream in live.items() if stream.caught_up_at is not None
        }

    return read_lag


def stream_watermarks(control: Control) -> Watermarks:
    """Returns a function that reads the watermarks of streams; it raises InputNotReady if they are unknown."""

    def read_watermarks() -> Mapping[str, int | None]:
        try:
            return {name: row.watermark for name, row in control.progress().items()}
        except ControlError as e:
            raise InputNotReady(
                "it is unknown whether a stream may still write the windows that are to be recomputed",
                got=e, hint="check the control database; or use the present records: --unclosed",
            ) from e  # fmt: skip

    return read_watermarks
