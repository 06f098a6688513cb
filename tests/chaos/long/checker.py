"""Computes the expected outputs from the inputs in plain Python, without code of the platform.

A record whose key begins with `bad` is malformed. An event that is hours older than its record is late in streams with
event time; every other is on time. Events with negative ids are pulses, which advance time. Only events before a
horizon (epoch ms, the end of a window) are compared; after it only pulses are sent.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any

from tests.chaos.long.topics import CommittedRecord, Topics

WINDOW, NEAR, TIMER = 10_000, 10_000, 20_000
# Older than this is late for certain; everything else must be younger than half a grace.
LATE = 30 * 60_000
SHOWN = 3
READ_EVENTS = ("named", "parted", "totals", "finals", "once", "joined", "timed")
STREAMS = (*READ_EVENTS, "wilds")
KEEP_LATE = ("totals", "finals", "once")
Event = dict[str, Any]


class Checker:
    """Mistakes found in the topics of some streams; `records` counts what was compared."""

    def __init__(self, bootstrap: str, streams: Collection[str] = STREAMS) -> None:
        self.topics, self.streams = Topics(bootstrap), streams
        self.records: dict[str, int] = {}

    def mistakes(self, horizon: int, ledger: Mapping[int, int] | None = None) -> list[str]:
        """All that is wrong; empty if all is as it must be. ledger: the captured table, version by id."""
        self.records = {}
        mistakes: list[str] = []
        # Before the outputs: what they hold must have been there.
        raw = self._read("events")
        sent = [r for r in raw if not _ours(r) and r.at < horizon]
        bad = [r for r in sent if _bad(r)]
        every = [_event(r) for r in sent if not _bad(r)]
        events = [e for e in every if e["id"] >= 0]
        on_time = [e for e in events if not e["late"]]
        # A pulse of an earlier round counts in its window.
        timely = [e for e in every if not e["late"]]
        compared: dict[str, Callable[[], Iterator[str]]] = {
            "named": lambda: self._named(events),
            "parted": lambda: self._parted(events),
            "totals": lambda: self._windows("totals", timely, horizon),
            "finals": lambda: self._windows("finals", timely, horizon),
            "once": lambda: self._once(timely, horizon),
            "joined": lambda: self._joined(on_time, horizon),
            "timed": lambda: self._timed(on_time),
            "wilds": lambda: self._wilds(horizon),
        }
        for stream in compared.keys() & set(self.streams):
            mistakes += compared[stream]()
        mistakes += self._dead(bad)
        mistakes += self._late([e for e in events if e["late"]])
        if ledger is not None:
            mistakes += self._captured(ledger)
        return mistakes

    def _read(self, topic: str) -> list[CommittedRecord]:
        rows = self.topics.read(topic)
        self.records[topic] = len(rows)
        return rows

    def _values(self, topic: str) -> Iterator[tuple[Any, Any]]:
        """Key and value of each record as JSON; a key that is none as its text."""
        for r in self._read(topic):
            yield json.loads(r.key or b"null"), json.loads(r.value or b"null")

    def _named(self, events: list[Event]) -> Iterator[str]:
        versions = self._versions()
        wanted: Counter[Hashable] = Counter((e["id"], e["v"], e["name"], e["seen"]) for e in events)
        got: Counter[Hashable] = Counter()
        strange: list[str] = []
        for key, value in self._values("named"):
            if key < 0:
                continue
            got[key, value["v"], value["name"], value["seen"]] += 1
            # What was there when the event was sent, or anything later.
            may = versions[value["name"]][value["seen"] :]
            if value["version"] not in may:
                strange.append(f"event {key}: {value['version']} of {value['name']}, not one of {may[:5]}")
        yield from _differ("named", wanted, got)
        yield from _some("named, of the table", strange)

    def _parted(self, events: list[Event]) -> Iterator[str]:
        for topic, rest in (("even", 0), ("odd", 1)):
            wanted: Counter[Hashable] = Counter((e["id"], e["v"]) for e in events if e["v"] % 2 == rest)
            yield from _differ(topic, wanted, Counter((k, v) for k, v in self._values(topic) if k >= 0))

    def _versions(self) -> defaultdict[str, list[int | None]]:
        """By name: none, and what each change left."""
        versions: defaultdict[str, list[int | None]] = defaultdict(lambda: [None])
        for r in self._read("names"):
            if r.headers.get("kind") != "bad":
                versions[(r.key or b"").decode()].append(json.loads(r.value)["version"] if r.value else None)
        return versions

    def _windows(self, topic: str, events: list[Event], horizon: int) -> Iterator[str]:
        wanted: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
        for e in events:
            group = wanted[e["k"], e["at"] // WINDOW * WINDOW]
            group[0] += 1
            group[1] += e["v"]
        sums = {key: tuple(value) for key, value in wanted.items()}
        rows = [((k["k"], k["start"]), (v["n"], v["total"])) for k, v in self._values(topic) if k["start"] < horizon]
        yield from _differ(topic, Counter(sums.items()), Counter(dict(rows).items()))
        if topic == "finals":
            yield from _twice(topic, (key for key, _ in rows))
        else:
            yield from _back(topic, ((key, n) for key, (n, _) in rows))

    def _once(self, events: list[Event], horizon: int) -> Iterator[str]:
        starts = {e["id"]: e["at"] // WINDOW * WINDOW for e in events}
        rows = [(k, n) for k, n in self._values("once") if k < horizon]
        yield from _differ("once", Counter(Counter(starts.values()).items()), Counter(rows))

    def _joined(self, events: list[Event], horizon: int) -> Iterator[str]:
        pays: defaultdict[int, list[Event]] = defaultdict(list)
        for r in self._read("pays"):
            if not _ours(r) and r.at < horizon:
                pay = json.loads(r.value or b"")
                pays[pay["of"]].append(pay)
        wanted: Counter[Hashable] = Counter()
        for e in events:
            near = [p["amount"] for p in pays[e["id"]] if e["at"] <= p["at"] <= e["at"] + NEAR]
            for amount in near or [None]:
                wanted[e["id"], e["v"], amount] += 1
        rows = [(k, v["v"], v["amount"]) for k, v in self._values("joined") if k >= 0]
        yield from _differ("joined", wanted, Counter(rows))

    def _timed(self, events: list[Event]) -> Iterator[str]:
        wanted: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for e in events:
            wanted[e["g"]][0] += 1
            wanted[e["g"]][1] += e["v"]
        sums = Counter((g, n, total) for g, (n, total) in wanted.items())
        rows = ((r.key or b"").decode() for r in self._read("timed"))
        values = [json.loads(r.value or b"") for r in self._read("timed")]
        got = Counter((g, v["n"], v["total"]) for g, v in zip(rows, values, strict=True) if not g.startswith("pulse"))
        yield from _differ("timed", sums, got)

    def _wilds(self, horizon: int) -> Iterator[str]:
        wanted: Counter[Hashable] = Counter()
        for name in sorted(n for n in self.topics.names() if n.startswith("wild-")):
            wanted.update((name, r.at // WINDOW * WINDOW) for r in self._read(name) if r.at < horizon)
        rows = [((k["topic"], k["start"]), n) for k, n in self._values("wilds") if k["start"] < horizon]
        yield from _differ("wilds", Counter(wanted.items()), Counter(dict(rows).items()))
        yield from _back("wilds", rows)

    def _dead(self, bad: list[CommittedRecord]) -> Iterator[str]:
        readers = [stream for stream in READ_EVENTS if stream in self.streams]
        yield from self._kept("events-dead-letter", bad, readers, "reason")
        if "named" not in self.streams:
            return
        names = [r for r in self._read("names") if r.headers.get("kind") == "bad"]
        yield from self._kept("names-dead-letter", names, ("named",), "reason")

    def _late(self, late: list[Event]) -> Iterator[str]:
        for stream in set(KEEP_LATE) & set(self.streams):
            yield from self._kept(f"{stream}-late", [e["record"] for e in late], (stream,), "late-ms")

    def _kept(self, topic: str, wanted: list[CommittedRecord], streams: Iterable[str], why: str) -> Iterator[str]:
        """Each record once for each stream, as it came, with its place and why."""
        want = Counter((s, r.partition, r.offset, r.key, r.value) for r in wanted for s in streams)
        rows = self._read(topic)
        got: Counter[Hashable] = Counter()
        for r in rows:
            h = {name.removeprefix("penstock."): text for name, text in r.headers.items()}
            got[h["stream"], int(h["partition"]), int(h["offset"]), r.key, r.value] += 1
        yield from _differ(topic, want, got)
        yield from _some(f"{topic}, without {why}", [str(r) for r in rows if not r.headers.get(f"penstock.{why}")])

    def _captured(self, ledger: Mapping[int, int]) -> Iterator[str]:
        newest: dict[int, int] = {}
        back = []
        last: dict[int, int] = {}
        for r in self._read("ledger"):
            key = json.loads(r.key or b"")["id"]
            if r.value is None:
                last.pop(key, None)
                continue
            version = json.loads(r.value)["version"]
            if version < newest.get(key, 0):
                back.append(f"{key}: {version} behind {newest[key]}")
            newest[key] = last[key] = version
        yield from _differ("ledger", Counter(ledger.items()), Counter(last.items()))
        yield from _some("ledger, went back", back)


def _ours(r: CommittedRecord) -> bool:
    """A heartbeat of the platform, which is no record of anybody's."""
    return (r.key or b"").startswith(b"penstock.")


