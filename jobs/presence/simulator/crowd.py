"""A crowd of devices whose visits are known: what routers hear of it, what the CRM tells, who is to walk in.

Each device follows scripts, one after another at each business where it is heard, and a script says by its making
whether it is a visit. Around them is what changes nothing: signals below the threshold of anybody anywhere, and strong
ones of those who have walked in and stay.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jobs.presence.simulator.scripts import DEFAULT, Rules, Told, attend, delay, tell
from penstock.errors import PenstockError

Ints = npt.NDArray[np.int64]

# A business that nobody knows: no AUTO_INCREMENT gives it.
UNKNOWN = "0"
# Of probes that are in no script, those of devices that stay where they walked in.
STAYING = 0.3
DELAYED, REPEATED = 0.2, 0.05


class Business(NamedTuple):
    """threshold: dBm, the least signal that counts."""

    id: str
    threshold: int


class Visit(NamedTuple):
    """A walk-in that is expected. since, timestamp: epoch ms."""

    device: str
    business: str
    since: int
    timestamp: int


@dataclass(frozen=True)
class Crowd:
    """What a plan is made of. rate: probes a second; start: epoch ms; length, late, step in ms, late being how long a
    probe or an event may be on its way, and step the time of what is sent together."""

    devices: int
    businesses: Sequence[Business]
    rate: float
    start: int
    length: int
    seed: int = 0
    late: int = 5000
    step: int = 100
    rules: Rules = DEFAULT

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def name(self) -> str:
        """The first six digits of its devices, which tell it from other crowds."""
        return hashlib.blake2b(f"{self.seed} {self.start}".encode(), digest_size=3).hexdigest()


class Step(NamedTuple):
    """What is sent until a time: (key, value) of probes, and what the CRM tells, each in its order."""

    until: int
    probes: list[tuple[str, str]]
    told: list[Told]


class Heard(NamedTuple):
    """Probes as columns. device, business: their numbers; at, sent: epoch ms."""

    device: Ints
    business: Ints
    signal: Ints
    at: Ints
    sent: Ints


@dataclass(frozen=True)
class Plan:
    """visits: by time; told: events of the CRM by the time they are sent. What has a time until a moment decides what
    is expected until then, so a plan may be broken off: see `rest` and `until`."""

    crowd: Crowd
    visits: list[Visit]
    told: list[Told]
    scripted: Heard
    # Who stays where: device, business, from and to.
    stays: Ints

    def steps(self) -> Iterator[Step]:
        """Everything in the order in which it is sent."""
        crowd, encode = self.crowd, self._encoder()
        for number, begin in enumerate(range(crowd.start, crowd.end, crowd.step)):
            end = min(begin + crowd.step, crowd.end)
            first, last = np.searchsorted(self.scripted.sent, [begin, end])
            due, before = (int(crowd.rate * (t - crowd.start) / 1000) for t in (end, begin))
            of_script = Heard(*(column[first:last] for column in self.scripted))
            filling = self._filling(number, begin, end, max(0, due - before - int(last - first)))
            both = Heard(*map(np.concatenate, zip(of_script, filling, strict=True)))
            order = np.argsort(both.sent, kind="stable")
            told = self.told[slice(*(bisect_left(self.told, t, key=lambda one: one.sent) for t in (begin, end)))]
            yield Step(end, encode(Heard(*(column[order] for column in both))), told)

    def rest(self, moment: int) -> Step:
        """What had happened by a moment, and is still on its way then."""
        s = self.scripted
        late = (s.at < moment) & (s.sent >= moment)
        told = [one for one in self.told if one.at < moment <= one.sent]
        return Step(moment, self._encoder()(Heard(*(column[late] for column in s))), told)

    def until(self, moment: int) -> list[Visit]:
        """The visits that are expected when everything before a moment was sent and nothing of later."""
        return [visit for visit in self.visits if visit.timestamp < moment]

    def _filling(self, number: int, begin: int, end: int, count: int) -> Heard:
        """So many probes that change nothing."""
        crowd, chance = self.crowd, np.random.default_rng([self.crowd.seed, number])
        thresholds = np.array([b.threshold for b in crowd.businesses])
        device = chance.integers(0, crowd.devices, count)
        business = chance.integers(0, len(thresholds), count)
        beside = np.where(chance.random(count) < 0.25, 0, chance.integers(0, 25, count))
        signal = thresholds[business] - 1 - beside
        sent = chance.integers(begin, end, count)
        delay = np.where(chance.random(count) < DELAYED, chance.integers(0, crowd.late + 1, count), 0)
        at = np.maximum(sent - delay, crowd.start)
        here = self.stays[:, (self.stays[2] <= begin) & (self.stays[3] >= end)]
        if here.shape[1]:
            n = int(count * STAYING)
            who, where, since, to = here[:, chance.integers(0, here.shape[1], n)]
            device[:n], business[:n], signal[:n] = who, where, thresholds[where] + beside[:n]
            at[:n] = np.clip(at[:n], since, to)
        if again := int(count * REPEATED / 2):
            for column in (device, business, signal, at, sent):
                column[-again:] = column[:again]
        return Heard(device, business, signal, at, sent)

    def _encoder(self) -> Callable[[Heard], list[tuple[str, str]]]:
        names = names_of(self.crowd)
        ids = [*(b.id for b in self.crowd.businesses), UNKNOWN]

        def encode(heard: Heard) -> list[tuple[str, str]]:
            found = []
            for device, business, signal, at in zip(*(column.tolist() for column in heard[:4]), strict=True):
                name, place = names[device], ids[business]
                where = f'{{"device":"{name}","business":"{place}","router":"r-{place}-{at % 3}"'
                found.append((name, f'{where},"signal":{signal},"timestamp":{at}}}'))
            return found

        return encode


def names_of(crowd: Crowd) -> list[str]:
    """The devices, by number."""
    return [f"{crowd.name}{n:06x}" for n in range(crowd.devices)]


def plan(crowd: Crowd) -> Plan:
    """The plan of a crowd, the same for the same crowd. PenstockError if there cannot be such a crowd."""
    crowd.rules.check()
    if crowd.length <= crowd.late:
        hint = "let it last longer than a probe may be on its way"
        raise PenstockError("this crowd is over before it begins", got=f"{crowd.length} ms", hint=hint)
    if crowd.late >= crowd.rules.dwell:
        raise PenstockError(
            "probes that are on their way for as long as the dwell make no visits that can be told beforehand",
            got=f"{crowd.late} ms late, dwell {crowd.rules.dwell} ms",
            hint="let them be less late",
        )
    chance = random.Random(f"{crowd.seed} {crowd.start}")
    # Everything that is late has come by the end.
    end = crowd.end - crowd.late
    visits: list[Visit] = []
    told: list[Told] = []
    heard: list[tuple[int, int, int, int, int]] = []
    stays: list[tuple[int, int, int, int]] = []
    for number, device in enumerate(names_of(crowd)):
        mine: list[Visit] = []
        begin = _somewhen(chance, crowd)
        for place in _places(chance, len(crowd.businesses)):
            # Some are heard by two businesses at once, others go from one to the next.
            begin = begin if chance.random() < 0.4 else _somewhen(chance, crowd)
            found = attend(chance, crowd.rules, begin, end, crowd.late)
            for at, strong in found.probes:
                for _ in range(1 + (chance.random() < REPEATED)):
                    signal = _signal(chance, crowd, place, strong=strong)
                    heard.append((number, place, signal, at, at + delay(chance, crowd.late)))
            if place < len(crowd.businesses):
                mine += [Visit(device, crowd.businesses[place].id, *one) for one in found.visits]
                stays += [(number, place, *one) for one in found.stays]
        visits += mine
        met = [(v.business, v.timestamp) for v in mine]
        told += tell(chance, device, f"c-{crowd.name}-{number}", met, crowd.start, end, crowd.late)
    if len(heard) > crowd.rate * crowd.length / 1000:
        least = len(heard) * 1000 / crowd.length
        hint = "take a higher rate, fewer devices or a longer time"
        raise PenstockError(f"{crowd.devices} devices send {least:.1f} probes/s at least", got=crowd.rate, hint=hint)
    scripted = np.array(heard, np.int64).reshape(-1, 5)
    scripted = scripted[np.argsort(scripted[:, 4], kind="stable")]
    return Plan(
        crowd,
        sorted(visits, key=lambda v: (v.timestamp, v)),
        sorted(told),
        Heard(*scripted.T),
        np.array(stays, np.int64).reshape(-1, 4).T,
    )


def _somewhen(chance: random.Random, crowd: Crowd) -> int:
    return crowd.start + chance.randrange(crowd.length)


def _places(chance: random.Random, known: int) -> list[int]:
    """One to three businesses by number; now and then one that nobody knows, whose number is the first behind."""
    found = chance.sample(range(known), min(known, chance.choice([1, 1, 2, 3])))
    return [*found, known] if chance.random() < 0.05 else found


def _signal(chance: random.Random, crowd: Crowd, place: int, *, strong: bool) -> int:
    """At the threshold or above, or below, often just so."""
    threshold = crowd.businesses[place].threshold if place < len(crowd.businesses) else -70
    beside = chance.choice([0, chance.randrange(25)])
    return threshold + beside if strong else threshold - 1 - beside
