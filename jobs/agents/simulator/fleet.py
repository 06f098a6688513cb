"""A simulated fleet of agents: when each checks in, its labels, and when it is away.

Each agent checks in at a fixed interval, with an offset of its own. Some are away: too briefly to be offline, long
enough, or for good. Some change their region or version. Everything follows from the fields of `Fleet`, so they are its
truth.
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
# Shares of all agents: those away briefly, long enough, and for good; those whose region changes, and those updated.
AWAY_BRIEFLY, AWAY_LONG, AWAY_FOR_GOOD = 0.05, 0.10, 0.03
MOVED, UPDATED = 0.1, 0.2


@dataclass(frozen=True)
class Fleet:
    """A simulated fleet.

    Attributes:
        agents: Number of agents.
        rate: Check-ins per second of all agents.
        sessions: Browser sessions per second.
        accounts: Number of accounts, with ids from 1.
        start: Start of the simulated time, epoch ms.
        length: Length of the simulated time, ms.
        seed: Seed of the random numbers.
        offline_after: How long an agent is silent until it is offline, ms.
        step: Simulated time of the records that are sent together, ms.
    """

    agents: int
    rate: float
    sessions: float
    accounts: int
    start: int
    length: int
    seed: int = 0
    offline_after: int = 25 * 60_000
    step: int = 100

    def __post_init__(self) -> None:
        if self.interval * 2 > self.offline_after:
            raise PenstockError(
                "the agents check in so seldom that they are offline between two check-ins",
                got=f"one check-in every {self.interval / 1000:g} s, offline after {self.offline_after / 1000:g} s",
                hint=f"use a rate of at least {self.agents * 2000 / self.offline_after:.3g}, or fewer agents",
            )

    @property
    def interval(self) -> int:
        """Time between two check-ins of an agent, ms."""
        return max(1, int(self.agents * 1000 / self.rate))

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def name(self) -> str:
        """The first six digits of its agents' names, which distinguish it from other fleets."""
        return hashlib.blake2b(f"fleet {self.seed} {self.start}".encode(), digest_size=3).hexdigest()

    def truth(self, until: int) -> bytes:
        """The fleet as a line of JSON. until: the time until which it was sent."""
        return orjson.dumps({"fleet": self.name, **asdict(self), "until": until})


class Step(NamedTuple):
    """Records that are sent together, up to a time: key and value of check-ins and of browser sessions."""

    until: int
    check_ins: list[tuple[str, str]]
    sessions: list[tuple[str, str]]


class Expected(NamedTuple):
    """What the streams must find. Agents are numbers.

    Attributes:
        absences: Agent and last_seen of each absence.
        undecided: Agents whose absence has just become due, and may not be emitted yet.
        last: Time of each agent's last check-in, -1 for none.
        online: Whether each agent is online.
    """

    absences: set[tuple[int, int]]
    undecided: set[int]
    last: Ints
    online: npt.NDArray[np.bool_]