def _bad(r: CommittedRecord) -> bool:
    return (r.key or b"").startswith(b"bad")


def _event(r: CommittedRecord) -> Event:
    event: Event = json.loads(r.value or b"")
    return {**event, "late": event["at"] < r.at - LATE, "record": r}


def _differ(topic: str, wanted: Mapping[Any, int], got: Mapping[Any, int]) -> Iterator[str]:
    """wanted and got: how often each row."""
    differences: tuple[tuple[str, Callable[[int, int], bool]], ...] = (
        ("lost", lambda want, have: have < want),
        ("too many", lambda want, have: have > want),
    )
    for what, wrong in differences:
        rows = [row for row in wanted.keys() | got.keys() if wrong(wanted.get(row, 0), got.get(row, 0))]
        text = [f"{row}: {got.get(row, 0)} of {wanted.get(row, 0)}" for row in sorted(rows, key=repr)[:SHOWN]]
        if rows:
            yield f"{topic}: {len(rows)} {what}: {'; '.join(text)}"


def _twice(topic: str, keys: Iterable[Hashable]) -> Iterator[str]:
    yield from _some(f"{topic}, twice", [str(key) for key, n in Counter(keys).items() if n > 1])


def _back(topic: str, rows: Iterable[tuple[Hashable, int]]) -> Iterator[str]:
    """Absolute values that fell behind an earlier one."""
    newest: dict[Hashable, int] = {}
    fell = []
    for key, n in rows:
        if n < newest.get(key, 0):
            fell.append(f"{key}: {n} behind {newest[key]}")
        newest[key] = max(n, newest.get(key, 0))
    yield from _some(f"{topic}, went back", fell)


def _some(what: str, mistakes: list[str]) -> Iterator[str]:
    if mistakes:
        yield f"{what}: {len(mistakes)}: {'; '.join(mistakes[:SHOWN])}"
