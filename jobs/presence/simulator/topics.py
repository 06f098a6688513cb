"""Sends the records of a crowd, and compares the output of the streams with what they must find."""

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
from penstock.testing.load import (
    RecordSender,
    SentCounts,
    check_topics,
    on_schedule,
    read_topic,
    read_truth,
    write_truth,
)

PROBES, CRM, BACKFILL, BUSINESSES, WALK_INS = "probes", "crm-events", "crm-events-backfill", "businesses", "walk-ins"
# How long a capture may take to write what was added to its table, in seconds.
CAPTURE_TIMEOUT = 60.0


class PlanSender:
    """Sends the records of a plan.

    Raises:
        BrokerError: A topic does not exist, or records were not accepted.
    """

    def __init__(self, plan: Plan, bootstrap: str, stop: Event) -> None:
        self.sent = SentCounts(until=plan.crowd.start)
        self._plan, self._stop = plan, stop
        check_topics([PROBES, CRM, BACKFILL], bootstrap)
        self._sender = RecordSender(bootstrap)

    def run(self, *, fast: bool, report: Callable[[SentCounts], None]) -> list[Visit]:
        """Send all steps, or those until `stop` is set; call `report` after each.

        Returns:
            The visits that the streams must find.
        """
        for step in on_schedule(self._plan.steps(), self.sent, self._stop, fast=fast):
            self._send(step)
            report(self.sent)
        if self._stop.is_set():
            self._send(self._plan.in_flight(self.sent.until))
        self._sender.close()
        return self._plan.visits_until(self.sent.until)

    def _send(self, step: Step) -> None:
        for key, value in step.probes:
            self._sender.send(PROBES, key, value)
        for event in step.crm_events:
            self._sender.send(BACKFILL if event.backfill else CRM, event.device, event.value)
        self._sender.poll()
        self.sent.records += len(step.probes)
        self.sent.others += len(step.crm_events)


def wait_for_businesses(businesses: Sequence[Business], bootstrap: str) -> None:
    """Wait until the captured topic has these businesses, because probes of others are ignored.

    Raises:
        BrokerError: The topic does not have them in time.
    """
    check_topics([BUSINESSES], bootstrap)
    deadline = time.monotonic() + CAPTURE_TIMEOUT
    while True:
        latest: dict[bytes, Any] = {}
        for key, value in read_topic(BUSINESSES, bootstrap):
            latest[key] = orjson.loads(value) if value else None
        thresholds = {str(row["id"]): row["threshold"] for row in latest.values() if row and "id" in row}
        missing = [b.id for b in businesses if thresholds.get(b.id) != b.threshold]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise BrokerError(
                f"topic {BUSINESSES} does not have the demo database's businesses",
                got=f"{', '.join(missing[:5])} missing or with another threshold after {CAPTURE_TIMEOUT:g} s",
                hint="check that the capture runs: `penstock capture state`",
            )
        time.sleep(0.5)


def write(path: Path, plan: Plan, visits: Iterable[Visit]) -> None:
    """Write the truth as JSON lines: first the crowd, then each visit."""
    crowd, rules = plan.crowd, plan.crowd.rules
    header = {
        "crowd": crowd.name, "seed": crowd.seed, "start": crowd.start, "devices": crowd.devices,
        "dwell": rules.dwell, "within": rules.within, "away": rules.away,
    }  # fmt: skip
    write_truth(path, b"".join(orjson.dumps(row) + b"\n" for row in [header, *(v._asdict() for v in visits)]))


@dataclass(frozen=True)
class Comparison:
    """The output of the streams compared with what they must find.

    Attributes:
        found: Number of visits that were found.
        missed: Visits that were not found.
        invented: Walk-ins that are no visit, or were emitted more than once.
    """

    found: int
    missed: list[Visit]
    invented: list[Visit]


def compare(path: Path, bootstrap: str) -> Comparison:
    """Compare the topic of walk-ins with the truth of a crowd. Devices of other crowds are ignored."""
    name, visits = _read(path)
    check_topics([WALK_INS], bootstrap)
    emitted: Counter[Visit] = Counter()
    for _, value in read_topic(WALK_INS, bootstrap):
        if value and (visit := _parse_visit(value)) and visit.device.startswith(name):
            emitted[visit] += 1
    expected = Counter(visits)
    return Comparison(
        found=(emitted & expected).total(),
        missed=sorted((expected - emitted).elements()),
        invented=sorted((emitted - expected).elements()),
    )


def _parse_visit(value: bytes) -> Visit | None:
    try:
        row = orjson.loads(value)
        return Visit(str(row["device"]), str(row["business"]), int(row["since"]), int(row["timestamp"]))
    except (ValueError, KeyError, TypeError):
        return None


def _read(path: Path) -> tuple[str, list[Visit]]:
    """Name and visits of a crowd, from its truth."""
    content = read_truth(path)
    try:
        header, *rows = map(orjson.loads, content.splitlines())
        return str(header["crowd"]), [Visit(**row) for row in rows]
    except (ValueError, KeyError, TypeError) as e:
        hint = "name a file that `python -m jobs.presence.simulator` has written"
        raise PenstockError("this is not the truth of a crowd", got=path, hint=hint) from e