class Plan:
    """All records of a fleet; the same for equal fleets."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        random = np.random.default_rng([fleet.seed, fleet.start])
        n, interval = fleet.agents, fleet.interval
        self.phase: Ints = fleet.start + np.sort(random.integers(0, interval, n))
        # Half of the agents belong to the first account.
        self.account: Ints = np.where(random.random(n) < 0.5, 1, random.integers(1, fleet.accounts + 1, n))
        self.platform, self.office, self._region, self._version = (random.integers(0, 3, n) for _ in range(4))
        kind = random.random(n)
        brief, long, for_good = np.cumsum([AWAY_BRIEFLY, AWAY_LONG, AWAY_FOR_GOOD])
        away = np.select(
            [kind < brief, kind < long, kind < for_good],
            [
                np.full(n, fleet.offline_after - 2 * interval),
                fleet.offline_after + random.integers(0, fleet.offline_after, n),
                np.full(n, NEVER // 2),
            ],
            0,
        )
        self.away_from: Ints = fleet.start + interval + random.integers(0, max(1, fleet.length - interval), n)
        self.away_until: Ints = np.where(away > 0, self.away_from + away, self.away_from)
        changes = fleet.start + random.integers(0, fleet.length, (2, n))
        self._moved_at: Ints = np.where(random.random(n) < MOVED, changes[0], NEVER)
        self._updated_at: Ints = np.where(random.random(n) < UPDATED, changes[1], NEVER)

    @cached_property
    def names(self) -> list[str]:
        return [f"{self.fleet.name}{n:06x}" for n in range(self.fleet.agents)]

    def labels(self, agent: int, at: int) -> dict[str, str]:
        """The labels of an agent at a time."""
        region = REGIONS[(self._region[agent] + (at >= self._moved_at[agent])) % 3]
        return {"region": region, "os": PLATFORMS[self.platform[agent]], "office": OFFICES[self.office[agent]]}

    def steps(self) -> Iterator[Step]:
        """All steps, in order."""
        fleet = self.fleet
        random = np.random.default_rng([fleet.seed, fleet.start, 1])
        for begin in range(fleet.start, fleet.end, fleet.step):
            end = min(begin + fleet.step, fleet.end)
            agents, times = self._due(begin, end)
            is_present = (times < self.away_from[agents]) | (times >= self.away_until[agents])
            check_ins = zip(agents[is_present].tolist(), times[is_present].tolist(), strict=True)
            until_end, until_begin = (int(fleet.sessions * (t - fleet.start) / 1000) for t in (end, begin))
            browsers = random.integers(0, fleet.agents, until_end - until_begin)
            durations = random.lognormal(0.9, 0.6, (len(browsers), 2))
            sessions = zip(browsers.tolist(), durations.tolist(), strict=True)
            yield Step(
                end, [self._check_in(n, at) for n, at in check_ins], [self._session(n, end - 1, t) for n, t in sessions]
            )

    def _due(self, begin: int, end: int) -> tuple[Ints, Ints]:
        """Agents that check in between two times, and the times of their check-ins."""
        interval, start = self.fleet.interval, self.fleet.start
        due = []
        for n in range((begin - start) // interval, (end - 1 - start) // interval + 1):
            first, last = np.searchsorted(self.phase + n * interval, [begin, end])
            due.append((np.arange(first, last), self.phase[first:last] + n * interval))
        agents, times = map(np.concatenate, zip(*due, strict=True))
        return agents, times

    def _check_in(self, agent: int, at: int) -> tuple[str, str]:
        name, labels = self.names[agent], self.labels(agent, at)
        version = VERSIONS[min(2, int(self._version[agent]) + (at >= self._updated_at[agent]))]
        label_fields = ",".join(f'"{label}":"{value}"' for label, value in labels.items())
        return name, (
            f'{{"agent":"{name}","account":"{self.account[agent]}","platform":"{labels["os"]}","version":"{version}",'
            f'"labels":{{{label_fields}}},"timestamp":{at}}}'
        )

    def _session(self, agent: int, at: int, seconds: list[float]) -> tuple[str, str]:
        value: dict[str, Any] = {
            "account": str(self.account[agent]), "agent": self.names[agent], "labels": self.labels(agent, at),
            "metrics": {"pageLoadTime": round(seconds[0], 3), "dnsTime": round(seconds[1] / 10, 4)}, "timestamp": at,
        }  # fmt: skip
        return self.names[agent], orjson.dumps(value).decode()

    def expected(self, until: int, now: int, tolerance: int) -> Expected:
        """What the streams must find if all was sent until a time.

        Args:
            until: Time until which all was sent, epoch ms.
            now: The time of the comparison, epoch ms.
            tolerance: How long after an absence is due its event may be missing, ms.
        """
        interval, offline_after = self.fleet.interval, self.fleet.offline_after
        last_before_absence = self._last_check_in(np.minimum(self.away_from, until))
        first_after_absence = self.phase + -(-(self.away_until - self.phase) // interval) * interval
        is_away, has_returned = self.away_until > self.away_from, first_after_absence < until
        last = np.where(
            is_away & (self.away_from < until) & ~has_returned,
            last_before_absence,
            self._last_check_in(np.full(self.fleet.agents, until)),
        )
        ended = is_away & has_returned & (last_before_absence >= 0)
        ended &= first_after_absence - last_before_absence >= offline_after
        absences = {(n, int(last_before_absence[n])) for n in np.flatnonzero(ended).tolist()}
        is_known, due = last >= 0, last + offline_after
        is_offline = is_known & (due + tolerance <= now)
        absences |= {(n, int(last[n])) for n in np.flatnonzero(is_offline).tolist()}
        undecided = set(np.flatnonzero(is_known & (due <= now) & ~is_offline).tolist())
        return Expected(absences, undecided, last, is_known & (due > now))

    def _last_check_in(self, before: Ints) -> Ints:
        """For each agent, its last check-in before a time, -1 if there is none."""
        interval = self.fleet.interval
        at = self.phase + (before - 1 - self.phase) // interval * interval
        return np.where(at >= self.phase, at, -1)
