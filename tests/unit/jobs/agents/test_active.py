"""The fold of agents on random histories, batch by batch, against rules that know all of the past."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from jobs.agents import active, agents_settings
from tests.support import agents_model as model
from tests.support.agent_records import CHECK_IN, T, check_in, state
from tests.support.agents_model import AFTER, FORGET, GRACE, MINUTE
from tests.support.fold_runner import Folding, cut
from tests.support.random_cases import seeds


def told(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The absences among a batch's rows."""
    names = ("agent", "account", "last_seen", "timestamp")
    found = [{name: r[name] for name in names} for r in rows if r["output"] == "offline"]
    return sorted(found, key=lambda r: (r["agent"], r["timestamp"]))


@pytest.fixture
def agents(tmp_path: Path) -> Folding:
    return Folding(active.AGENTS, CHECK_IN, tmp_path)


def test_an_agent_is_offline_once_and_comes_back(agents: Folding) -> None:
    [first] = agents.take([check_in("a", 0, region="eu")], clock=T + AFTER + GRACE - 1)
    assert state(first) == {**check_in("a", 0, region="eu"), "online": True, "since": T}
    assert agents.take([], clock=T + AFTER + GRACE) == []
    gone, event = agents.take([])
    assert (gone["online"], gone["since"], gone["timestamp"]) == (False, T + AFTER, T)
    assert told([event]) == [{"agent": "a", "account": "1", "last_seen": T, "timestamp": T + AFTER}]
    assert agents.take([], clock=T + 10 * AFTER) == []
    [back] = agents.take([check_in("a", 10 * AFTER)])
    assert (back["online"], back["since"]) == (True, T + 10 * AFTER)


def test_an_agent_that_is_late_within_the_grace_is_not_offline(agents: Folding) -> None:
    agents.take([check_in("a", 0)], clock=T + AFTER)
    # It was due, and inside the grace a check-in of before comes.
    assert told(agents.take([check_in("a", AFTER - 1)], clock=T + AFTER + GRACE)) == []
    assert told(agents.take([])) == []
    assert told(agents.take([], clock=T + 2 * AFTER + GRACE - 1)) == []
    assert len(told(agents.take([]))) == 1


def test_a_gap_between_two_check_ins_is_emitted_without_a_heartbeat(agents: Folding) -> None:
    rows = agents.take([check_in("a", 0), check_in("a", AFTER + GRACE, account="2")])
    assert [r["last_seen"] for r in told(rows)] == [T]
    assert told(rows)[0]["account"] == "1"
    [now] = [r for r in rows if r["output"] == "active"]
    assert (now["online"], now["since"], now["account"]) == (True, T + AFTER + GRACE, "2")
    assert agents.take([check_in("a", AFTER + GRACE), check_in("a", 5)]) == []


def written(at: int, n: int, one: dict[str, Any]) -> dict[str, Any]:
    """A check-in that was written at a time, ms after T, as the n-th."""
    return {**one, "written_at": T + at, "record_offset": n}


def test_a_check_in_that_is_overtaken_inside_the_grace_leaves_no_absence(agents: Folding) -> None:
    assert told(agents.take([written(0, 0, check_in("a", 0))])) == []
    [row] = agents.take([written(AFTER, 1, check_in("a", AFTER, account="2"))])
    assert (row["online"], row["since"], row["account"]) == (True, T, "2")
    assert agents.take([written(AFTER + 9, 2, check_in("a", AFTER - 1))]) == []
    assert agents.take([], clock=T + AFTER + GRACE) == agents.take([]) == []


def test_a_gap_is_emitted_when_the_grace_is_over(agents: Folding) -> None:
    agents.take([written(0, 0, check_in("a", 0))])
    agents.take([written(AFTER, 1, check_in("a", AFTER, account="2"))])
    agents.take([written(AFTER + 1, 2, check_in("a", AFTER + 1, account="2"))], clock=T + AFTER + GRACE)
    event, now = agents.take([], again=True)
    assert (now["since"], now["timestamp"]) == (T + AFTER, T + AFTER + 1)
    assert told([event]) == [{"agent": "a", "account": "1", "last_seen": T, "timestamp": T + AFTER}]


