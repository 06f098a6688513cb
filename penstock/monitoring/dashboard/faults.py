"""Faults: what does not work, or needs a person, by the overview."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from penstock.control import Fault, FaultRow
from penstock.model.declaration import CAPTURES_APP
from penstock.monitoring.dashboard.backfills import RUN_REMEDIES
from penstock.monitoring.dashboard.model import (
    AppView,
    BackfillRunView,
    FaultView,
    ReplacementView,
    StreamView,
)
from penstock.monitoring.dashboard.replacements import REPLACEMENT_REMEDIES
from penstock.monitoring.dashboard.states import REMEDIES, State
from penstock.monitoring.humanize import first_line

FAULT_STATES: frozenset[State] = frozenset(("hung", "down", "failing", "blocked", "waiting", "queued", "unknown"))
# What a person can do about a stream that runs and has an alarm.
ALARM_REMEDY = "read its dead letters and late records; for a store that is busy, give it more room"


def current_faults(
    apps: Iterable[AppView], runs: Iterable[BackfillRunView], replacements: Iterable[ReplacementView]
) -> list[Fault]:
    """The faults of this moment: one of an app without a working driver instead of one of each of its streams."""
    faults = [fault for app in apps for fault in _of_app(app)]
    # Of a backfill, the newest run that has an alarm. A dry run changes nothing.
    by_name = {run.name: run for run in reversed(list(runs)) if run.alarm and not run.dry}
    faults += [Fault("backfill", run.name, "", run.state, run.alarm) for run in by_name.values()]
    faults += [Fault("replacement", one.name, one.app, one.state, one.why) for one in replacements if one.alarm]
    return faults


def _of_app(app: AppView) -> list[Fault]:
    # The reason is empty where the state is the one of its worst stream.
    no_driver = app.desired == "on" and app.state in FAULT_STATES and bool(app.why)
    faults = [Fault("app", app.name, app.name, app.state, first_line(app.why))] if no_driver else []
    wanted = (stream for stream in app.streams if stream.desired == "on")
    faults += [
        fault for stream in wanted if (fault := _of_stream(stream)) and not (no_driver and stream.state == app.state)
    ]
    return faults


def _of_stream(stream: StreamView) -> Fault | None:
    kind = "capture" if stream.app == CAPTURES_APP else "sink" if stream.store is not None else "stream"
    if stream.state in FAULT_STATES:
        error = stream.error if stream.state in ("failing", "blocked", "waiting") else None
        return Fault(kind, stream.name, stream.app, stream.state, first_line(error or stream.why))
    if stream.alarms:
        return Fault(kind, stream.name, stream.app, "alarm", "; ".join(stream.alarms))
    return None


# The view of the page that shows a fault, by its kind; of the others it is the one of a stream.
_VIEWS = {
    "app": "#/streams?app={}",
    "backfill": "#/backfills",
    "capture": "#/captures?q={}",
    "replacement": "#/replacements",
}


def page_address(fault: Fault) -> str:
    """Where the page shows a fault: what follows its own address."""
    return _VIEWS.get(fault.kind, "#/streams/{}").format(quote(fault.name, safe=""))


def fault_views(faults: Sequence[Fault], rows: Sequence[FaultRow], now: int) -> tuple[list[FaultView], list[FaultView]]:
    """Faults as the page shows them.

    Args:
        faults: Of this moment.
        rows: As the meter noted them.
        now: Epoch ms.

    Returns:
        The faults of this moment, those that last longest first; and those that have ended, the newest first.
    """
    since = {(row.kind, row.name): row.since for row in rows if row.ended_at is None}
    lasting = [_view(fault, since.get((fault.kind, fault.name)), None, now) for fault in faults]
    past = [_view(row, row.since, row.ended_at, now) for row in rows if row.ended_at is not None]
    return sorted(lasting, key=lambda view: view.since or now), past


def _view(fault: Fault, since: int | None, ended_at: int | None, now: int) -> FaultView:
    lasted = None if since is None else max(0, (ended_at or now) - since)
    return FaultView(
        fault.kind, fault.name, fault.app, fault.state, fault.reason, page_address(fault), _remedy(fault), since,
        lasted, ended_at,
    )  # fmt: skip


def _remedy(fault: Fault) -> str:
    if fault.state == "alarm":
        return ALARM_REMEDY
    texts: Mapping[str, Mapping[Any, str]] = {"backfill": RUN_REMEDIES, "replacement": REPLACEMENT_REMEDIES}
    remedy = texts.get(fault.kind, REMEDIES).get(fault.state, "")
    return remedy.replace("<app>", fault.app).replace("NAME", fault.name)
