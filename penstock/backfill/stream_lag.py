"""How far streams are, as their drivers report: those that read a topic, and the one that writes it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.backfill.preflight import Watermarks
from penstock.backfill.run import ReaderLag
from penstock.catalog import Catalog
from penstock.control import Control
from penstock.errors import ControlError, InputNotReady

log = logging.getLogger(__name__)

# A driver that has not reported for so many ms is none that could catch up.
DRIVER_TIMEOUT_MS = 60_000


def reader_lag(catalog: Catalog, topic: str, control: Control) -> ReaderLag:
    """Of each live reader the seconds since which something lies in its inputs that it has not written. Readers that
    are stopped or blocked, or whose driver is silent, hold nobody up; nor does a control database that does not
    answer."""
    names = catalog.readers(topic)
    told = set[str]()

    def ask() -> Mapping[str, float]:
        try:
            now, reached = control.stream_progress()
        except ControlError as e:
            log.warning("the lag of the readers of %s is not known: %s", topic, e)
            return {}
        live = {
            name: one
            for name in names
            if (one := reached.get(name)) and one.desired == "on" and now - one.reported_at < DRIVER_TIMEOUT_MS
        }
        blocked = {name for name, one in live.items() if one.state == "blocked"}
        for name in sorted(blocked - told):
            log.warning(
                "stream %s is blocked, and is not waited for: what is written to %s it reads later", name, topic
            )
        told.update(blocked)
        live = {name: one for name, one in live.items() if name not in blocked}
        return {name: (now - one.caught_up_at) / 1000 for name, one in live.items() if one.caught_up_at is not None}

    return ask


def stream_watermarks(control: Control) -> Watermarks:
    """Of each stream that has run its watermark, epoch ms; None while there is none. InputNotReady if nobody knows."""

    def ask() -> Mapping[str, int | None]:
        try:
            return {name: row.watermark for name, row in control.progress().items()}
        except ControlError as e:
            raise InputNotReady(
                "whether a stream may still write the windows that are to be computed again is not known",
                got=e, hint="see that the control database answers; or take what is there: --unclosed",
            ) from e  # fmt: skip

    return ask
