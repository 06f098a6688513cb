"""The plain rules of presence, by cases worked out by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from tests.support.presence_model import (
    AWAY,
    DWELL,
    MINUTE,
    WAIT,
    WITHIN,
    counts,
    device_contacts,
    enriched,
    histories,
    walk_ins,
)

T = 1_700_000_000_000
SECOND = 1000


def probes(*times: int, signal: int = -70, device: str = "a1", business: str = "7") -> list[dict[str, Any]]:
    """Probes so many ms after T."""
    pair = {"device": device, "business": business, "router": "r-1"}
    return [{**pair, "signal": signal, "timestamp": T + at} for at in times]


def found(given: list[dict[str, Any]], thresholds: dict[str, int] | None = None) -> list[tuple[int, int]]:
    """(since, timestamp) of each walk-in, in ms after T."""
    made = walk_ins(given, {"7": -70} if thresholds is None else thresholds)
    return [(w["since"] - T, w["timestamp"] - T) for w in made]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], []),
        ([0], []),
        ([0, DWELL - 1], []),
        ([0, DWELL], [(0, DWELL)]),
        ([0, DWELL + 1], [(0, DWELL + 1)]),
        ([0, WITHIN], [(0, WITHIN)]),
        ([0, WITHIN + 1], []),
        # The first time is too far back, the second is not.
        ([0, MINUTE, WITHIN + 1], [(MINUTE, WITHIN + 1)]),
        ([0, WITHIN + 1, WITHIN + 1 + DWELL], [(WITHIN + 1, WITHIN + 1 + DWELL)]),
        # Of several that are far enough back the earliest is told, and only the first time that has one counts.
        ([0, SECOND, MINUTE, DWELL + MINUTE, DWELL + 2 * MINUTE], [(0, DWELL + MINUTE)]),
        # Seen every 11 minutes, for hours: never long enough within ten.
        ([n * 11 * MINUTE for n in range(30)], []),
    ],
)
def test_a_walk_in_is_when_the_dwell_is_reached(times: list[int], expected: list[tuple[int, int]]) -> None:
    assert found(probes(*times)) == expected


@pytest.mark.parametrize(("gap", "more"), [(AWAY - 1, 0), (AWAY, 1), (AWAY + 1, 1)])
def test_a_device_that_was_away_for_the_gap_walks_in_again(gap: int, more: int) -> None:
    back = DWELL + gap
    again = [(back, back + DWELL)] * more
    assert found(probes(0, DWELL, back, back + DWELL)) == [(0, DWELL), *again]


def test_a_gap_is_between_neighbours_not_since_the_walk_in() -> None:
    times = [0, DWELL, *(DWELL + n * (AWAY - 1) for n in range(1, 5))]
    last = times[-1]
    assert found(probes(*times, last + DWELL)) == [(0, DWELL)]
    assert found(probes(*times, last + AWAY, last + AWAY + DWELL)) == [(0, DWELL), (last + AWAY, last + AWAY + DWELL)]


def test_a_dwell_lies_within_one_presence() -> None:
    made = walk_ins(probes(0, 5 * MINUTE), {"7": -70}, dwell=2 * MINUTE, within=10 * MINUTE, away=5 * MINUTE)
    assert made == []


def test_a_presence_without_a_walk_in_may_have_one_later() -> None:
    assert found(probes(0, AWAY - 1, AWAY - 1 + DWELL)) == [(AWAY - 1, AWAY - 1 + DWELL)]


def test_the_signal_must_reach_the_threshold() -> None:
    assert found(probes(0, signal=-70) + probes(DWELL, signal=-71)) == []
    assert found(probes(0, signal=-71) + probes(DWELL, 2 * DWELL - 1, signal=-70)) == []
    # A weak probe neither bridges a gap nor is the time away counted from it.
    weak = probes(2 * DWELL, AWAY // 2, signal=-90)
    assert found(probes(0, DWELL, DWELL + AWAY, 2 * DWELL + AWAY) + weak) == [
        (0, DWELL),
        (AWAY + DWELL, AWAY + 2 * DWELL),
    ]


def test_each_business_has_its_own_threshold_and_none_is_no_business() -> None:
    given = [p for business in ("7", "8", "9") for p in probes(0, DWELL, signal=-75, business=business)]
    made = walk_ins(given, {"7": -70, "8": -75})
    assert made == [{"device": "a1", "business": "8", "since": T, "timestamp": T + DWELL}]


def test_devices_and_businesses_are_apart() -> None:
    assert found(probes(0, business="7") + probes(DWELL, business="8"), {"7": -70, "8": -70}) == []
    assert found(probes(0, device="a1") + probes(DWELL, device="a2")) == []
    both = walk_ins(probes(0, DWELL, business="8") + probes(0, DWELL), {"7": -70, "8": -70})
    assert [w["business"] for w in both] == ["7", "8"]


def event(at: int, kind: str, contact: str | None = None, business: str | None = None) -> dict[str, Any]:
    return {"device": "a1", "contact": contact, "business": business, "type": kind, "timestamp": T + at}


@pytest.mark.parametrize(
    ("events", "contact", "businesses", "at"),
    [
        ([event(0, "login", "c-1", "7")], "c-1", ["7"], 0),
        ([event(0, "login", "c-1", "9"), event(1, "login", "c-2", "10")], "c-2", ["10", "9"], 1),
        # The newest by its own time, whenever it came.
        ([event(5, "login", "c-5", "7"), event(1, "login", "c-1", "8")], "c-5", ["7", "8"], 5),
        ([event(0, "login", "c-1", "7"), event(1, "change", "c-2", "8")], "c-2", ["7"], 1),
        ([event(0, "login", "c-1", "7"), event(1, "removal")], None, [], 1),
        ([event(2, "login", "c-2", "8"), event(0, "login", "c-1", "7"), event(1, "removal")], "c-2", ["8"], 2),
        ([event(1, "removal"), event(2, "change", "c-2")], "c-2", [], 2),
        ([event(3, "change", "c-3"), event(2, "login", "c-2", "8"), event(1, "removal")], "c-3", ["8"], 3),
        # Ties.
        ([event(1, "login", "c-9", "7"), event(1, "removal"), event(1, "change", "c-8")], None, [], 1),
        ([event(1, "login", "c-9", "7"), event(1, "change", "c-8")], "c-8", ["7"], 1),
        ([event(1, "login", "c-10", "7"), event(1, "login", "c-9", "8")], "c-9", ["7", "8"], 1),
    ],
)
def test_the_newest_event_tells_a_devices_contact(
    events: list[dict[str, Any]], contact: str | None, businesses: list[str], at: int
) -> None:
    expected = {"device": "a1", "contact": contact, "businesses": businesses, "timestamp": T + at}
    made = device_contacts(events)
    assert {name: made["a1"][name] for name in expected} == expected
    assert device_contacts([*reversed(events), *events]) == made


def test_devices_have_contacts_of_their_own() -> None:
    other = {**event(9, "login", "c-9", "7"), "device": "b2"}
    made = device_contacts([other, event(0, "login", "c-1", "7")])
    assert {d: c["contact"] for d, c in made.items()} == {"a1": "c-1", "b2": "c-9"}


WALKED = {"device": "a1", "business": "7", "since": T - DWELL, "timestamp": T}


@pytest.mark.parametrize(
    ("events", "contact"),
    [
        ([], None),
        ([event(0, "login", "c-1", "8")], "c-1"),
        ([event(-9, "login", "c-1", "7"), event(-1, "change", "c-2"), event(1, "change", "c-3")], "c-2"),
        ([event(1, "login", "c-1", "7")], "c-1"),
        ([event(WAIT, "login", "c-1", "7")], "c-1"),
        ([event(WAIT + 1, "login", "c-1", "7")], None),
        ([event(2, "login", "c-2", "7"), event(1, "login", "c-1", "7")], "c-1"),
        # Removed by then, at the very moment, or afterwards.
        ([event(-2, "login", "c-1", "7"), event(-1, "removal")], None),
        ([event(-2, "login", "c-1", "7"), event(0, "removal")], None),
        ([event(-2, "login", "c-1", "7"), event(1, "removal")], "c-1"),
        ([event(-2, "login", "c-1", "7"), event(-1, "removal"), event(5, "change", "c-2")], "c-2"),
        # Who comes and is removed in one millisecond was never known.
        ([event(3, "login", "c-1", "7"), event(3, "removal"), event(4, "login", "c-2", "7")], "c-2"),
        ([event(3, "login", "c-1", "7"), event(4, "removal")], "c-1"),
    ],
)
def test_a_walk_in_gets_the_contact_of_its_time(events: list[dict[str, Any]], contact: str | None) -> None:
    expected = [] if contact is None else [{**WALKED, "contact": contact}]
    assert enriched([WALKED], events) == expected
    assert enriched([WALKED, WALKED], [*reversed(events), *events]) == expected


def test_a_contact_is_of_one_device() -> None:
    assert enriched([{**WALKED, "device": "b2"}], [event(0, "login", "c-1", "7")]) == []


def walked(at: int, device: str = "a1", business: str = "7") -> dict[str, Any]:
    return {"device": device, "business": business, "since": T, "timestamp": T + at, "contact": "c-1"}


def base(n: int, as_of: int, business: str = "7", contact: str = "c-1") -> dict[str, Any]:
    return {"business": business, "contact": contact, "count": n, "as_of": T + as_of}


@pytest.mark.parametrize(
    ("walks", "bases", "expected"),
    [
        ([walked(1), walked(2), walked(1, "b2")], [], 3),
        ([walked(1), walked(1)], [], 1),
        ([walked(1), walked(2), walked(3)], [base(10, 2)], 11),
        ([walked(1)], [base(10, 2), base(5, 0)], 10),
        ([walked(1)], [base(5, 0), base(7, 0), base(6, 0)], 8),
        ([], [base(4, 0)], 4),
        ([walked(1)], [base(0, 1)], 0),
    ],
)
def test_a_count_is_the_newest_base_and_what_came_after_it(
    walks: list[dict[str, Any]], bases: list[dict[str, Any]], expected: int
) -> None:
    assert counts(walks, bases) == {("7", "c-1"): expected}
    assert counts([*reversed(walks), *walks], [*reversed(bases), *bases]) == {("7", "c-1"): expected}


def test_pairs_are_counted_apart() -> None:
    made = counts([walked(1), walked(1, business="8")], [base(3, 0), base(9, 0, contact="c-2")])
    assert made == {("7", "c-1"): 4, ("7", "c-2"): 9, ("8", "c-1"): 1}


def test_histories_depend_on_their_seed_and_reach_the_limits_of_the_rules() -> None:
    assert histories(5) == histories(5) != histories(6)
    seen: Counter[str] = Counter()
    for seed in range(300):
        h = histories(seed)
        strong: dict[tuple[str, str], set[int]] = {}
        for p in h.probes:
            threshold = h.thresholds.get(p["business"])
            seen["unknown business"] += threshold is None
            if threshold is not None:
                seen[f"signal {p['signal'] - threshold}"] += 1
                if p["signal"] >= threshold:
                    strong.setdefault((p["device"], p["business"]), set()).add(p["timestamp"])
        for times in map(sorted, strong.values()):
            for name, border in [("away", AWAY), ("dwell", DWELL), ("within", WITHIN)]:
                seen.update(f"{name} {b - a - border}" for a, b in pairwise(times))
        known = enriched(walk_ins(h.probes, h.thresholds), h.events)
        logins = {e["timestamp"] for e in h.events}
        seen["at the walk-in"] += sum(w["timestamp"] in logins for w in known)
        seen["waited for"] += sum(all(e["timestamp"] > w["timestamp"] for e in h.events) for w in known)
        seen["wait over"] += sum(w["timestamp"] + WAIT + 1 in logins for w in walk_ins(h.probes, h.thresholds))
        seen["base at a walk-in"] += sum(b["as_of"] == w["timestamp"] for b in h.bases for w in known)
        again = h.shuffled(seed + 1)
        assert len(h.probes) < 2 or again.probes != h.probes
        assert walk_ins(again.probes, h.thresholds) == walk_ins(h.probes, h.thresholds)
        assert device_contacts(again.events) == device_contacts(h.events)
        assert counts(known, again.bases) == counts(known, h.bases)
    borders = [f"{name} {beside}" for name in ("away", "dwell", "within") for beside in (-1, 0, 1)]
    others = ["at the walk-in", "waited for", "wait over", "base at a walk-in", "unknown business"]
    assert [name for name in [*borders, "signal -1", "signal 0", *others] if seen[name] < 10] == []
