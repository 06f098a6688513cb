"""Replacements as the page shows them; what their states mean, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.control import ReplacementRow, ReplacementState
from penstock.monitoring.dashboard.alarms import PAST_FOR, SILENT_MS
from penstock.monitoring.dashboard.model import ReplacementView

REPLACEMENT_STATES: dict[ReplacementState, str] = {
    "queued": "Its driver starts, or waits for room on its machine.",
    "building": "The new version reads its backlog; the running version goes on.",
    "following": "The new version has caught up, and is compared with the running version.",
    "cutting": "The new version takes the place of the running version.",
    "cut": "The new version writes. The state and the code of the version before it are kept.",
    "confirmed": "The new version writes, and an operator has confirmed it, or another replacement followed.",
    "cancelled": "An operator ended it; the running version goes on.",
    "failed": "It is undone; the running version goes on.",
}
# The same sentences as in docs/operations.md.
REPLACEMENT_REMEDIES: dict[ReplacementState, str] = {
    "queued": "wait; if a reason is given, free what it names",
    "building": "wait",
    "following": "wait; with `--cut manual` read the comparison, then `penstock replacements cut NAME`",
    "cutting": "wait",
    "cut": "check the output, then `penstock replacements confirm NAME`",
    "confirmed": "",
    "cancelled": "",
    "failed": "correct what the reason names, then replace it again",
}


def replacement_views(rows: Sequence[ReplacementRow], now: int) -> list[ReplacementView]:
    """The newest replacement of each stream, and one before it that is cut and not confirmed; the newest first.

    Args:
        rows: Replacements, the newest first.
        now: Epoch ms.
    """
    newest: dict[str, ReplacementRow] = {}
    for row in rows:
        newest.setdefault(row.name, row)
    shown = [row for row in rows if row.state == "cut" or newest[row.name] is row]
    return listed_views(shown, now, {row.name: row.id for row in rows if row.is_open})


def listed_views(rows: Sequence[ReplacementRow], now: int, open_ids: Mapping[str, str]) -> list[ReplacementView]:
    """Replacements in their order.

    Args:
        rows: Replacements.
        now: Epoch ms.
        open_ids: Ids of the open replacements, by stream.
    """
    views = [replacement_view(row, now) for row in rows]
    # What follows a cut is decided first.
    return [view if open_ids.get(view.name, view.id) == view.id else replace(view, actions=[]) for view in views]


def replacement_view(row: ReplacementRow, now: int) -> ReplacementView:
    """A replacement as the page shows it. now: epoch ms."""
    figures, options = row.figures, row.options
    records, total = figures.get("records"), figures.get("total")
    done = min(1.0, records / total) if total and records is not None else None
    silent = row.is_open and now - row.reported_at > SILENT_MS
    reads = row.is_open and not silent
    return ReplacementView(
        row.id,
        row.name,
        row.app,
        row.state,
        row.why,
        alarm=row.state == "failed" and now - (row.ended_at or 0) <= PAST_FOR,
        way="back to the version before" if options.get("back") else "in place" if options.get("in_place") else "",
        records=records,
        total=total,
        done=1.0 if row.state in ("cut", "confirmed") else done,
        rate=figures.get("rate") if reads else None,
        remaining_ms=(figures.get("remaining_ms") or None) if reads and row.state != "following" else None,
        lag=figures.get("lag") if row.is_open else None,
        compared=figures.get("compared"),
        equal=figures.get("equal"),
        different=figures.get("different"),
        only_new=figures.get("only_new"),
        only_running=figures.get("only_running"),
        refused=figures.get("refused"),
        examples=len(figures.get("examples") or ()),
        pause_ms=figures.get("pause_ms"),
        pause_over_ms=figures.get("pause_over_ms"),
        cut_requested=row.cut_requested_at is not None,
        actions=_actions(row),
        actor=row.actor,
        requested_at=row.requested_at,
        reported_age_ms=max(0, now - row.reported_at),
        silent=silent,
    )


def _actions(row: ReplacementRow) -> list[str]:
    if row.state == "cut":
        return ["confirm", "back"]
    if row.state not in ("queued", "building", "following"):
        return []
    waits_for_operator = row.options.get("cut") == "manual" and row.cut_requested_at is None
    return ["cut", "cancel"] if row.state == "following" and waits_for_operator else ["cancel"]
