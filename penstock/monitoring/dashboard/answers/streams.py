"""Streams by app, and one stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from penstock.control import Control, Fault, FaultRow
from penstock.monitoring.dashboard.answers.paging import search
from penstock.monitoring.dashboard.answers.summary import by_state, fault_row
from penstock.monitoring.dashboard.data_flow import Neighbour
from penstock.monitoring.dashboard.faults import fault_views
from penstock.monitoring.dashboard.lateness import delay, lateness
from penstock.monitoring.dashboard.model import AppView, StreamView
from penstock.monitoring.dashboard.page_data import PageData
from penstock.monitoring.dashboard.replacements import replacement_view

StreamOrder = Literal["lag", "watermark"]
# Of what has a new version beside the running one.
REPLACEABLE = ("stream", "sink")
# Left to the view of one stream.
DETAILS = ("gaps", "expectations", "topics")
# Characters of an error in a list.
ERROR = 500
PAST_FAULTS = 50


def stream_list(
    data: PageData, q: str, app: str, state: str, page: int, sort: StreamOrder | None = None
) -> dict[str, Any]:
    """A page of streams, by app or in an order of all.

    Args:
        data: The present moment.
        q: A part of a name, app, state or reason.
        app: Only streams of this app; empty for all.
        state: Only streams in this state; empty for all.
        page: Counted from 1.
        sort: Those with the greatest lag, or with the oldest watermark beyond what is declared, first; None: by app.
    """
    streams = [stream for stream in data.streams.values() if app in ("", stream.app)]
    chosen = [stream for stream in streams if state in ("", stream.state)]
    if sort == "lag":
        chosen = sorted(chosen, key=lambda stream: _greatest_first(stream.lag))
    elif sort == "watermark":
        chosen = sorted(chosen, key=lambda stream: _greatest_first(delay(data, stream)))
    result = search(chosen, q, page, lambda s: (s.name, s.app, s.state, s.why, s.error))
    by_app: dict[str, list[Mapping[str, Any]]] = {}
    for stream in result.rows:
        by_app.setdefault(stream.app, []).append(_row(data, stream))
    return {
        **vars(result.pages),
        "total": len(data.streams),
        "by_state": by_state(streams),
        "order": [stream.name for stream in result.rows] if sort else None,
        "app_names": [one.name for one in data.view.apps],
        "apps": [
            {
                **_app(one),
                "streams": by_app[one.name],
                "streams_total": len(one.streams),
                "streams_on": sum(stream.desired == "on" for stream in one.streams),
            }
            for one in data.view.apps
            if one.name in by_app
        ],
    }


def lags(data: PageData) -> dict[str, dict[str, int]]:
    """By stream and topic that it reads, records that are not read yet; of those that have any."""
    by_stream = {
        stream.name: {topic.name: topic.lag for topic in stream.topics if topic.lag}
        for stream in data.streams.values()
        if not stream.stale
    }
    return {name: of for name, of in by_stream.items() if of}


def stream_details(data: PageData, control: Control, name: str) -> dict[str, Any] | None:
    """Everything about a stream; None if there is none of this name."""
    stream = data.streams.get(name)
    if stream is None:
        return None
    [app] = [one for one in data.view.apps if one.name == stream.app]
    declared = data.declared(name)
    node = (declared["kind"], declared["name"]) if declared else ("", name)
    flow = data.declarations.flow if data.declarations else None
    replacement = control.replacement_of(name)
    return {
        "app": _app(app),
        "stream": {**vars(stream), **_figures(data, stream)},
        "declared": declared,
        "reads_from": [neighbour_row(data, one) for one in flow.reads_from(node)] if flow else [],
        "read_by": [neighbour_row(data, one) for one in flow.read_by(node)] if flow else [],
        "replacement": replacement and replacement_view(replacement, data.now),
        "faults": _faults(data, control, stream),
    }


def _greatest_first(value: int | None) -> tuple[bool, int]:
    return value is None, -(value or 0)


def neighbour_row(data: PageData, one: Neighbour) -> dict[str, Any]:
    """A neighbour, and whether it has a view of its own: what is only declared has none."""
    return {**one._asdict(), "shown": one.name in data.streams}


def _app(app: AppView) -> dict[str, Any]:
    return {name: value for name, value in vars(app).items() if name != "streams"}


def _row(data: PageData, stream: StreamView) -> dict[str, Any]:
    row = {name: value for name, value in vars(stream).items() if name not in DETAILS}
    topics = [{"name": topic.name, "lag": topic.lag, "partitions": topic.partitions} for topic in stream.topics]
    error = stream.error if stream.error is None or len(stream.error) <= ERROR else f"{stream.error[:ERROR]}…"
    return {**row, **_figures(data, stream), "topics": topics, "error": error}


def _figures(data: PageData, stream: StreamView) -> dict[str, Any]:
    declared = data.rows.get(stream.name)
    return {
        "behind_ms": data.delays.get(stream.name, 0),
        "late_because": lateness(data, stream),
        "replaceable": declared is not None and declared["kind"] in REPLACEABLE,
    }


def _faults(data: PageData, control: Control, stream: StreamView) -> list[dict[str, Any]]:
    """Of a stream and of its app, those of this moment first."""

    def is_of_it(fault: Fault) -> bool:
        return (fault.kind == "app" and fault.name == stream.app) or (
            fault.kind not in ("app", "backfill") and fault.name == stream.name
        )

    kinds = ("stream", "capture", "sink", "replacement")
    rows: list[FaultRow] = control.past_faults(kinds, stream.name, PAST_FAULTS)
    _, past = fault_views([], rows, data.now)
    return [fault_row(data, fault) for fault in [*filter(is_of_it, data.view.faults), *past]]
