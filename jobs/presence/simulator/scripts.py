"""What the devices of a crowd do at a business, and the events that the CRM sends about them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from penstock.errors import PenstockError

MINUTE = 60_000
# How long a device stays at most after it walked in, and how long a walk-in waits for its contact.
MAX_STAY = WAIT = 30 * MINUTE


@dataclass(frozen=True)
class Rules:
    """The rules of walk-ins, in ms.

    Attributes:
        dwell: How long a device must be present to walk in.
        within: The time within which the dwell must be reached.
        away: The absence that ends a presence.
    """

    dwell: int = 2 * MINUTE
    within: int = 10 * MINUTE
    away: int = 240 * MINUTE

    def check(self) -> None:
        """Raise PenstockError if there are no scripts for these rules."""
        if not 1 < self.dwell < self.within < self.away - 2:
            raise PenstockError(
                "no crowd can be simulated by these rules",
                got=f"dwell {self.dwell} ms, within {self.within} ms, away {self.away} ms",
                hint="dwell must be shorter than within, and within shorter than away",
            )


DEFAULT = Rules()


class Script(NamedTuple):
    """The probes of a device during a part of its presence. Times are in ms after the start of the script.

    Attributes:
        strong: Times of signals that count; at the last one the device left_at.
        weak: Times of other signals.
        visit: `since` and `timestamp` of the walk-in, if the presence has none yet.
    """

    strong: Sequence[int] = ()
    weak: Sequence[int] = ()
    visit: tuple[int, int] | None = None


WEIGHTS = {
    "visit": 8, "short": 4, "passing": 2, "fading": 2, "longest": 1, "sparse": 1, "second": 1, "sliding": 1,
}  # fmt: skip


def random_script(rng: random.Random, rules: Rules) -> Script:
    """A random script, often at a limit of the rules."""
    dwell, within = rules.dwell, rules.within
    [name] = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
    before = sorted(rng.randrange(1, dwell) for _ in range(rng.randrange(4)))
    match name:
        case "visit":
            reached = rng.choice([dwell, dwell + 1, rng.randint(dwell, within)])
            return Script([0, *before, reached], visit=(0, reached))
        case "short":
            return Script([0, *before, *rng.choice([[], [dwell - 1]])])
        case "passing":
            return Script(weak=[0, *before, dwell, within])
        case "fading":
            return Script([0, *before], [dwell, dwell + 1, within])
        case "longest":
            return Script([0, within], before, visit=(0, within))
        case "sparse":
            return Script([n * (within + 1) for n in range(rng.randint(2, 4))], before)
        case "second":
            start = within + 1
            return Script([0, start, start + dwell], visit=(start, start + dwell))
        case _:
            # The first signal is too far back when the dwell is reached, the next is not.
            start = rng.randint(1, min(dwell - 1, within - dwell))
            reached = within + rng.randint(1, start)
            return Script([0, start, reached], visit=(start, reached))


@dataclass(frozen=True)
class Presence:
    """What a device does at a business. Times are epoch ms.

    Attributes:
        probes: Time of each probe, and whether its signal counts.
        visits: `since` and `timestamp` of each walk-in.
        stays: From and to of times in which further signals change nothing.
    """

    probes: list[tuple[int, bool]] = field(default_factory=list)
    visits: list[tuple[int, int]] = field(default_factory=list)
    stays: list[tuple[int, int]] = field(default_factory=list)


def simulate_presence(rng: random.Random, rules: Rules, begin: int, end: int, late: int) -> Presence:
    """Run random scripts one after the other, with absences around `rules.away` between them.

    Args:
        rng: The random numbers.
        rules: The rules of walk-ins.
        begin: Start of the first script.
        end: Nothing happens at this time or later.
        late: How late a probe may be. Probes of a stay are that much later than the one that reached the dwell:
            otherwise they could overtake it, and the stream would emit a walk-in with their time.
    """
    presence = Presence()
    has_walked_in = False
    while True:
        script = random_script(rng, rules)
        if begin + max([*script.strong, *script.weak]) >= end:
            return presence
        presence.probes.extend((begin + t, True) for t in script.strong)
        presence.probes.extend((begin + t, False) for t in script.weak)
        if not script.strong:
            return presence
        left_at = begin + script.strong[-1]
        if script.visit and not has_walked_in:
            since, at = (begin + t for t in script.visit)
            presence.visits.append((since, at))
            has_walked_in = True
        if has_walked_in:
            stays_until = left_at + min(rng.randint(0, min(MAX_STAY, rules.away // 2)), end - 1 - left_at)
            if stays_until <= left_at + late:
                stays_until = left_at
            else:
                presence.stays.append((left_at + late + 1, stays_until))
            presence.probes.append((stays_until, True))
            left_at = stays_until
        match rng.randrange(4):
            case 0:
                begin = left_at + rules.away - 1 - rng.choice([0, rng.randint(0, rules.away - 2 - rules.within)])
            case 1:
                begin = left_at + rules.away + rng.choice([0, 1, rng.randint(0, 10 * MINUTE)])
                has_walked_in = False
            case _:
                return presence


class CrmEvent(NamedTuple):
    """An event of the CRM.

    Attributes:
        sent: Time of sending, epoch ms.
        at: Event time, epoch ms.
        backfill: Whether it is sent to the topic of backfilled events.
        device: The device.
        value: The record's value.
    """

    sent: int
    at: int
    backfill: bool
    device: str
    value: bytes


def crm_events(
    rng: random.Random, device: str, contact: str, visits: Sequence[tuple[str, int]], begin: int, end: int, late: int
) -> list[CrmEvent]:
    """Random CRM events of a device between `begin` and `end`.

    There are logins before, at and after one of the visits (business and time), or none, changes and removals. Some
    events are late, some are sent twice, some to the topic of backfilled events.
    """
    if not visits or rng.random() < 0.25:
        return []
    business, visit = rng.choice(visits)
    login = visit + rng.choice(
        [-rng.randint(0, 60 * MINUTE), 0, 1, rng.randint(1, 5 * MINUTE), rng.randint(1, WAIT), WAIT, WAIT + 1]
    )
    events: list[tuple[int, str, str | None, str | None]] = [(login, "login", contact, business)]
    if rng.random() < 0.3:
        events.append((login + rng.randint(0, 120 * MINUTE), "change", f"{contact}-b", None))
    if rng.random() < 0.2:
        events.append((login + rng.randint(0, 240 * MINUTE), "removal", None, None))
        if rng.random() < 0.5:
            events.append((events[-1][0] + rng.randint(1, 60 * MINUTE), "login", f"{contact}-c", business))
    records = []
    for at, kind, event_contact, event_business in events:
        if not begin <= at < end:
            continue
        value = orjson.dumps(
            {"device": device, "contact": event_contact, "business": event_business, "type": kind, "timestamp": at}
        )
        records.append(CrmEvent(at + random_delay(rng, late), at, rng.random() < 0.1, device, value))
        if rng.random() < 0.1:
            records.append(records[-1]._replace(sent=at + random_delay(rng, late), backfill=rng.random() < 0.5))
    return records


def random_delay(rng: random.Random, late: int) -> int:
    """How late a record is sent, in ms: one in five is late."""
    return rng.randint(0, late) if rng.random() < 0.2 else 0