@pytest.mark.parametrize("sizes", [[1], [3], [2, 1], [9]])
def test_absences_of_an_agent_with_a_slow_clock_do_not_depend_on_batches(agents: Folding, sizes: list[int]) -> None:
    """Of an agent 200 s behind the clock: written when its absence was due, 1,600 s behind the one before."""
    slow = 200_000
    times = [0, AFTER - 100_000, AFTER + 500_000, AFTER + 500_000 + AFTER]
    given = [written(at + slow, n, check_in("a", at)) for n, at in enumerate(times)]
    rows = [row for batch in cut(given, sizes) for row in agents.take(batch)]
    assert [r["last_seen"] - T for r in told(rows)] == [0, times[2]]
    assert [r["since"] - T for r in rows if r["output"] == "active"][-1] == times[3]


@pytest.mark.parametrize("sizes", [[1], [2]])
def test_of_two_check_ins_of_one_time_the_first_counts(agents: Folding, sizes: list[int]) -> None:
    twice = [written(0, 0, check_in("a", 0, "1")), written(1, 1, check_in("a", 0, "2"))]
    assert [row["account"] for batch in cut(twice, sizes) for row in agents.take(batch)] == ["1"]


def test_a_check_in_that_leaves_its_agent_offline_is_no_other_absence(agents: Folding) -> None:
    """Of an agent whose clock is slow each one is such; what it says counts, and a gap between two is an absence."""
    agents.take([], clock=T + AFTER + 5 * MINUTE)
    events = [
        told(agents.take([check_in("a", n * MINUTE)], clock=T + AFTER + n * MINUTE + 5 * MINUTE)) for n in range(9)
    ]
    assert [len(one) for one in events] == [1, 0, 0, 0, 0, 0, 0, 0, 0]
    rows = agents.take([check_in("a", 9 * MINUTE, region="us")], clock=T + 3 * AFTER)
    assert [(r["online"], dict(r["labels"])) for r in rows] == [(False, {"region": "us"})]
    assert [r["last_seen"] for r in told(agents.take([check_in("a", 10 * MINUTE + AFTER)]))] == [
        T + 10 * MINUTE + AFTER
    ]
    [back] = agents.take([check_in("a", 3 * AFTER)])
    assert back["online"]


def test_the_state_of_an_agent_that_is_offline_for_too_long_expires(agents: Folding) -> None:
    agents.take([check_in("a", 0)], clock=T + FORGET - 1)
    assert len(agents.take([])) == 2
    assert agents.take([], clock=T + FORGET) == []
    [forgotten] = agents.take([], again=True)
    assert (forgotten["output"], forgotten["agent"], forgotten["timestamp"]) == ("active", "a", None)
    [back] = agents.take([check_in("a", FORGET + 1)])
    assert (back["online"], back["since"]) == (True, T + FORGET + 1)


def test_an_agent_whose_clock_is_months_behind_is_emitted_as_offline(agents: Folding) -> None:
    """As offline, once, until it has said nothing for as long as others."""
    away = FORGET - AFTER
    agents.take([], clock=T)
    rows = [r for n in range(3) for r in agents.take([check_in("a", n - 2 * FORGET)], clock=T + n)]
    assert [(r["output"], r["timestamp"] - T + 2 * FORGET) for r in rows] == [
        ("active", 0), ("offline", AFTER), ("active", 1), ("active", 2),
    ]  # fmt: skip
    assert agents.take([], clock=T + away) == []
    assert agents.take([], clock=T + 1 + away) == []
    [forgotten] = agents.take([])
    assert forgotten["timestamp"] is None


def test_an_agent_that_checks_in_when_its_state_expires_is_online(agents: Folding) -> None:
    agents.take([check_in("a", 0)], clock=T + FORGET)
    agents.take([])
    [back] = agents.take([check_in("a", FORGET)])
    assert (back["online"], back["since"]) == (True, T + FORGET)


