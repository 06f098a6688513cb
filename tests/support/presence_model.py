"""The rules of presence over plain lists, as slow as they are simple: what the streams of presence are compared with.

All times are epoch ms. Records are the dicts that lie in the topics; the order in which they are given and repeated
ones change nothing.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Record = Mapping[str, Any]

MINUTE = 60_000
DWELL, WITHIN, AWAY = 2 * MINUTE, 10 * MINUTE, 240 * MINUTE
WAIT = 30 * MINUTE

# Of events of one time the last of these decides.
PRECEDENCE = {"login": 0, "change": 1, "removal": 2}


def walk_ins(
    probes: Iterable[Record], thresholds: Mapping[str, int], dwell: int = DWELL, within: int = WITHIN, away: int = AWAY
) -> list[dict[str, Any]]:
    """device, business, since, timestamp of every walk-in, in that order of columns sorted."""
    strong: dict[tuple[str, str], set[int]] = defaultdict(set)
    for p in probes:
        if p["business"] in thresholds and p["signal"] >= thresholds[p["business"]]:
            strong[p["device"], p["business"]].add(p["timestamp"])
    found = []
    for (device, business), times in sorted(strong.items()):
        for presence in _presences(sorted(times), away):
            for t in presence:
                if early := [s for s in presence if dwell <= t - s <= within]:
                    found.append({"device": device, "business": business, "since": min(early), "timestamp": t})
                    break
    return found


def _presences(times: Sequence[int], away: int) -> list[list[int]]:
    found: list[list[int]] = []
    for t in times:
        if found and t - found[-1][-1] < away:
            found[-1].append(t)
        else:
            found.append([t])
    return found


def device_contacts(events: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """device, contact, businesses, timestamp of every device, by device; and what that is made of: rank, removed,
    logins."""
    of: dict[str, list[Record]] = defaultdict(list)
    for event in events:
        of[event["device"]].append(event)
    return {device: _contact(device, mine) for device, mine in sorted(of.items())}


def _contact(device: str, events: list[Record]) -> dict[str, Any]:
    newest = max(events, key=lambda e: (e["timestamp"], PRECEDENCE[e["type"]], e["contact"] or ""))
    removed = max((e["timestamp"] for e in events if e["type"] == "removal"), default=None)
    logins = {
        e["business"]: e["timestamp"]
        for e in sorted(events, key=lambda e: e["timestamp"])
        if e["type"] == "login" and e["business"] is not None and (removed is None or e["timestamp"] > removed)
    }
    return {
        "device": device,
        "contact": None if newest["type"] == "removal" else newest["contact"],
        "businesses": sorted(logins),
        "timestamp": newest["timestamp"],
        "rank": PRECEDENCE[newest["type"]],
        "removed": removed,
        "logins": [{"business": business, "moment": at} for business, at in sorted(logins.items())] or None,
    }


def enriched(walk_ins: Iterable[Record], crm_events: Iterable[Record], wait: int = WAIT) -> list[dict[str, Any]]:
    """The walk-ins that have a contact at their time or get one within `wait`, each once: a walk-in's columns and
    contact; sorted by device, business and timestamp."""
    events = list(crm_events)
    found = {}
    for w in walk_ins:
        mine = [e for e in events if e["device"] == w["device"]]
        at = w["timestamp"]
        later = sorted({e["timestamp"] for e in mine if at < e["timestamp"] <= at + wait})
        contacts = [_contact_at(mine, moment) for moment in [at, *later]]
        if contact := next((c for c in contacts if c is not None), None):
            found[w["device"], w["business"], at] = {**w, "contact": contact}
    return [row for _, row in sorted(found.items())]


def _contact_at(events: list[Record], moment: int) -> str | None:
    """The contact by all that had happened at a moment, its own millisecond included."""
    happened = [e for e in events if e["timestamp"] <= moment]
    return _contact("", happened)["contact"] if happened else None


def counts(enriched: Iterable[Record], bases: Iterable[Record]) -> dict[tuple[str, str], int]:
    """(business, contact) -> count of walk-ins."""
    walked: dict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)
    for w in enriched:
        walked[w["business"], w["contact"]].add((w["device"], w["timestamp"]))
    told: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for b in bases:
        told[b["business"], b["contact"]].append((b["as_of"], b["count"]))
    found = {}
    for pair in sorted(walked.keys() | told.keys()):
        if pair in told:
            as_of, n = max(told[pair])
            found[pair] = n + sum(at > as_of for _, at in walked[pair])
        else:
            found[pair] = len(walked[pair])
    return found


@dataclass(frozen=True)
class History:
    """Records of all inputs in the order in which they arrive, some of them twice. thresholds: by business; a probe
    may name a business that is not there."""

    probes: list[dict[str, Any]]
    thresholds: dict[str, int]
    events: list[dict[str, Any]]
    bases: list[dict[str, Any]]

    def shuffled(self, seed: int) -> History:
        """The same in another order, with other repetitions."""
        chance = random.Random(seed)
        return replace(
            self,
            probes=_arriving(chance, self.probes),
            events=_arriving(chance, self.events),
            bases=_arriving(chance, self.bases),
        )


def histories(seed: int, start: int = 1_700_000_000_000) -> History:
    """A small random history whose times and signals lie on the borders of the rules, or one beside them.

    start: epoch ms of its first probes; it lasts a day or two.
    """
    chance = random.Random(seed)
    thresholds = {"1": -70, "2": chance.choice([-80, -60])}
    devices = [f"{seed:04x}{n:02x}" for n in range(chance.randint(1, 3))]
    probes = [p for d in devices for b in ["1", "2", "none"] for p in _probes(chance, d, b, thresholds, start)]
    walked = walk_ins(probes, thresholds)
    events = [e for d in devices for e in _events(chance, d, walked, start)]
    known = enriched(walked, events)
    bases = [b for w in known for b in _bases(chance, w, known)]
    given = History(probes, thresholds, events, bases)
    return given.shuffled(seed)


def _arriving(chance: random.Random, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    some = [*records, *(r for r in records if chance.random() < 0.1)]
    return chance.sample(some, len(some))


def _probes(
    chance: random.Random, device: str, business: str, thresholds: Mapping[str, int], start: int
) -> list[dict[str, Any]]:
    """Probes of a pair, each a step behind the one before it that matters to some rule."""
    if chance.random() < 0.3:
        return []
    beside = [-1, 0, 1]
    at, threshold = start + chance.choice([0, 1, 5 * MINUTE]), thresholds.get(business, -70)
    found = []
    for _ in range(chance.randint(2, 14)):
        signal = threshold + chance.choice([0, 0, 0, 0, 20, -1, -1, -30])
        router = f"r-{business}-{chance.randint(1, 2)}"
        found.append({"device": device, "business": business, "router": router, "signal": signal, "timestamp": at})
        match chance.randrange(10):
            case 0 | 1:
                at += AWAY + chance.choice(beside)
            case 2 | 3:
                at += DWELL + chance.choice(beside)
            case 4:
                at += WITHIN + chance.choice(beside)
            case 5:
                at += WITHIN - DWELL + chance.choice(beside)
            case 6:
                at += DWELL // 2 + chance.choice(beside)
            case 7:
                at += chance.choice([0, 1])
            case 8:
                at = max(start, at - chance.choice([1, DWELL, WITHIN]))
            case _:
                at += chance.randrange(DWELL)
    return found


def _events(chance: random.Random, device: str, walked: Sequence[Record], start: int) -> list[dict[str, Any]]:
    """CRM events at, just before and just after a device's walk-ins and the end of their wait; some at one time."""
    mine = [w["timestamp"] for w in walked if w["device"] == device] or [start]
    found: list[dict[str, Any]] = []
    for _ in range(chance.choice([0, 1, 1, 2, 3, 5, 8])):
        kind = chance.choice(["login", "login", "login", "change", "removal"])
        at = chance.choice(mine) + chance.choice([0, WAIT, -MINUTE, MINUTE]) + chance.choice([-1, 0, 1])
        if found and chance.random() < 0.2:
            at = chance.choice(found)["timestamp"]
        found.append(
            {
                "device": device,
                "contact": None if kind == "removal" else f"c-{chance.randint(1, 3)}",
                "business": chance.choice(["1", "2"]) if kind == "login" else None,
                "type": kind,
                "timestamp": at,
            }
        )
    return found


def _bases(chance: random.Random, w: Record, known: Sequence[Record]) -> list[dict[str, Any]]:
    """Base counts of a walk-in's pair, as of walk-ins' own times or one beside them; and now and then of a pair that
    has no walk-in."""
    pair = {"business": w["business"], "contact": w["contact"] if chance.random() < 0.9 else "c-none"}
    return [
        {
            **pair,
            "count": chance.randint(0, 5),
            "as_of": chance.choice(known)["timestamp"] + chance.choice([-1, 0, 0, 1]),
        }
        for _ in range(chance.choice([0, 0, 1, 2]))
    ]
