"""Panels of the operator page: counts of a view's rows, and what views have about a key.

A panel is the JSON object of `penstock.catalog.listing.json_panel`. Each part of an answer has its data with its
freshness, or `trouble`: what is wrong with its view.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import httpx

from penstock.control import Control
from penstock.errors import PenstockError
from penstock.logs import printable
from penstock.monitoring.collect.samples import now_ms
from penstock.views.cluster import client

log = logging.getLogger(__name__)

# Seconds: the timeout of a query, and how long counts are cached for all viewers, as each reads a whole index.
TIMEOUT, CACHED = 5.0, 5.0
# Values of a dimension, elements of an array, rows of a table, and characters of a value that are returned.
VALUES, ELEMENTS, ROWS, CHARACTERS = 10, 50, 20, 200
STEP_MS, STEPS = 5 * 60_000, 12

Object = dict[str, Any]
TROUBLES = {
    "away": "The views do not answer.",
    "slow": "The views did not answer in time.",
    "not-ready": "The views are not ready.",
    "refused": "The views refuse this query.",
    "missing": "The view is not served.",
}


class PanelCounts:
    """Counts of panels, cached. clock: epoch ms."""

    def __init__(self, control: Callable[[], Control], clock: Callable[[], int] = now_ms) -> None:
        self._control, self._clock = control, clock
        self._locks: dict[str, Lock] = defaultdict(Lock)
        self._cached: dict[str, tuple[float, Object, Object]] = {}

    def read(self, panel: Object) -> Object:
        """Rows in total, by each dimension, and by the time of the last change of their status.

        Raises:
            ControlError: the control database, which has the addresses of the views, does not answer.
        """
        with self._locks[panel["name"]]:
            at, of, counts = self._cached.get(panel["name"], (float("-inf"), panel, {}))
            if of != panel or time.monotonic() - at >= CACHED:
                counts = self._read(panel)
                self._cached[panel["name"]] = time.monotonic(), panel, counts
            return counts

    def _read(self, panel: Object) -> Object:
        control, now = self._control(), self._clock()
        status, since = panel["status"], panel["since"]
        fields = [*panel["dimensions"], *([since] if since else [])]
        queries: list[Object] = [{"by": [field, status] if status else [field]} for field in fields]
        begin = (now // STEP_MS - STEPS + 1) * STEP_MS
        if since:
            queries[-1] |= {"per": {since: STEP_MS}, "where": {since: {"ge": begin}}}
        with ThreadPoolExecutor(len(queries)) as pool:
            answers = list(pool.map(lambda query: _query(control, panel["view"], "counts", query), queries))
        parts = dict(zip(panel["dimensions"], answers, strict=False))
        complete = next((part for part in parts.values() if "trouble" not in part), answers[0])
        return {
            "now": now,
            "total": _total(complete, status),
            "dimensions": {field: _dimension(part, field, status) for field, part in parts.items()},
            "changes": _changes(answers[-1], since, status, begin) if since else None,
        }


def read_cards(control: Control, panel: Object, key: str) -> Object:
    """What the cards of a panel show about a key; None for a card whose rows no value is known of.

    Raises:
        ControlError: the control database, which has the addresses of the views, does not answer.
    """
    cards = panel["cards"]
    views = list(dict.fromkeys([panel["view"], *(card["view"] for card in cards if not card["match"])]))
    with ThreadPoolExecutor(len(views)) as pool:
        rows = dict(zip(views, pool.map(lambda view: _row(control, view, key), views), strict=True))
    values = [part["value"] for part in rows.values() if part.get("value")]

    def card_part(card: Object) -> Object | None:
        if card["match"]:
            value = next((value[card["match"]] for value in values if value.get(card["match"]) is not None), None)
            return None if value is None else _matching_rows(control, card, value)
        return _first_elements(rows[card["view"]], card["elements"])

    return {"now": now_ms(), "key": key, "cards": [card_part(card) for card in cards]}


def _first_elements(part: Object, field: str) -> Object:
    """A row with the first elements of an array, and how many there are."""
    elements = (part.get("value") or {}).get(field)
    return (
        {**part, "value": {**part["value"], field: elements[:ELEMENTS]}, "count": len(elements)} if elements else part
    )


def _matching_rows(control: Control, card: Object, value: Any) -> Object:
    query: Object = {"where": {card["match"]: value}, "limit": ROWS}
    if card["order"]:
        query |= {"order": card["order"], "descending": True}
    part = _query(control, card["view"], "search", query)
    if "rows" in part:
        part = {**_only(part, "freshness"), "rows": [row["value"] for row in part["rows"]], "more": "cursor" in part}
    return {**part, "match": value}


def _row(control: Control, view: str, key: str) -> Object:
    """The row of a key; `value` is None if there is none."""
    return _request(control, view, client.key_path(view, key), None)


def _query(control: Control, view: str, what: str, body: Mapping[str, Any]) -> Object:
    return _request(control, view, client.path_of(view, what), body)


def _request(control: Control, view: str, path: str, body: Mapping[str, Any] | None) -> Object:
    try:
        answer = client.request(control, path, body, TIMEOUT)
    except client.ViewsTimeout as e:
        return _trouble("slow", view, e)
    except client.ViewsUnavailable as e:
        return _trouble("away", view, e)
    if answer.status_code == 200:
        content: Object = answer.json()
        return content
    if answer.status_code == 404 and (freshness := _freshness(answer)):
        return {"value": None, "freshness": freshness}
    kind = {404: "missing", 503: "not-ready", 504: "slow"}.get(answer.status_code, "refused")
    wrong_token = "the page's server has another PENSTOCK_VIEWS_TOKEN than the views"
    return _trouble(kind, view, wrong_token if answer.status_code == 401 else client.detail_of(answer))


def _trouble(kind: str, view: str, error: PenstockError | str) -> Object:
    log.warning("view %s: %s", view, error)
    # The whole message has names of hosts, which are for the log and not for every viewer.
    detail = error.what if isinstance(error, PenstockError) else error
    return {"trouble": {"kind": kind, "title": TROUBLES[kind], "detail": printable(detail)[:400], "view": view}}


def _freshness(answer: httpx.Response) -> Object | None:
    """The freshness of an answer whose body does not have it."""
    headers = answer.headers
    if "penstock-lag" not in headers:
        return None
    return {
        "lag": int(headers["penstock-lag"]), "age_ms": int(headers["penstock-age-ms"]),
        "stale": headers["penstock-stale"] == "true",
    }  # fmt: skip


def _only(part: Object, *names: str) -> Object:
    return {name: part[name] for name in names if name in part}


def _sum_by(groups: Iterable[Object], status: str, value: Callable[[Object], Any]) -> dict[Any, list[int]]:
    """Counts by a value of the groups: without the status, with it. All are without it if there is no status."""
    counts: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for group in groups:
        counts[value(group)][bool(status and group[status])] += group["count"]
    return counts


def _counts(counts: Iterable[int]) -> Object:
    off, on = counts
    return {"on": on, "off": off, "all": on + off}


def _total(part: Object, status: str) -> Object:
    if "trouble" in part:
        return part
    return {**_counts(_sum_by(part["groups"], status, lambda _: None)[None]), **_only(part, "freshness")}


def _dimension(part: Object, field: str, status: str) -> Object:
    """The most frequent values of a field, and all others together."""
    if "trouble" in part:
        return part
    values = sorted(_sum_by(part["groups"], status, lambda group: group[field]).items(), key=lambda item: -sum(item[1]))
    others = values[VALUES:]
    return {
        "rows": [{"name": _shorten(value), **_counts(counts)} for value, counts in values[:VALUES]],
        "others": {"values": len(others), **_counts(map(sum, zip(*(c for _, c in others), strict=True)))}
        if others
        else None,
        **_only(part, "freshness"),
    }


def _changes(part: Object, since: str, status: str, begin: int) -> Object:
    """Rows by the step in which their status changed last, as it is now."""
    if "trouble" in part:
        return part
    # A time that is ahead of this clock counts as now.
    last = begin + (STEPS - 1) * STEP_MS
    counts = _sum_by(part["groups"], status, lambda group: min(group[since], last))
    steps = [{"at": at, **_counts(counts[at])} for at in range(begin, last + 1, STEP_MS)]
    totals = {name: sum(step[name] for step in steps) for name in ("on", "off", "all")}
    return {"steps": steps, "step_ms": STEP_MS, "begin": begin, **totals, **_only(part, "freshness")}


def _shorten(value: Any) -> Any:
    return f"{value[:CHARACTERS]}…" if isinstance(value, str) and len(value) > CHARACTERS else value
