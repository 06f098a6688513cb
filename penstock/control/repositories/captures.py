"""States of captures, and requests of operators to captures."""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import select

from penstock.control import tables as s
from penstock.control.client import Control
from penstock.control.database import rows, upsert
from penstock.control.repositories.actions import is_recorded, record_action
from penstock.control.repositories.partitions import add_reconciles
from penstock.control.rows import Actor

PHASES = ("waiting", "snapshot", "polling", "reconciling", "refused")
DRIFT_KINDS = ("missing", "differing", "extra")
CaptureRequest = Literal["poll", "snapshot", "reconcile", "continue"]


@dataclass
class CaptureRow:
    """The state of a capture. Times are epoch ms by the captured database's clock.

    Attributes:
        phase: One of PHASES.
        why: What the capture waits for, or why it was refused.
        low: The cursor value that the next poll reads from, as text.
        oldest_at: When the oldest open transaction began.
        skipped_until: Polls do not wait for transactions that began before this time.
        reconcile: Why table and topic are being compared; empty if they are not.
        drift: What the last reconcile found, and `earlier`: the same of earlier ones that repaired records.
        dead_letter_rows: `rows`, the number of rows that have no record in the topic, and `first`, the key of one.
        requested: The last request; see `Captures.ask`.
        request_id: The id of that request.
        answered_request_id: The id of the last request that was answered.
        answer: Empty if it was done, else why it was not.
    """

    name: str
    reported_at: int = 0
    phase: str = ""
    why: str | None = None
    fingerprint: str = ""
    low: str | None = None
    polls: int = 0
    snapshot_rows: int = 0
    snapshot_total: int = 0
    oldest_at: int | None = None
    skipped_until: int | None = None
    reconcile: str | None = None
    drift: dict[str, Any] | None = None
    dead_letter_rows: dict[str, Any] | None = None
    requested: CaptureRequest | None = None
    request_id: str | None = None
    answered_request_id: str | None = None
    answer: str | None = None

    @property
    def repairs(self) -> dict[float, dict[str, int]]:
        """What the last reconciles have changed in the topic, by the time of their ends, epoch seconds."""
        drifts = [*self.drift.get("earlier", ()), self.drift] if self.drift else []
        found = {float(drift["ended"]): {kind: drift[kind] for kind in DRIFT_KINDS} for drift in drifts}
        return {ended: changes for ended, changes in found.items() if any(changes.values())}


# Columns that `report` does not write.
_REQUEST_COLUMNS = ("requested", "request_id", "answered_request_id", "answer")


class Captures:
    """The table of captures in the control database."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._requests: dict[str, tuple[CaptureRequest, str]] = {}
        self._read_at = -1.0
        self._recorded: dict[str, list[float]] = {}
        """When the reconciles ended whose events are recorded, by capture."""

    def rows(self) -> dict[str, CaptureRow]:
        with self._control.begin() as c:
            return {row.name: row for row in rows(CaptureRow, c.execute(select(s.capture)).mappings())}

    def requests(self, *, fresh: bool = False) -> dict[str, tuple[CaptureRequest, str]]:
        """Unanswered requests and their ids, by capture; cached for half a second unless `fresh`."""
        if fresh or time.monotonic() - self._read_at > 0.5:
            t = s.capture
            query = select(t.c.name, t.c.requested, t.c.request_id).where(
                t.c.request_id.is_not(None),
                t.c.answered_request_id.is_(None) | (t.c.answered_request_id != t.c.request_id),
            )
            with self._control.begin() as c:
                self._requests = {row.name: (row.requested, row.request_id) for row in c.execute(query)}
            self._read_at = time.monotonic()
        return self._requests

    def report(self, row: CaptureRow) -> None:
        """Upsert the state of a capture, without its request; each reconcile that changed its topic is an event."""
        values = {k: v for k, v in asdict(row).items() if k not in ("name", *_REQUEST_COLUMNS)}
        with self._control.begin() as c:
            upsert(c, s.capture, row.name, **values | {"reported_at": s.now_ms()})
            if (ended := [*row.repairs]) and ended != self._recorded.get(row.name):
                add_reconciles(c, row.name, ended)
        if ended:
            self._recorded[row.name] = ended

    def ask(self, name: str, what: CaptureRequest, actor: Actor, detail: str = "", request: str = "") -> str:
        """Send a request to a capture; it replaces an earlier one that is not answered.

        Args:
            name: The capture.
            what: The request.
            actor: Who asks.
            detail: Recorded with the action.
            request: Request id; a request that was made is not made again.

        Returns:
            The request id, which the answer will have.
        """
        request_id = request or uuid.uuid4().hex
        with self._control.begin() as c:
            if not is_recorded(c, request_id):
                upsert(c, s.capture, name, requested=what, request_id=request_id)
                record_action(c, actor, what, name, detail, request_id)
        return request_id

    def answer(self, name: str, request: str, why_not: str = "") -> None:
        """Answer a request: it was done, or why it cannot be."""
        self._set(name, answered_request_id=request, answer=why_not)
        self._requests.pop(name, None)

    def _set(self, name: str, **values: Any) -> None:
        with self._control.begin() as c:
            upsert(c, s.capture, name, **values)
