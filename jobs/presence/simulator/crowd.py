"""A simulated crowd of devices: the probes that routers receive, the events of the CRM, and the visits to be found.

At each of its businesses a device follows scripts, one after another, and a script says whether it is a visit. Further
probes change nothing: signals below the threshold, and strong signals of devices that have walked in and stay.
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

from jobs.presence.simulator.scripts import DEFAULT, CrmEvent, Rules, crm_events, random_delay, simulate_presence
from penstock.errors import PenstockError

Ints = npt.NDArray[np.int64]

# The id of a business that does not exist: AUTO_INCREMENT never assigns it.
UNKNOWN = "0"
# Share of devices that stay where they walked in, among probes outside scripts.
STAYING = 0.3
# Shares of probes that are late, and that are sent twice.
DELAYED, REPEATED = 0.2, 0.05


class Business(NamedTuple):
    """A business. threshold: the least signal that counts, dBm."""

    id: str
    threshold: int


class Visit(NamedTuple):
    """A walk-in that the streams must find. since, timestamp: epoch ms."""

    device: str
    business: str
    since: int
    timestamp: int


@dataclass(frozen=True)
class Crowd:
    """A simulated crowd.

    Attributes:
        devices: Number of devices.
        businesses: The businesses that they visit.
        rate: Probes per second of all devices.
        start: Start of the simulated time, epoch ms.
        length: Length of the simulated time, ms.
        seed: Seed of the random numbers.
        late: How late a probe or a CRM event may be sent, ms.
        step: Simulated time of the records that are sent together, ms.
        rules: The rules of walk-ins.
    """

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
        """The first six digits of its devices' names, which distinguish it from other crowds."""
        return hashlib.blake2b(f"{self.seed} {self.start}".encode(), digest_size=3).hexdigest()


class Step(NamedTuple):
    """Records that are sent together, up to a time: key and value of probes, and CRM events, each in order."""

    until: int
    probes: list[tuple[str, str]]
    crm_events: list[CrmEvent]


class ProbeColumns(NamedTuple):
    """Probes as columns. device, business: numbers; at: event time, sent: time of sending, epoch ms."""

    device: Ints
    business: Ints
    signal: Ints
    at: Ints
    sent: Ints


@dataclass(frozen=True)
class Plan:
    """All records of a crowd, and the visits that the streams must find.

    Only records with an event time before some moment decide about visits before it. So a plan may be ended early, at
    the end of a step: see `in_flight` and `visits_until`.

    Attributes:
        crowd: The crowd.
        visits: Visits in order of time.
        crm_events: CRM events in the order in which they are sent.
        scripted: Probes of scripts in the order in which they are sent.
        stays: Times in which a device stays where it walked in: rows of device, business, from and to.
    """

    crowd: Crowd
    visits: list[Visit]
    crm_events: list[CrmEvent]
    scripted: ProbeColumns
    stays: Ints

    def steps(self) -> Iterator[Step]:
        """All steps, in order."""
        crowd, encode = self.crowd, self._encoder()
        for number, begin in enumerate(range(crowd.start, crowd.end, crowd.step)):
            end = min(begin + crowd.step, crowd.end)
            first, last = np.searchsorted(self.scripted.sent, [begin, end])
            until_end, until_begin = (int(crowd.rate * (t - crowd.start) / 1000) for t in (end, begin))
            scripted = ProbeColumns(*(column[first:last] for column in self.scripted))
            background = self._background(number, begin, end, max(0, until_end - until_begin - int(last - first)))
            probes = ProbeColumns(*map(np.concatenate, zip(scripted, background, strict=True)))
            order = np.argsort(probes.sent, kind="stable")
            limits = (bisect_left(self.crm_events, t, key=lambda event: event.sent) for t in (begin, end))
            yield Step(
                end, encode(ProbeColumns(*(column[order] for column in probes))), self.crm_events[slice(*limits)]
            )

    def in_flight(self, moment: int) -> Step:
        """The records with an event time before a moment that are sent later."""
        is_late = (self.scripted.at < moment) & (self.scripted.sent >= moment)
        probes = ProbeColumns(*(column[is_late] for column in self.scripted))
        events = [event for event in self.crm_events if event.at < moment <= event.sent]
        return Step(moment, self._encoder()(probes), events)

    def visits_until(self, moment: int) -> list[Visit]:
        """The visits to be found if all records with an event time before a moment were sent, and no later ones."""
        return [visit for visit in self.visits if visit.timestamp < moment]

    def _background(self, step: int, begin: int, end: int, count: int) -> ProbeColumns:
        """Probes that change nothing."""
        crowd, random = self.crowd, np.random.default_rng([self.crowd.seed, step])
        thresholds = np.array([b.threshold for b in crowd.businesses])
        device = random.integers(0, crowd.devices, count)
        business = random.integers(0, len(thresholds), count)
        distance = np.where(random.random(count) < 0.25, 0, random.integers(0, 25, count))
        signal = thresholds[business] - 1 - distance
        sent = random.integers(begin, end, count)
        delay = np.where(random.random(count) < DELAYED, random.integers(0, crowd.late + 1, count), 0)
        at = np.maximum(sent - delay, crowd.start)
        stays = self.stays[:, (self.stays[2] <= begin) & (self.stays[3] >= end)]
        if stays.shape[1]:
            n = int(count * STAYING)
            staying_device, staying_business, since, to = stays[:, random.integers(0, stays.shape[1], n)]
            device[:n], business[:n] = staying_device, staying_business
            signal[:n] = thresholds[staying_business] + distance[:n]
            at[:n] = np.clip(at[:n], since, to)
        if duplicates := int(count * REPEATED / 2):
            for column in (device, business, signal, at, sent):
                column[-duplicates:] = column[:duplicates]
        return ProbeColumns(device, business, signal, at, sent)

    def _encoder(self) -> Callable[[ProbeColumns], list[tuple[str, str]]]:
        names = device_names(self.crowd)
        ids = [*(b.id for b in self.crowd.businesses), UNKNOWN]

        def encode(probes: ProbeColumns) -> list[tuple[str, str]]:
            records = []
            for device, business, signal, at in zip(*(column.tolist() for column in probes[:4]), strict=True):
                name, id_ = names[device], ids[business]
                fields = f'"device":"{name}","business":"{id_}","router":"r-{id_}-{at % 3}"'
                records.append((name, f'{{{fields},"signal":{signal},"timestamp":{at}}}'))
            return records

        return encode