@pytest.mark.parametrize("seed", seeds(1, 8))
def test_random_histories(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    arrivals = []
    for agent in (f"a{n}" for n in range(12)):
        at = chance.randrange(10 * MINUTE)
        while at < 240 * MINUTE:
            account, label = chance.choice("12"), chance.choice(["eu", "us"])
            one = check_in(agent, at, account, region=label)
            delay = chance.choice([0, 0, 0, GRACE // 2])
            arrivals.append((at + delay, one))
            if chance.random() < 0.1:
                arrivals.append((at + delay + chance.choice([0, MINUTE]), one))
            at += chance.choice([10 * MINUTE, 10 * MINUTE, AFTER - 1, AFTER, AFTER + 1, AFTER + GRACE, 90 * MINUTE])
    arrivals.sort(key=lambda pair: pair[0])
    history = [one for _, one in arrivals]
    folding = Folding(active.AGENTS, CHECK_IN, tmp_path, hashes=chance.choice([1, 2, 2**62]))
    latest: dict[str, dict[str, Any]] = {}
    events = []
    for batch in cut(history, [chance.choice([2, 3, 10, 40]) for _ in range(4)]):
        while batch[0]["timestamp"] > folding.latest + 5 * MINUTE and folding.latest:
            rows = folding.take([], clock=folding.latest + 2 * MINUTE)
            latest |= {r["agent"]: state(r) for r in rows if r["output"] == "active"}
            events += told(rows)
        rows = folding.take(batch, again=chance.random() < 0.2)
        latest |= {r["agent"]: state(r) for r in rows if r["output"] == "active"}
        events += told(rows)
    now = folding.latest
    rows = folding.take([])
    latest |= {r["agent"]: state(r) for r in rows if r["output"] == "active"}
    events += told(rows)
    wanted = model.absences(history, now)
    assert sorted(events, key=lambda r: (r["agent"], r["timestamp"])) == wanted
    assert len(wanted) > 10
    assert latest == model.agents(history, now)


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Folding]]:
    """The stream's module where the grace, 30 s, is longer than the absence, 8 s; and its fold."""
    for name, seconds in {"OFFLINE_AFTER": "8", "GRACE": "30"}.items():
        monkeypatch.setenv(f"PENSTOCK_AGENTS_{name}", seconds)
    agents_settings.cache_clear()
    spec = spec_from_file_location("jobs_agents_active_patient", active.__file__)
    assert spec
    assert spec.loader
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    yield made, Folding(made.AGENTS, CHECK_IN, tmp_path / "patient")
    agents_settings.cache_clear()


@pytest.mark.parametrize("seed", seeds(1, 5))
def test_a_grace_that_is_longer_than_an_absence(patient: tuple[Any, Folding], seed: int) -> None:
    """Check-ins come in order; each pause that is long enough is told once, however they are cut into batches."""
    made, agents = patient
    chance, at = random.Random(seed), 0
    given, gone = [check_in("a", 0)], []
    for _ in range(60):
        pause = chance.choice(
            [
                1000,
                1000,
                3000,
                made.OFFLINE_AFTER - 1,
                made.OFFLINE_AFTER,
                made.OFFLINE_AFTER + 5000,
                made.OFFLINE_AFTER + 50_000,
            ]
        )
        if pause >= made.OFFLINE_AFTER:
            gone.append(T + at)
        at += pause
        given.append(check_in("a", at))
    rows = [written(one["timestamp"] - T, n, one) for n, one in enumerate(given)]
    absences = []
    while rows:
        cut = chance.randint(1, 6)
        absences += told(agents.take(rows[:cut], clock=rows[:cut][-1]["timestamp"]))
        rows = rows[cut:]
    end = T + at + made.OFFLINE_AFTER + made.GRACE
    absences += told(agents.take([], clock=end)) + told(agents.take([], clock=end + 1))
    assert sorted(one["last_seen"] for one in absences) == [*gone, T + at]
