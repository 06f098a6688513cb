"""The fleet as the operator page shows it: asked of the views of app `agents`, and never guessed where they are away.

A part is what a view answered with how fresh that is, or a trouble, in the page's words.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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

AGENTS, ASSIGNED, ALERTS = "agents", "assigned", "last-alerts"
# Seconds for which one waits for the views, and for which what they said of the whole fleet is kept: to count a million
# agents is work for them, and is done once for all who look.
PATIENCE, KEEP = 5.0, 5.0
# Values of a dimension that are shown, the largest; tests and alerts of an agent.
SHOWN, TESTS, TOLD = 10, 50, 20
LONGEST = 200
STEP_MS, STEPS = 5 * 60_000, 12

Part = dict[str, Any]
KINDS = {
    "away": "The views do not answer: nothing is known of the fleet now.",
    "slow": "The views did not answer in time.",
    "not-ready": "The views are not ready.",
    "refused": "The views do not answer this.",
    "missing": "The views do not serve this.",
}


class Fleet:
    """Counts of the whole fleet, kept for a moment. clock: epoch ms."""

    def __init__(self, control: Callable[[], Control], clock: Callable[[], int] = now_ms) -> None:
        self._control, self._clock = control, clock
        self._lock = Lock()
        self._at, self._found = float("-inf"), dict[str, Any]()

    def counts(self) -> dict[str, Any]:
        """Agents by account, platform and version, online and offline, and when they last changed between the two.

        ControlError if nobody knows where the views are.
        """
        with self._lock:
            if time.monotonic() - self._at >= KEEP:
                self._found = self._counted()
                self._at = time.monotonic()
            return self._found

    def _counted(self) -> dict[str, Any]:
        control, now = self._control(), self._clock()
        begin = (now // STEP_MS - STEPS + 1) * STEP_MS
        since = {"by": ["online", "since"], "per": {"since": STEP_MS}, "where": {"since": {"ge": begin}}}
        asks: list[dict[str, Any]] = [{"by": ["account", "online"]}, {"by": ["platform", "version", "online"]}, since]
        with ThreadPoolExecutor(len(asks)) as pool:
            accounts, systems, changes = pool.map(lambda body: _asked(control, AGENTS, "counts", body), asks)
        whole = systems if "trouble" not in systems else accounts
        return {
            "now": now,
            "agents": _total(whole),
            "account": _by("account", accounts),
            "platform": _by("platform", systems),
            "version": _by("version", systems),
            "changes": _changes(changes, begin),
        }


def agent(control: Control, key: str) -> dict[str, Any]:
    """An agent by its key: its last check-in, its assignment, and the last alerts of its account. ControlError."""
    with ThreadPoolExecutor(2) as pool:
        said, assigned = pool.map(lambda view: _row(control, view, key), (AGENTS, ASSIGNED))
    value = said.get("value") or assigned.get("value")
    told: Part | None = None
    if value:
        body = {"where": {"account": value["account"]}, "order": "window_end", "descending": True, "limit": TOLD}
        found = _asked(control, ALERTS, "search", body)
        told = {"account": value["account"], **_only(found, "trouble", "freshness")}
        if "rows" in found:
            told |= {"rows": [row["value"] for row in found["rows"]], "more": "cursor" in found}
    if tests := (assigned.get("value") or {}).get("tests"):
        assigned["count"], assigned["value"]["tests"] = len(tests), tests[:TESTS]
    return {"now": now_ms(), "key": key, "said": said, "assigned": assigned, "alerts": told}


def _row(control: Control, view: str, key: str) -> Part:
    """What a view has of a key; `value` is None if there is none."""
    return _told(control, view, client.key_path(view, key), None)


def _asked(control: Control, view: str, what: str, body: Mapping[str, Any]) -> Part:
    return _told(control, view, client.path_of(view, what), body)


def _told(control: Control, view: str, path: str, body: Mapping[str, Any] | None) -> Part:
    try:
        answer = client.asked(control, path, body, PATIENCE)
    except client.ViewsTimeout as e:
        return _trouble("slow", view, e)
    except client.ViewsUnavailable as e:
        return _trouble("away", view, e)
    if answer.status_code == 200:
        found: Part = answer.json()
        return found
    if answer.status_code == 404 and (fresh := _fresh(answer)):
        return {"value": None, "freshness": fresh}
    kind = {404: "missing", 503: "not-ready", 504: "slow"}.get(answer.status_code, "refused")
    detail = "the token of the views is another one here" if answer.status_code == 401 else client.detail_of(answer)
    return _trouble(kind, view, detail)


def _trouble(kind: str, view: str, why: PenstockError | str) -> Part:
    log.warning("view %s: %s", view, why)
    # The whole message names hosts: it belongs in the log, not before every viewer.
    detail = why.what if isinstance(why, PenstockError) else why
    return {"trouble": {"kind": kind, "title": KINDS[kind], "detail": printable(detail)[:400], "view": view}}


def _fresh(answer: httpx.Response) -> Part | None:
    """Of an answer without a body of its own."""
    head = answer.headers
    if "penstock-lag" not in head:
        return None
    return {
        "lag": int(head["penstock-lag"]), "age_ms": int(head["penstock-age-ms"]),
        "stale": head["penstock-stale"] == "true",
    }  # fmt: skip


def _only(part: Part, *names: str) -> Part:
    return {name: part[name] for name in names if name in part}


def _split(groups: Iterable[Mapping[str, Any]], of: Callable[[Mapping[str, Any]], Any]) -> dict[Any, list[int]]:
    """[offline, online] by what a group is of."""
    found: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for group in groups:
        found[of(group)][group["online"]] += group["count"]
    return found


def _row_of(numbers: Sequence[int]) -> Part:
    return {"online": numbers[1], "offline": numbers[0]}


def _total(part: Part) -> Part:
    if "trouble" in part:
        return _only(part, "trouble")
    numbers = _split(part["groups"], lambda _: None)[None]
    return {**_row_of(numbers), "at": part["at"], "freshness": part["freshness"]}


def _by(name: str, part: Part) -> Part:
    """The largest values of a dimension, and what all others come to."""
    if "trouble" in part:
        return _only(part, "trouble")
    found = sorted(_split(part["groups"], lambda group: group[name]).items(), key=lambda one: -sum(one[1]))
    rest = [sum(numbers[n] for _, numbers in found[SHOWN:]) for n in (0, 1)]
    return {
        "rows": [{"name": _cut(value), **_row_of(numbers)} for value, numbers in found[:SHOWN]],
        "others": {"values": len(found) - SHOWN, **_row_of(rest)} if len(found) > SHOWN else None,
        "freshness": part["freshness"],
    }


def _changes(part: Part, begin: int) -> Part:
    """Agents by the step in which they came online or went offline, as they are now."""
    if "trouble" in part:
        return _only(part, "trouble")
    # Who is ahead of the clock here counts as of now.
    last = begin + (STEPS - 1) * STEP_MS
    found = _split(part["groups"], lambda group: min(group["since"], last))
    steps = [{"at": at, **_row_of(found[at])} for at in range(begin, last + 1, STEP_MS)]
    totals = {way: sum(step[way] for step in steps) for way in ("online", "offline")}
    return {"steps": steps, "step_ms": STEP_MS, "begin": begin, **totals, "freshness": part["freshness"]}


def _cut(value: str | None) -> str | None:
    return value if value is None or len(value) <= LONGEST else f"{value[:LONGEST]}…"
