"""The first view: what needs a person, and the state of the platform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.control import Fault
from penstock.monitoring.dashboard.data_flow import REACHED, Reached
from penstock.monitoring.dashboard.lateness import delay
from penstock.monitoring.dashboard.model import AppView, FaultView, StreamView
from penstock.monitoring.dashboard.page_data import FAULTS, PageData
from penstock.monitoring.dashboard.states import STATES

APPS, UNDER_WAY, BEATS = 100, 100, 200


def summary(data: PageData) -> dict[str, Any]:
    """Totals, faults, apps, what is under way and heartbeats, each bounded, with its number."""
    view = data.view
    order = list(STATES)
    apps = sorted(view.apps, key=lambda app: (order.index(app.state), app.name))
    return {
        "totals": _totals(data),
        "faults": [fault_row(data, fault) for fault in view.faults[:FAULTS]],
        "faults_total": len(view.faults),
        "past_faults": view.past_faults,
        "apps": [_app_summary(app) for app in apps[:APPS]],
        "apps_total": len(apps),
        "progress": data.under_way[:UNDER_WAY],
        "progress_total": len(data.under_way),
        "beats": view.beats[:BEATS],
        "beats_total": len(view.beats),
    }


def by_state(streams: Sequence[StreamView]) -> dict[str, int]:
    """How many streams are in each state, the worst state first."""
    counts = Counter(stream.state for stream in streams)
    return {state: counts[state] for state in STATES if counts[state]}


def fault_row(data: PageData, fault: FaultView) -> dict[str, Any]:
    """A fault, with what was tried, and names of what it affects; none while the declarations are not known."""
    names, total = _affected(data, fault)
    tried = data.attempts.get((fault.kind, fault.name), "") if fault.ended_at is None else ""
    return {**vars(fault), "tried": tried, "affects": names[:REACHED], "affects_total": total}


def _affected(data: PageData, fault: Fault) -> Reached:
    """What a fault affects: of an app, also its own streams."""
    if data.declarations is None:
        return Reached([], 0)
    rows = data.declarations.rows
    own = data.declarations.of_app.get(fault.name, []) if fault.kind == "app" else []
    nodes = [(rows[name]["kind"], name) for name in own or [fault.name] if name in rows]
    names, total = data.declarations.flow.reached(nodes)
    return Reached([*own, *names], len(own) + total)


def _totals(data: PageData) -> dict[str, Any]:
    streams = list(data.streams.values())
    current = [s for s in streams if s.desired == "on" and not s.stale and s.watermark_age_ms is not None]
    oldest = max(current, key=lambda s: delay(data, s) or 0, default=None)
    return {
        **vars(data.view.totals),
        "watermark_age_ms": oldest and delay(data, oldest),
        "watermark_of": oldest and oldest.name,
        "by_state": by_state(streams),
        "query_restarts": sum(stream.restarts for stream in streams),
    }


def _app_summary(app: AppView) -> Mapping[str, Any]:
    return {
        "name": app.name,
        "state": app.state,
        "why": app.why,
        "desired": app.desired,
        "release_seq": app.release_seq,
        "running_release": app.running_release,
        "restarts": app.restarts,
        "streams": len(app.streams),
        "by_state": by_state(app.streams),
    }
