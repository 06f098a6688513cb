"""The crowd's truth is what the rules make of its probes, and its probes lie on the borders of the rules."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from jobs.presence.simulator.crowd import UNKNOWN, Business, Crowd, Plan, Step, plan
from jobs.presence.simulator.scripts import Rules
from penstock.errors import PenstockError
from tests.support.presence_model import walk_ins

START, HOUR = 1_700_000_000_000, 3_600_000
SHOPS = [Business("3", -70), Business("7", -62), Business("12", -80)]
# Like those of the streams, in less time.
RULES = Rules(dwell=20_000, within=100_000, away=600_000)


def crowd(seed: int = 1, **given: Any) -> Crowd:
    size = {"devices": 150, "businesses": SHOPS, "rate": 4.0, "length": HOUR, "step": 5000, "rules": RULES}
    return Crowd(**{**size, "start": START, "seed": seed, **given})


def sent(steps: list[Step]) -> list[dict[str, Any]]:
    return [json.loads(value) for step in steps for _, value in step.probes]


def ruled(probes: list[dict[str, Any]], rules: Rules = RULES) -> list[tuple[Any, ...]]:
    thresholds = {b.id: b.threshold for b in SHOPS}
    found = walk_ins(probes, thresholds, rules.dwell, rules.within, rules.away)
    return sorted((w["device"], w["business"], w["since"], w["timestamp"]) for w in found)


@pytest.mark.parametrize("seed", range(5))
def test_the_rules_find_exactly_the_expected_visits(seed: int) -> None:
    made = plan(crowd(seed))
    assert len(made.visits) > 50
    assert ruled(sent(list(made.steps()))) == sorted(made.visits)


def test_with_the_rules_of_the_streams() -> None:
    made = plan(crowd(businesses=SHOPS[:1], length=20 * HOUR, rate=0.5, rules=Rules(), step=60_000))
    assert ruled(sent(list(made.steps())), Rules()) == sorted(made.visits)
    again = Counter((v.device, v.business) for v in made.visits)
    assert max(again.values()) > 1


@pytest.mark.parametrize("seed", range(3))
def test_walk_ins_of_each_batch_add_up_to_the_expected_ones(seed: int) -> None:
    """In the order in which probes come, however they are cut into batches."""
    made = plan(crowd(seed, late=15_000))
    came: dict[tuple[str, str], list[dict[str, Any]]] = {}
    told = set[tuple[Any, ...]]()
    for probe in sent(list(made.steps())):
        mine = came.setdefault((probe["device"], probe["business"]), [])
        mine.append(probe)
        told.update(ruled(mine))
    assert told == set(made.visits)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_plan_that_is_broken_off_tells_what_was_sent(part: float) -> None:
    made = plan(crowd())
    steps = list(made.steps())
    some = steps[: int(len(steps) * part)]
    moment = some[-1].until
    rest = made.in_flight(moment)
    assert ruled(sent([*some, rest])) == sorted(made.visits_until(moment))
    assert len(made.visits_until(moment)) > 3
    told = [e.at for step in [*some, rest] for e in step.crm_events]
    assert sorted(told) == sorted(e.at for e in made.crm_events if e.at < moment)


def test_a_crowd_depends_on_its_seed_only() -> None:
    first, again, other = plan(crowd(1)), plan(crowd(1)), plan(crowd(2))
    assert list(first.steps()) == list(again.steps()) != list(other.steps())
    assert first.visits == again.visits
    assert not {v.device for v in first.visits} & {v.device for v in other.visits}


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(crowd(4, devices=400, rate=10.0))


def test_probes_come_at_their_rate_a_little_late_and_never_early(made: Plan) -> None:
    steps = list(made.steps())
    assert len(sent(steps)) == pytest.approx(10 * 3600, rel=0.1)
    late: Counter[bool] = Counter()
    for step in steps:
        for probe in sent([step]):
            age = step.until - probe["timestamp"]
            assert 0 < age <= made.crowd.step + made.crowd.late
            late[age > made.crowd.step] += 1
    assert late[True] > 100
    records = [(p["device"], p["business"], p["timestamp"]) for p in sent(steps)]
    assert Counter(records).most_common(1)[0][1] > 1
    assert records != sorted(records, key=lambda r: r[2])
    assert [key for step in steps for key, _ in step.probes] == [device for device, _, _ in records]
    assert all(p.keys() == {"device", "business", "router", "signal", "timestamp"} for p in sent(steps))


def test_the_borders_are_there(made: Plan) -> None:
    thresholds = {b.id: b.threshold for b in SHOPS}
    probes = sent(list(made.steps()))
    signals = Counter(p["signal"] - thresholds[p["business"]] for p in probes if p["business"] in thresholds)
    assert signals[0] > 20 < signals[-1]
    assert [p for p in probes if p["business"] == UNKNOWN]
    strong: dict[tuple[str, str], set[int]] = {}
    for p in probes:
        if p["business"] in thresholds and p["signal"] >= thresholds[p["business"]]:
            strong.setdefault((p["device"], p["business"]), set()).add(p["timestamp"])
    gaps = Counter(b - a for times in map(sorted, strong.values()) for a, b in pairwise(times))
    away, within = RULES.away, RULES.within
    assert [gap for gap in (away - 1, away, away + 1, within, within + 1) if not gaps[gap]] == []
    dwells = Counter(v.timestamp - v.since for v in made.visits)
    assert [dwell for dwell in (RULES.dwell, RULES.dwell + 1, within) if not dwells[dwell]] == []
    at_once = Counter(v.device for v in made.visits)
    assert max(at_once.values()) > 1


def test_contacts_come_before_at_and_after_visits_or_never(made: Plan) -> None:
    events = [json.loads(e.value) for e in made.crm_events]
    assert {e["type"] for e in events} == {"login", "change", "removal"}
    assert all((e["contact"] is None) == (e["type"] == "removal") for e in events)
    logins = {(e["device"], e["timestamp"]) for e in events if e["type"] == "login"}
    walked = {v.device: v.timestamp for v in made.visits}
    assert {d for d in walked if all(d != device for device, _ in logins)}
    beside = Counter(at - v.timestamp for device, at in logins for v in made.visits if v.device == device)
    assert beside[0]
    assert beside[1]
    assert min(beside) < 0
    assert any(e.backfill for e in made.crm_events)
    assert len(set(made.crm_events)) > len({e.value for e in made.crm_events})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": 0.1}, "150 devices send .* probes/s at least; got: 0.1; hint: use a higher rate"),
        ({"length": 5000}, "the simulated time of the crowd is too short; got: 5000 ms"),
        ({"late": 20_000}, "got: 20000 ms late, dwell 20000 ms; hint: let them be less late, or use"),
        (
            {"rules": Rules(dwell=10, within=10)},
            "no crowd can be simulated by these rules; got: dwell 10 ms, within 10 ms",
        ),
        ({"rules": Rules(dwell=10, within=20, away=22)}, "no crowd can be simulated by these rules"),
    ],
)
def test_what_makes_no_crowd_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PenstockError, match=message):
        plan(crowd(**given))
