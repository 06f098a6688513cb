"""A crowd and its topics: sent on the clock or as fast as it goes, and what was made of it compared with its truth."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import orjson

from jobs.presence.simulator.crowd import Business, Plan, Step, Visit
from penstock.errors import BrokerError, PenstockError
from penstock.testing.load import RecordSender, check_topics, read_topic

PROBES, CRM, BACKFILL, BUSINESSES, WALK_INS = "probes", "crm-events", "crm-events-backfill", "businesses", "walk-ins"
# Seconds that a capture gets to write what was added to its table.
PATIENCE = 60.0


@dataclass
class Sent:
    """probes, events: how many; until: epoch ms of what was sent; behind: ms of the clock."""

    probes: int = 0
    events: int = 0
    until: int = 0
    behind: int = 0


class Sending:
    """Sends a plan. BrokerError if its topics are not there, or records were not taken."""

    def __init__(self, plan: Plan, bootstrap: str, stop: Event) -> None:
        self._plan, self._stop, self.sent = plan, stop, Sent(until=plan.crowd.start)
        check_topics([PROBES, CRM, BACKFILL], bootstrap)
        self._out = RecordSender(bootstrap)

    def run(self, *, fast: bool, told: Callable[[Sent], None]) -> list[Visit]:
        """The visits that are to be expected: all, or when `stop` was set those until then. told: after each step."""
        for step in self._plan.steps():
            if not fast:
                self._stop.wait(max(0, step.until / 1000 - time.time()))
                self.sent.behind = max(0, int(time.time() * 1000) - step.until)
            if self._stop.is_set():
                self._send(self._plan.rest(self.sent.until))
                break
            self._send(step)
            self.sent.until = step.until
            told(self.sent)
        self._out.close()
        return self._plan.until(self.sent.until)

    def _send(self, step: Step) -> None:
        for key, value in step.probes:
            self._out.send(PROBES, key, value)
        for one in step.told:
            self._out.send(BACKFILL if one.backfill else CRM, one.device, one.value)
        self._out.poll()
        self.sent.probes += len(step.probes)
        self.sent.events += len(step.told)


def wait_for(businesses: Sequence[Business], bootstrap: str) -> None:
    """Wait until the captured topic has these businesses: probes of others are ignored. BrokerError if it does not."""
    check_topics([BUSINESSES], bootstrap)
    end = time.monotonic() + PATIENCE
    while True:
        known: dict[bytes, Any] = {}
        for key, value in read_topic(BUSINESSES, bootstrap):
            known[key] = orjson.loads(value) if value else None
        thresholds = {str(row["id"]): row["threshold"] for row in known.values() if row and "id" in row}
        missing = [b.id for b in businesses if thresholds.get(b.id) != b.threshold]
        if not missing:
            return
        if time.monotonic() > end:
            raise BrokerError(
                f"topic {BUSINESSES} does not have the demo database's businesses",
                got=f"{', '.join(missing[:5])} missing or with another threshold after {PATIENCE:g} s",
                hint="see that the capture runs: `penstock capture state`",
            )
        time.sleep(0.5)


def write(path: Path, plan: Plan, visits: Iterable[Visit]) -> None:
    """The truth as JSON lines: of the crowd, then of each visit."""
    crowd, rules = plan.crowd, plan.crowd.rules
    first = {
        "crowd": crowd.name, "seed": crowd.seed, "start": crowd.start, "devices": crowd.devices,
        "dwell": rules.dwell, "within": rules.within, "away": rules.away,
    }  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in [first, *(v._asdict() for v in visits)]))
    except OSError as e:
        raise PenstockError("the truth cannot be written", got=f"{path}: {e.strerror}", hint="name another file") from e


@dataclass(frozen=True)
class Compared:
    """found: as expected; missed: expected and not there; invented: there and not expected, or once more than once."""

    found: int
    missed: list[Visit]
    invented: list[Visit]


def compare(path: Path, bootstrap: str) -> Compared:
    """The topic of walk-ins beside a truth, which only tells of its own crowd's devices."""
    name, expected = _read(path)
    check_topics([WALK_INS], bootstrap)
    there: Counter[Visit] = Counter()
    for _, value in read_topic(WALK_INS, bootstrap):
        if value and (row := _walk_in(value)) and row.device.startswith(name):
            there[row] += 1
    found = there & Counter(expected)
    return Compared(
        found.total(), sorted((Counter(expected) - there).elements()), sorted((there - Counter(expected)).elements())
    )


def _walk_in(value: bytes) -> Visit | None:
    try:
        row = orjson.loads(value)
        return Visit(str(row["device"]), str(row["business"]), int(row["since"]), int(row["timestamp"]))
    except (ValueError, KeyError, TypeError):
        return None


def _read(path: Path) -> tuple[str, list[Visit]]:
    try:
        first, *rows = map(orjson.loads, path.read_bytes().splitlines())
        return str(first["crowd"]), [Visit(**row) for row in rows]
    except OSError as e:
        raise PenstockError("the truth cannot be read", got=f"{path}: {e.strerror}", hint="name its file") from e
    except (ValueError, KeyError, TypeError) as e:
        hint = "name one that `python -m jobs.presence.simulator` has written"
        raise PenstockError("this is no truth of a crowd", got=path, hint=hint) from e
