"""Captures, sinks, backfills and replacements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.control import Control
from penstock.monitoring.dashboard.answers.paging import PAGE, Pages, search
from penstock.monitoring.dashboard.answers.streams import neighbour_row
from penstock.monitoring.dashboard.backfills import run_view
from penstock.monitoring.dashboard.model import SinkView, StreamView
from penstock.monitoring.dashboard.page_data import PageData
from penstock.monitoring.dashboard.replacements import listed_views


def capture_list(data: PageData, q: str, page: int) -> dict[str, Any]:
    """A page of captures. q: a part of a name, state, phase or reason; page: counted from 1."""
    result = search(data.view.captures, q, page, lambda c: (c.name, c.state, c.phase, c.why, c.waits))
    return {**vars(result.pages), "captures": result.rows}


def sink_list(data: PageData, q: str, page: int) -> dict[str, Any]:
    """A page of sinks, those that are declared and do not run included.

    Args:
        data: The present moment.
        q: A part of a name, app, state, reason or destination, or of the name of what it reads.
        page: Counted from 1.
    """
    rows = {sink.name: _running_sink(data, sink) for sink in data.view.sinks}
    declared = data.declarations.of_kind("sink") if data.declarations else {}
    rows |= {
        name: _declared_sink(data, row, data.streams.get(name)) for name, row in declared.items() if name not in rows
    }
    columns = ("name", "app", "state", "why", "error", "destination")

    def texts(sink: Mapping[str, Any]) -> list[str | None]:
        read = [text for one in sink["reads_from"] for text in (one["name"], one["through"])]
        return [*(sink[name] for name in columns), *read]

    result = search([rows[name] for name in sorted(rows)], q, page, texts)
    return {**vars(result.pages), "sinks": result.rows}


def backfill_list(data: PageData, control: Control, page: int) -> dict[str, Any]:
    """A page of runs of backfills, and the declared backfills, each with its last run. page: counted from 1."""
    pages = Pages.of(page, control.backfill_run_count())
    runs = [run_view(row, data.now) for row in control.backfill_runs(PAGE, pages.offset)]
    last = control.last_backfill_runs()
    declared = data.declarations.of_kind("backfill") if data.declarations else {}
    return {
        **vars(pages),
        "runs": runs,
        "declared": [
            {**row, "last_run": run_view(last[name], data.now) if name in last else None}
            for name, row in declared.items()
        ],
    }


def replacement_list(data: PageData, control: Control, page: int) -> dict[str, Any]:
    """A page of replacements, newest first. page: counted from 1."""
    pages = Pages.of(page, control.replacement_count())
    rows = control.replacements(PAGE, pages.offset)
    # Not those of `data`, which may be of before the rows.
    open_ids = {row.name: row.id for row in control.open_replacements()}
    return {**vars(pages), "replacements": listed_views(rows, data.now, open_ids)}


def _running_sink(data: PageData, sink: SinkView) -> Mapping[str, Any]:
    return {**vars(sink), "runs": True, **_place(data, data.rows.get(sink.name))}


def _declared_sink(data: PageData, row: Mapping[str, Any], stream: StreamView | None) -> Mapping[str, Any]:
    """A sink that has not reported; without a state if nothing runs it."""
    unknown: dict[str, Any] = dict.fromkeys(SinkView.__dataclass_fields__)
    known = {name: value for name, value in vars(stream).items() if name in unknown} if stream else {}
    destination = ", ".join(node["name"] for node in row["writes"] if node["kind"] == "store")
    of_row = {"name": row["name"], "app": row["app"], "destination": destination}
    return {**unknown, "health": "unknown", "reason": "", **known, **of_row, "runs": row["runs"], **_place(data, row)}


def _place(data: PageData, declared: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Where a sink is declared, whether as a statement of SQL, which can be explained; what it reads and feeds."""
    location = declared["location"] if declared else ""
    flow = data.declarations.flow if data.declarations and declared else None
    reads = flow.reads_from((declared["kind"], declared["name"])) if flow and declared else []
    return {
        "location": location,
        "stated": location.startswith("sql/sinks/"),
        "reads_from": [neighbour_row(data, one) for one in reads],
    }
