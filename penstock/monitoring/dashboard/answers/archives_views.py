"""Where records are kept: archives in an object store, and views that are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.control import Control
from penstock.monitoring.dashboard.model import StreamView
from penstock.monitoring.dashboard.page_data import PageData

ARCHIVES, INSTANCES = 1_000, 20
FIGURES = ("state", "why", "desired", "stale", "rows_per_s", "lag", "batch_age_ms", "error", "error_age_ms")


def archive_list(data: PageData, control: Control) -> dict[str, Any]:
    """Declared archives, each with the figures of the stream that writes it; without these if nothing runs it.

    The newest closed hour is known of archives with asset events, from the control database.
    """
    declared = data.declarations.of_kind("archive") if data.declarations else {}
    shown = dict(list(declared.items())[:ARCHIVES])
    hours = control.last_partitions(list(shown)) if shown else {}
    return {
        "archives": [
            {
                **_declared(row),
                "topic": row["reads"][0]["name"],
                "place": row["writes"][0]["name"],
                "table": row["table"],
                "newest_closed_hour": hours.get(name),
                **_figures(data.streams.get(name)),
            }
            for name, row in shown.items()
        ],
        "archives_total": len(declared),
    }


def view_list(data: PageData) -> dict[str, Any]:
    """Declared views, each with its instances, and the panels that show them."""
    declared = data.declarations.of_kind("view") if data.declarations else {}
    panels = data.declarations.panels if data.declarations else {}
    instances: dict[str, list[dict[str, Any]]] = {}
    for name, stream in data.streams.items():
        view, at, _ = name.partition("@")
        if at and view in declared:
            size = {"rows": stream.state_rows, "bytes": stream.state_bytes, "dead": stream.dead}
            instances.setdefault(view, []).append({"name": name, "app": stream.app, **size, **_figures(stream)})
    return {
        "views": [
            {
                **_declared(row),
                "topic": row["reads"][0]["name"],
                "instances": instances.get(name, [])[:INSTANCES],
                "panels": [panel for panel, one in panels.items() if one["view"] == name],
            }
            for name, row in declared.items()
        ],
        "panels": [
            {"name": name, "title": panel["title"], "view": panel["view"], "location": data.rows[name]["location"]}
            for name, panel in panels.items()
        ],
    }


def _declared(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("name", "app", "runs", "location", "masks")}


def _figures(stream: StreamView | None) -> dict[str, Any]:
    return {name: getattr(stream, name) for name in FIGURES} if stream else dict.fromkeys(FIGURES)