def device_names(crowd: Crowd) -> list[str]:
    """Names of the devices, by number."""
    return [f"{crowd.name}{n:06x}" for n in range(crowd.devices)]


def plan(crowd: Crowd) -> Plan:
    """Plan all records of a crowd; the same for equal crowds.

    Raises:
        PenstockError: There cannot be such a crowd.
    """
    crowd.rules.check()
    if crowd.length <= crowd.late:
        hint = "let it last longer than a probe may be late"
        raise PenstockError("the simulated time of the crowd is too short", got=f"{crowd.length} ms", hint=hint)
    if crowd.late >= crowd.rules.dwell:
        raise PenstockError(
            "probes may be as late as the dwell, so visits cannot be known in advance",
            got=f"{crowd.late} ms late, dwell {crowd.rules.dwell} ms",
            hint="let them be less late, or use a longer dwell",
        )
    rng = random.Random(f"{crowd.seed} {crowd.start}")
    # All late records are sent before the end.
    end = crowd.end - crowd.late
    visits: list[Visit] = []
    events: list[CrmEvent] = []
    probes: list[tuple[int, int, int, int, int]] = []
    stays: list[tuple[int, int, int, int]] = []
    for number, device in enumerate(device_names(crowd)):
        device_visits: list[Visit] = []
        begin = _random_time(rng, crowd)
        for business in _random_businesses(rng, len(crowd.businesses)):
            # Some are at two businesses at once, others go from one to the next.
            begin = begin if rng.random() < 0.4 else _random_time(rng, crowd)
            presence = simulate_presence(rng, crowd.rules, begin, end, crowd.late)
            for at, strong in presence.probes:
                for _ in range(1 + (rng.random() < REPEATED)):
                    signal = _random_signal(rng, crowd, business, strong=strong)
                    probes.append((number, business, signal, at, at + random_delay(rng, crowd.late)))
            if business < len(crowd.businesses):
                device_visits += [Visit(device, crowd.businesses[business].id, *times) for times in presence.visits]
                stays += [(number, business, *times) for times in presence.stays]
        visits += device_visits
        businesses = [(v.business, v.timestamp) for v in device_visits]
        events += crm_events(rng, device, f"c-{crowd.name}-{number}", businesses, crowd.start, end, crowd.late)
    if len(probes) > crowd.rate * crowd.length / 1000:
        least = len(probes) * 1000 / crowd.length
        hint = "use a higher rate, fewer devices or a longer time"
        raise PenstockError(f"{crowd.devices} devices send {least:.1f} probes/s at least", got=crowd.rate, hint=hint)
    scripted = np.array(probes, np.int64).reshape(-1, 5)
    scripted = scripted[np.argsort(scripted[:, 4], kind="stable")]
    return Plan(
        crowd,
        sorted(visits, key=lambda v: (v.timestamp, v)),
        sorted(events),
        ProbeColumns(*scripted.T),
        np.array(stays, np.int64).reshape(-1, 4).T,
    )


def _random_time(rng: random.Random, crowd: Crowd) -> int:
    return crowd.start + rng.randrange(crowd.length)


def _random_businesses(rng: random.Random, count: int) -> list[int]:
    """Numbers of one to three businesses; sometimes also `count`, the number of the unknown business."""
    businesses = rng.sample(range(count), min(count, rng.choice([1, 1, 2, 3])))
    return [*businesses, count] if rng.random() < 0.05 else businesses


def _random_signal(rng: random.Random, crowd: Crowd, business: int, *, strong: bool) -> int:
    """A signal that counts or not, often at the limit."""
    threshold = crowd.businesses[business].threshold if business < len(crowd.businesses) else -70
    distance = rng.choice([0, rng.randrange(25)])
    return threshold + distance if strong else threshold - 1 - distance
