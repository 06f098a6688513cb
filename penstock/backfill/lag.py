"""How far the streams that read a topic are behind it, as their drivers report."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.backfill.run import Behind
from penstock.catalog import Catalog
from penstock.control import Control
from penstock.errors import ControlError

log = logging.getLogger(__name__)

# A driver that has not reported for so many ms is none that could catch up.
SILENT_MS = 60_000


def behind(catalog: Catalog, topic: str, control: Control) -> Behind:
    """Of each live reader the seconds since which something lies in its inputs that it has not written. Readers that
    are stopped, or whose driver is silent, hold nobody up; nor does a control database that does not answer."""
    names = catalog.readers(topic)

    def ask() -> Mapping[str, float]:
        try:
            now, reached = control.reach()
        except ControlError as e:
            log.warning("the lag of the readers of %s is not known: %s", topic, e)
            return {}
        live = {
            name: one
            for name in names
            if (one := reached.get(name)) and one.desired == "on" and now - one.reported_at < SILENT_MS
        }
        return {name: (now - one.through) / 1000 for name, one in live.items() if one.through is not None}

    return ask
