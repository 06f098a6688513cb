"""A fleet's truth against what it sends, by rules that know nothing of how it was made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.agents.simulator.fleet import Fleet, Plan
from jobs.agents.simulator.topics import read, write
from penstock.errors import PenstockError
from tests.support import agents_model as model
from tests.support.agents_model import AFTER, GRACE, MINUTE

T = 1_700_000_000_000
FLEET = Fleet(300, 0.5, 0.2, 3, T, 180 * MINUTE, seed=7, step=20_000)


@pytest.mark.parametrize("later", [0, 10 * MINUTE, AFTER - 1, 2 * AFTER])
def test_what_is_expected_is_what_was_sent(later: int) -> None:
    plan = Plan(FLEET)
    check_ins = [json.loads(value) for step in plan.steps() for _, value in step.check_ins]
    assert [c["timestamp"] for c in check_ins] == sorted(c["timestamp"] for c in check_ins)
    now = FLEET.end + later
    expected = plan.expected(FLEET.end, now, GRACE)
    absences = model.absences(check_ins, now)
    numbered = {(plan.names.index(a["agent"]), a["last_seen"]) for a in absences}
    assert numbered == expected.absences
    known = model.agents(check_ins, now)
    assert {plan.names[n] for n in range(FLEET.agents) if expected.last[n] >= 0} == known.keys()
    for agent, one in known.items():
        n = plan.names.index(agent)
        assert (one["timestamp"], one["labels"]) == (expected.last[n], plan.labels(n, one["timestamp"]))
        assert n in expected.undecided or one["online"] == expected.online[n]
    # Some come back, and some do not; region and version change on the way.
    assert len(absences) > 20
    assert len({c["labels"]["region"] for c in check_ins if c["agent"] == plan.names[0]}) >= 1
    assert len({(c["agent"], c["labels"]["region"]) for c in check_ins}) > len(known)
    assert len({(c["agent"], c["version"]) for c in check_ins}) > len(known)


def test_what_is_broken_off_is_known_as_well() -> None:
    plan, until = Plan(FLEET), FLEET.start + 100 * MINUTE
    sent = [json.loads(v) for step in plan.steps() if step.until <= until for _, v in step.check_ins]
    expected = plan.expected(until, until + 1, GRACE)
    absences = model.absences(sent, until + 1)
    assert {(plan.names.index(a["agent"]), a["last_seen"]) for a in absences} == expected.absences


def test_the_truth_is_a_line_that_makes_the_same_fleet(tmp_path: Path) -> None:
    write(tmp_path / "truth.json", FLEET, T + 1)
    assert read(tmp_path / "truth.json") == (FLEET, T + 1)
    for text in ("", "[]", '{"fleet": "x"}'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(PenstockError, match="not the truth of a fleet"):
            read(tmp_path / "other.json")
    changed = (tmp_path / "truth.json").read_text().replace('"seed":7', '"seed":8')
    (tmp_path / "truth.json").write_text(changed)
    with pytest.raises(PenstockError, match="was changed"):
        read(tmp_path / "truth.json")


def test_agents_that_check_in_too_seldom_are_refused() -> None:
    with pytest.raises(PenstockError, match="check in so seldom"):
        Fleet(1000, 0.5, 0, 1, T, MINUTE)
