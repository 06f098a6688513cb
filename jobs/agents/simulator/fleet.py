"""A fleet of agents whose absences are known: when each checks in, what it says, and when it is away.

Each agent checks in at a phase of its own, every so often. Some are away: just too short to be offline, long enough, or
for good; some get another region or version on the way. All of it follows from the fleet alone, so its truth is a line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from penstock.errors import PenstockError

Ints = npt.NDArray[np.int64]

NEVER = 1 << 62
PLATFORMS = ("linux", "windows", "mac")
REGIONS, OFFICES = ("eu", "us", "apac"), ("Springfield", "Shelbyville", "Ogdenville")
VERSIONS = ("1.9.3", "1.10.0", "2.0.1")
# Of all agents: away just too short, long enough, for good; those whose region changes, and those that are updated.
SHORT, LONG, GONE = 0.05, 0.10, 0.03
MOVES, UPDATES = 0.1, 0.2


@dataclass(frozen=True)
class Fleet:
    """rate: check-ins a second of all agents; sessions: browser sessions a second; accounts: how many, 1 to so many;
    start: epoch ms; length, after in ms, after being how long an agent is silent until it is offline; step: ms, the
    time of what is sent together."""

    agents: int
    rate: float
    sessions: float
    accounts: int
    start: int
    length: int
    seed: int = 0
    after: int = 25 * 60_000
    step: int = 100

    def __post_init__(self) -> None:
        if self.every * 2 > self.after:
            raise PenstockError(
                "agents of this fleet check in so seldom that they are offline in between",
                got=f"each every {self.every / 1000:g} s, offline after {self.after / 1000:g} s",
                hint=f"take a rate of {self.agents * 2000 / self.after:.3g} at least, or fewer agents",
            )

    @property
    def every(self) -> int:
        """Between two check-ins of an agent, ms."""
        return max(1, int(self.agents * 1000 / self.rate))

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def name(self) -> str:
        """The first six digits of its agents, which tell it from other fleets."""
        return hashlib.blake2b(f"fleet {self.seed} {self.start}".encode(), digest_size=3).hexdigest()

    def truth(self, until: int) -> bytes:
        """A line that tells all of it, as it was sent until then."""
        return orjson.dumps({"fleet": self.name, **asdict(self), "until": until})


class Step(NamedTuple):
    """What is sent until a time: (key, value) of check-ins and of browser sessions."""

    until: int
    check_ins: list[tuple[str, str]]
    sessions: list[tuple[str, str]]


class Expected(NamedTuple):
    """Of all agents by number. absences: agent, last_seen; open: those of whom the clock has not decided yet, at most
    so; last: of the last check-in, -1 for none; online: whether each is."""

    absences: set[tuple[int, int]]
    open: set[int]
    last: Ints
    online: npt.NDArray[np.bool_]


class Plan:
    """Of a fleet, the same for the same fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        chance = np.random.default_rng([fleet.seed, fleet.start])
        n, every = fleet.agents, fleet.every
        self.phase: Ints = fleet.start + np.sort(chance.integers(0, every, n))
        # One in two belongs to the first account.
        self.account: Ints = np.where(chance.random(n) < 0.5, 1, chance.integers(1, fleet.accounts + 1, n))
        self.platform, self.office, self._region, self._version = (chance.integers(0, 3, n) for _ in range(4))
        kind = chance.random(n)
        away = np.select(
            [kind < SHORT, kind < SHORT + LONG, kind < SHORT + LONG + GONE],
            [
                np.full(n, fleet.after - 2 * every),
                fleet.after + chance.integers(0, fleet.after, n),
                np.full(n, NEVER // 2),
            ],
            0,
        )
        self.gone: Ints = fleet.start + every + chance.integers(0, max(1, fleet.length - every), n)
        self.back: Ints = np.where(away > 0, self.gone + away, self.gone)
        middle = fleet.start + chance.integers(0, fleet.length, (2, n))
        self._moves: Ints = np.where(chance.random(n) < MOVES, middle[0], NEVER)
        self._updated: Ints = np.where(chance.random(n) < UPDATES, middle[1], NEVER)

    @cached_property
    def names(self) -> list[str]:
        return [f"{self.fleet.name}{n:06x}" for n in range(self.fleet.agents)]

    def labels(self, agent: int, at: int) -> dict[str, str]:
        """What an agent says of itself at a time."""
        region = REGIONS[(self._region[agent] + (at >= self._moves[agent])) % 3]
        return {"region": region, "os": PLATFORMS[self.platform[agent]], "office": OFFICES[self.office[agent]]}

    def steps(self) -> Iterator[Step]:
        """Everything in the order in which it is sent."""
        fleet = self.fleet
        chance = np.random.default_rng([fleet.seed, fleet.start, 1])
        for begin in range(fleet.start, fleet.end, fleet.step):
            end = min(begin + fleet.step, fleet.end)
            agents, times = self._due(begin, end)
            present = (times < self.gone[agents]) | (times >= self.back[agents])
            pairs = zip(agents[present].tolist(), times[present].tolist(), strict=True)
            due, before = (int(fleet.sessions * (t - fleet.start) / 1000) for t in (end, begin))
            who = chance.integers(0, fleet.agents, due - before)
            took = zip(who.tolist(), chance.lognormal(0.9, 0.6, (len(who), 2)).tolist(), strict=True)
            yield Step(end, [self._check_in(n, at) for n, at in pairs], [self._session(n, end - 1, t) for n, t in took])

    def _due(self, begin: int, end: int) -> tuple[Ints, Ints]:
        """Agents whose check-in falls between two times, and when."""
        every, start = self.fleet.every, self.fleet.start
        found = []
        for turn in range((begin - start) // every, (end - 1 - start) // every + 1):
            first, last = np.searchsorted(self.phase + turn * every, [begin, end])
            found.append((np.arange(first, last), self.phase[first:last] + turn * every))
        agents, times = (np.concatenate(one) for one in zip(*found, strict=True))
        return agents, times

    def _check_in(self, agent: int, at: int) -> tuple[str, str]:
        name, says = self.names[agent], self.labels(agent, at)
        version = VERSIONS[min(2, int(self._version[agent]) + (at >= self._updated[agent]))]
        labels = ",".join(f'"{name}":"{value}"' for name, value in says.items())
        return name, (
            f'{{"agent":"{name}","account":"{self.account[agent]}","platform":"{says["os"]}","version":"{version}",'
            f'"labels":{{{labels}}},"timestamp":{at}}}'
        )

    def _session(self, agent: int, at: int, took: list[float]) -> tuple[str, str]:
        value: dict[str, Any] = {
            "account": str(self.account[agent]), "agent": self.names[agent], "labels": self.labels(agent, at),
            "metrics": {"pageLoadTime": round(took[0], 3), "dnsTime": round(took[1] / 10, 4)}, "timestamp": at,
        }  # fmt: skip
        return self.names[agent], orjson.dumps(value).decode()

    def expected(self, until: int, now: int, leeway: int) -> Expected:
        """What must have come of all that was sent until a time. now: the clock; leeway: ms that it may be behind."""
        every, after = self.fleet.every, self.fleet.after
        last = self._before(np.full(self.fleet.agents, until))
        left = self._before(np.minimum(self.gone, until))
        following = self.phase + -(-(self.back - self.phase) // every) * every
        away, returned = self.back > self.gone, following < until
        last = np.where(away & (self.gone < until) & ~returned, left, last)
        absent = away & returned & (left >= 0) & (following - left >= after)
        absences = {(n, int(left[n])) for n in np.flatnonzero(absent).tolist()}
        seen = last >= 0
        over, undecided = (
            seen & (last + after + leeway <= now),
            seen & (last + after <= now) & (last + after + leeway > now),
        )
        absences |= {(n, int(last[n])) for n in np.flatnonzero(over).tolist()}
        return Expected(absences, set(np.flatnonzero(undecided).tolist()), last, seen & (last + after > now))

    def _before(self, moment: Ints) -> Ints:
        """Of each agent its turn before a moment, -1 if there is none."""
        every = self.fleet.every
        at = self.phase + (moment - 1 - self.phase) // every * every
        return np.where(at >= self.phase, at, -1)
