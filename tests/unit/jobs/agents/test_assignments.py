"""Assignments are never stale: random histories through the folds of agents, and any order that the broker allows.

Each stream plans a batch (any part of what is there), sees its tables as they are then or later, and its rows become
visible later still, while everything else goes on; a batch may run again. The joins are the model's own, those of Spark
are compared with it in tests/integration/jobs/agents/test_agents.py. In the end each agent must have what the model
says.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jobs.agents import active, assignments, recheck
from tests.support import agents_model as model
from tests.support.agent_records import ASSIGNED, CHECK_IN, T, check_in, state
from tests.support.agents_model import AFTER, FORGET, GRACE, MINUTE
from tests.support.fold_runner import Folding
from tests.support.random_cases import seeds

BEAT = "beat"
Rows = list[dict[str, Any]]
AGENT = f"{CHECK_IN}, online BOOLEAN, since BIGINT"
LABELS = {"region": ["eu", "us"], "os": ["linux", "mac"]}
NAMES = ("account", "online", "tests", "version", "digest")


class Topics:
    """Each a list of (key, value); a value that is None is a tombstone."""

    def __init__(self) -> None:
        self.of: dict[str, list[tuple[Any, Any]]] = {
            name: [] for name in ("check-ins", "tests", "accounts", "active", "again", "assignments")
        }

    def put(self, topic: str, key: Any, value: Mapping[str, Any] | int | None) -> None:
        self.of[topic].append((key, value))

    def table(self, topic: str) -> Rows:
        return [value for value in dict(self.of[topic]).values() if value is not None]


class Runner:
    """A stream: what it has read, and the batch that it has computed and not written yet."""

    reads: ClassVar[tuple[str, ...]]

    def __init__(self, topics: Topics, chance: random.Random) -> None:
        self._topics, self._chance = topics, chance
        self._at = dict.fromkeys(self.reads, 0)
        self._written: list[tuple[str, Any, Any]] | None = None
        self._planned: dict[str, int] | None = None

    @property
    def rests(self) -> bool:
        return self._planned is None and all(self._at[t] == len(self._topics.of[t]) for t in self.reads)

    def step(self) -> None:
        """Plan, compute, or write."""
        if self._planned is None:
            plan = {t: self._chance.randint(at, len(self._topics.of[t])) for t, at in self._at.items()}
            self._planned = plan if plan != self._at else None
        elif self._written is None:
            took = {t: self._topics.of[t][self._at[t] : end] for t, end in self._planned.items()}
            self._written = self.compute(took, again=self._chance.random() < 0.2)
        else:
            for one in self._written:
                self._topics.put(*one)
            self._at, self._planned, self._written = self._planned, None, None

    def compute(self, took: dict[str, list[tuple[Any, Any]]], *, again: bool) -> list[tuple[str, Any, Any]]:
        raise NotImplementedError


class Active(Runner):
    reads = ("check-ins",)

    def __init__(self, topics: Topics, chance: random.Random, folder: Path) -> None:
        super().__init__(topics, chance)
        self._agents = Folding(active.AGENTS, CHECK_IN, folder / "agents")

    def compute(self, took: dict[str, list[tuple[Any, Any]]], *, again: bool) -> list[tuple[str, Any, Any]]:
        # A beat lies behind whatever was sent before it.
        clock = max([0, *(value for key, value in took["check-ins"] if key == BEAT)])
        rows = self._agents.take([value for key, value in took["check-ins"] if key != BEAT], again=again, clock=clock)
        return [("active", r["agent"], state(r) if r["timestamp"] else None) for r in rows if r["output"] == "active"]


class Again(Runner):
    reads = ("tests", "accounts")

    def __init__(self, topics: Topics, chance: random.Random, folder: Path) -> None:
        super().__init__(topics, chance)
        self._whose = Folding(
            recheck.TEST_ACCOUNTS,
            "test STRING, account STRING, record_offset BIGINT, timestamp BIGINT",
            folder / "whose",
        )
        self._once = Folding(recheck.DISTINCT_ACCOUNTS, "account STRING, timestamp BIGINT", folder / "once")

    def compute(self, took: dict[str, list[tuple[Any, Any]]], *, again: bool) -> list[tuple[str, Any, Any]]:
        base = {"account": None, "record_offset": None, "timestamp": T}
        changes = [
            {**base, "test": str(key), "record_offset": n, "account": str(value["account_id"]) if value else None}
            for n, (key, value) in enumerate(took["tests"])
        ]
        concerned = [r["account"] for r in self._whose.take(changes, again=again)]
        concerned += [str(key) for key, _ in took["accounts"]]
        given = [{"account": account, "timestamp": T} for account in concerned]
        accounts = [r["account"] for r in self._once.take(given, again=again)]
        assert sorted(set(accounts)) == sorted(accounts)
        # The order of its rows is nobody's.
        found = [("again", r["agent"], r) for r in self._topics.table("active") if r["account"] in accounts]
        self._chance.shuffle(found)
        return found


class Scheduler(Runner):
    reads = ("active", "again")

    def __init__(self, topics: Topics, chance: random.Random, folder: Path) -> None:
        super().__init__(topics, chance)
        self._assigned = Folding(assignments.ASSIGNED, ASSIGNED, folder / "assigned")

    def compute(self, took: dict[str, list[tuple[Any, Any]]], *, again: bool) -> list[tuple[str, Any, Any]]:
        tables = [self._topics.table(name) for name in ("tests", "accounts")]
        given = []
        told = [(key, said, self._at["active"] + n) for n, (key, said) in enumerate(took["active"])]
        for key, said, n in [*told, *((key, said, None) for key, said in took["again"])]:
            if said is None:
                given.append({**dict.fromkeys(NAMES), "agent": key, "record_offset": n, "timestamp": T})
                continue
            ids = model.assigned(said, *tables)
            tests = [{"id": n, "name": None, "kind": None, "target": None, "every_seconds": None} for n in ids]
            version = said["timestamp"] * 2 + (not said["online"])
            digest = f"{said['account']} {said['online']} {ids}"
            given.append({**said, "tests": tests, "version": version, "digest": digest, "record_offset": n})
        self._chance.shuffle(given)
        rows = self._assigned.take(given, again=again)
        return [("assignments", r["agent"], r if r["version"] else None) for r in rows]


class World:
    """What happens outside: people change tests, agents check in, time passes."""

    def __init__(self, topics: Topics, chance: random.Random) -> None:
        self.topics, self._chance, self.now = topics, chance, T
        for account in (1, 2, 3):
            topics.put("accounts", account, {"id": account, "active": 1})

    def happens(self, *, calm: bool) -> None:
        """calm: agents say little and are not silent for long, so that in the end what changed is the tests."""
        chance, topics = self._chance, self.topics
        weights = [2, 7, 1, 1] if calm else [6, 5, 1, 2]
        match chance.choices(["agent", "test", "account", "clock"], weights)[0]:
            case "agent":
                one = check_in(
                    f"a{chance.randrange(8)}", self.now - T, chance.choice("1112"),
                    region=chance.choice(["eu", "us"]), os=chance.choice(["linux", "mac"]),
                )  # fmt: skip
                topics.put("check-ins", one["agent"], one)
                self.now += chance.randrange(1, MINUTE // 3)
            case "test":
                key = chance.randrange(6)
                wants = {name: chance.choice(of) for name, of in LABELS.items() if chance.random() < 0.5}
                row = {"id": key, "account_id": chance.choice([1, 1, 2]), "enabled": int(chance.random() < 0.9)}
                topics.put("tests", key, None if chance.random() < 0.2 else {**row, "labels": json.dumps(wants)})
            case "account":
                key = chance.choice([1, 2])
                row = {"id": key, "active": int(chance.random() < 0.8)}
                topics.put("accounts", key, row)
            case _:
                self.now += MINUTE if calm else chance.choice([MINUTE, 10 * MINUTE, AFTER + GRACE] * 3 + [FORGET])
        topics.put("check-ins", BEAT, self.now)


def differs(seed: int, folder: Path, *kinds: type[Runner]) -> bool:
    """Whether what is assigned differs from the model at a time when all that happened was read."""
    chance = random.Random(seed)
    topics = Topics()
    world = World(topics, chance)
    runners = [kind(topics, chance, folder) for kind in kinds]  # type: ignore[call-arg]
    # Some are quick and some are slow, one may be away for most of it.
    weights = [chance.choice([1, 3, 9]) for _ in runners]
    for number in range(12):
        # Much happens, then little: what a single change does is not to be hidden by the next.
        events = chance.choice([10, 20]) if number % 3 == 0 else chance.choice([1, 1, 2])
        while events:
            if chance.random() < 0.4:
                world.happens(calm=number > 0)
                events -= 1
            else:
                chance.choices(runners, weights)[0].step()
        # Online, offline, forgotten.
        for _ in range(3):
            while not all(runner.rests for runner in runners):
                chance.choice(runners).step()
            # Time reaches a state with the batch behind the one that has it.
            topics.put("check-ins", BEAT, world.now)
        while not all(runner.rests for runner in runners):
            chance.choice(runners).step()
        known = model.agents([value for key, value in topics.of["check-ins"] if key != BEAT], world.now)
        assert {r["agent"]: r for r in topics.table("active")} == known
        found = {r["agent"]: (r["account"], [t["id"] for t in r["tests"]]) for r in topics.table("assignments")}
        tables = [topics.table(name) for name in ("tests", "accounts")]
        if found != {agent: (one["account"], model.assigned(one, *tables)) for agent, one in known.items()}:
            return True
    return False


@pytest.mark.parametrize("seed", seeds(1, 8))
def test_assignments_equal_those_of_the_model(seed: int, tmp_path: Path) -> None:
    assert not differs(seed, tmp_path, Active, Again, Scheduler)


class Mute(Again):
    """Tells nobody again."""

    def compute(self, took: dict[str, list[tuple[Any, Any]]], *, again: bool) -> list[tuple[str, Any, Any]]:
        super().compute(took, again=again)
        return []


class Forgetful(Again):
    """Does not remember whose a test is."""

    def __init__(self, topics: Topics, chance: random.Random, folder: Path) -> None:
        super().__init__(topics, chance, folder)
        forgets = replace(recheck.TEST_ACCOUNTS, emit_sql="SELECT account FROM records WHERE account IS NOT NULL")
        self._whose = Folding(
            forgets, "test STRING, account STRING, record_offset BIGINT, timestamp BIGINT", folder / "forgets"
        )


class Hasty(Scheduler):
    """Looks at its tables before it reads, not behind."""

    def __init__(self, topics: Topics, chance: random.Random, folder: Path) -> None:
        super().__init__(topics, chance, folder)
        self._before = {name: topics.table(name) for name in ("tests", "accounts")}

    def compute(self, took: dict[str, list[tuple[Any, Any]]], *, again: bool) -> list[tuple[str, Any, Any]]:
        now, real = {name: self._topics.table(name) for name in self._before}, self._topics.table
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._topics, "table", lambda name: self._before[name] if name in now else real(name))
            rows = super().compute(took, again=again)
        self._before = now
        return rows


class Gullible(Scheduler):
    """Believes the record that it reads last, however old what it says."""

    def __init__(self, topics: Topics, chance: random.Random, folder: Path) -> None:
        super().__init__(topics, chance, folder)
        believes = assignments.ASSIGNED.update_sql.replace("check_in.version >= state.version", "true")
        self._assigned = Folding(replace(assignments.ASSIGNED, update_sql=believes), ASSIGNED, folder / "believes")


# Each with the seed of a history that shows its mistake.
WRONG = [
    ((Active, Mute, Scheduler), 0),
    ((Active, Forgetful, Scheduler), 3),
    ((Active, Again, Hasty), 0),
    pytest.param((Active, Again, Gullible), 2, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("kinds", "seed"), WRONG)
def test_random_histories_detect_a_wrong_stream(kinds: tuple[type[Runner], ...], seed: int, tmp_path: Path) -> None:
    assert any(differs(n, tmp_path / str(n), *kinds) for n in (seed, *range(12)))


def word(n: int | None, version: int | None, *tests: int) -> dict[str, Any]:
    """What agent `a` said; a tombstone without a version, told again without an n."""
    one = dict.fromkeys(NAMES) | {"agent": "a", "version": version, "record_offset": n, "timestamp": T}
    if version is not None:
        ids = [{"id": t, "name": None, "kind": None, "target": None, "every_seconds": None} for t in tests]
        one |= {"account": "1", "online": bool(tests), "tests": ids, "digest": str(tests)}
    return one


@pytest.mark.parametrize("cut", [1, 2, 3, 9])
def test_a_forgotten_agent_has_no_assignment_until_it_checks_in(cut: int, tmp_path: Path) -> None:
    """What is told again of it is from before, whether it comes with the tombstone or behind it."""
    assigned = Folding(assignments.ASSIGNED, ASSIGNED, tmp_path)
    before = [word(0, 10, 1), word(1, 11), word(2, None), word(None, 11), word(None, 10, 1)]
    rows = [r for n in range(0, len(before), cut) for r in assigned.take(before[n : n + cut], again=True)]
    assert (rows[-1]["agent"], rows[-1]["version"]) == ("a", None)
    assert [r["version"] for r in assigned.take([word(None, 11), word(3, 20, 1), word(None, 10, 1)])] == [20]


def test_an_agent_that_checks_in_in_the_batch_of_its_tombstone_is_assigned_tests(tmp_path: Path) -> None:
    assigned = Folding(assignments.ASSIGNED, ASSIGNED, tmp_path)
    assigned.take([word(0, 11)])
    [back] = assigned.take([word(1, None), word(2, 20, 1)])
    assert (back["version"], [t["id"] for t in back["tests"]]) == (20, [1])


@pytest.mark.parametrize("cut", [1, 2, 9])
def test_behind_a_tombstone_an_older_check_in_counts(cut: int, tmp_path: Path) -> None:
    """What was said before the tombstone, and is told again behind it, does not."""
    assigned = Folding(assignments.ASSIGNED, ASSIGNED, tmp_path)
    assigned.take([word(0, 20, 1)])
    behind = [word(1, 22, 3), word(2, None), word(3, 10, 2)]
    rows = [r for n in range(0, len(behind), cut) for r in assigned.take(behind[n : n + cut])]
    assert (rows[-1]["version"], [t["id"] for t in rows[-1]["tests"]]) == (10, [2])
    assert [row["version"] for row in assigned.state()] == [10]


def test_what_is_told_again_in_the_batch_of_a_tombstone_does_not_count(tmp_path: Path) -> None:
    assigned = Folding(assignments.ASSIGNED, ASSIGNED, tmp_path)
    assigned.take([word(0, 20, 1)])
    assert [r["version"] for r in assigned.take([word(None, 20, 3), word(1, None), word(2, 10, 2)])] == [10]
