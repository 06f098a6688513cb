"""What devices of a crowd do: at one business, where each script says by its making whether it is a visit, and what the
CRM tells of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from penstock.errors import PenstockError

MINUTE = 60_000
# How long who walked in stays at most, and how long a walk-in waits for its contact.
STAY = WAIT = 30 * MINUTE


@dataclass(frozen=True)
class Rules:
    """Of walk-ins, in ms: the dwell and the time within which it must be reached, and the gap that ends a presence."""

    dwell: int = 2 * MINUTE
    within: int = 10 * MINUTE
    away: int = 240 * MINUTE

    def check(self) -> None:
        """PenstockError if scripts cannot keep apart what the rules tell apart."""
        if not 1 < self.dwell < self.within < self.away - 2:
            raise PenstockError(
                "these rules make no crowd",
                got=f"dwell {self.dwell} ms, within {self.within} ms, away {self.away} ms",
                hint="make the dwell shorter than the time within which it is reached, and that shorter than the gap",
            )


DEFAULT = Rules()


class Script(NamedTuple):
    """Times in ms after its beginning. strong: of signals that count, the last of which is when the device leaves;
    weak: of others; visit: (since, timestamp) of the walk-in that it makes if the presence has none yet."""

    strong: Sequence[int] = ()
    weak: Sequence[int] = ()
    visit: tuple[int, int] | None = None


WEIGHTS = {
    "visit": 8, "short": 4, "passing": 2, "fading": 2, "longest": 1, "sparse": 1, "second": 1, "sliding": 1,
}  # fmt: skip


def script(chance: random.Random, rules: Rules) -> Script:
    """One of the things that devices do, often on a border of the rules."""
    dwell, within = rules.dwell, rules.within
    [name] = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
    before = sorted(chance.randrange(1, dwell) for _ in range(chance.randrange(4)))
    match name:
        case "visit":
            reached = chance.choice([dwell, dwell + 1, chance.randint(dwell, within)])
            return Script([0, *before, reached], visit=(0, reached))
        case "short":
            return Script([0, *before, *chance.choice([[], [dwell - 1]])])
        case "passing":
            return Script(weak=[0, *before, dwell, within])
        case "fading":
            return Script([0, *before], [dwell, dwell + 1, within])
        case "longest":
            return Script([0, within], before, visit=(0, within))
        case "sparse":
            return Script([n * (within + 1) for n in range(chance.randint(2, 4))], before)
        case "second":
            begun = within + 1
            return Script([0, begun, begun + dwell], visit=(begun, begun + dwell))
        case _:
            # The first signal is too far back when the dwell is reached, the next is not.
            begun = chance.randint(1, min(dwell - 1, within - dwell))
            reached = within + chance.randint(1, begun)
            return Script([0, begun, reached], visit=(begun, reached))


@dataclass(frozen=True)
class Attendance:
    """Of a device at a business, times in epoch ms. probes: (time, strong); visits: (since, timestamp); stays: (from,
    to) where more strong signals change nothing."""

    probes: list[tuple[int, bool]] = field(default_factory=list)
    visits: list[tuple[int, int]] = field(default_factory=list)
    stays: list[tuple[int, int]] = field(default_factory=list)


def attend(chance: random.Random, rules: Rules, begin: int, end: int, late: int) -> Attendance:
    """One script after the other, from `begin` on and with nothing at `end` or later. Between two lies a gap just under
    the one that ends a presence, or just that, or a little more.

    late: how long a signal may be on its way. Those of who stays come behind the one that reached the dwell: else it
    could be overtaken, and what is told once is told of the one that came first.
    """
    found = Attendance()
    visited = False
    while True:
        made = script(chance, rules)
        if begin + max([*made.strong, *made.weak]) >= end:
            return found
        found.probes.extend((begin + t, True) for t in made.strong)
        found.probes.extend((begin + t, False) for t in made.weak)
        if not made.strong:
            return found
        leaves = begin + made.strong[-1]
        if made.visit and not visited:
            since, at = (begin + t for t in made.visit)
            found.visits.append((since, at))
            visited = True
        if visited:
            stays = leaves + min(chance.randint(0, min(STAY, rules.away // 2)), end - 1 - leaves)
            if stays <= leaves + late:
                stays = leaves
            else:
                found.stays.append((leaves + late + 1, stays))
            found.probes.append((stays, True))
            leaves = stays
        match chance.randrange(4):
            case 0:
                begin = leaves + rules.away - 1 - chance.choice([0, chance.randint(0, rules.away - 2 - rules.within)])
            case 1:
                begin = leaves + rules.away + chance.choice([0, 1, chance.randint(0, 10 * MINUTE)])
                visited = False
            case _:
                return found


class Told(NamedTuple):
    """An event of the CRM. at, sent: epoch ms; backfill: whether it comes by that topic."""

    sent: int
    at: int
    backfill: bool
    device: str
    value: bytes


def tell(
    chance: random.Random, device: str, contact: str, visits: Sequence[tuple[str, int]], begin: int, end: int, late: int
) -> list[Told]:
    """Events of a device that has visits (business, timestamp): logins before, at and after one, or none; changes and
    removals; some late, some twice, some by the backfill. All lie between `begin` and `end`."""
    if not visits or chance.random() < 0.25:
        return []
    business, visit = chance.choice(visits)
    login = visit + chance.choice(
        [-chance.randint(0, 60 * MINUTE), 0, 1, chance.randint(1, 5 * MINUTE), chance.randint(1, WAIT), WAIT, WAIT + 1]
    )
    events: list[tuple[int, str, str | None, str | None]] = [(login, "login", contact, business)]
    if chance.random() < 0.3:
        events.append((login + chance.randint(0, 120 * MINUTE), "change", f"{contact}-b", None))
    if chance.random() < 0.2:
        events.append((login + chance.randint(0, 240 * MINUTE), "removal", None, None))
        if chance.random() < 0.5:
            events.append((events[-1][0] + chance.randint(1, 60 * MINUTE), "login", f"{contact}-c", business))
    found = []
    for at, kind, who, where in events:
        if not begin <= at < end:
            continue
        value = orjson.dumps({"device": device, "contact": who, "business": where, "type": kind, "timestamp": at})
        found.append(Told(at + delay(chance, late), at, chance.random() < 0.1, device, value))
        if chance.random() < 0.1:
            found.append(found[-1]._replace(sent=at + delay(chance, late), backfill=chance.random() < 0.5))
    return found


def delay(chance: random.Random, late: int) -> int:
    """How long a record is on its way, in ms: one in five is late."""
    return chance.randint(0, late) if chance.random() < 0.2 else 0
