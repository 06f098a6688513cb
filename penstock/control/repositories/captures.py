"""What captures say of themselves in the control database, and what is asked of them."""

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
from penstock.control.rows import Actor

PHASES = ("waiting", "snapshot", "polling", "reconciling", "refused")
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
        drift: What the last reconcile found.
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


# Written by whoever asks, and by nobody's report.
_OF_REQUESTS = ("requested", "request_id", "answered_request_id", "answer")


class Captures:
    """The captures' part of the control database."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._requests: dict[str, tuple[CaptureRequest, str]] = {}
        self._read_at = -1.0

    def rows(self) -> dict[str, CaptureRow]:
        with self._control.begin() as c:
            return {row.name: row for row in rows(CaptureRow, c.execute(select(s.capture)).mappings())}

    def requests(self) -> dict[str, tuple[CaptureRequest, str]]:
        """What is asked and not answered, with its id, by capture. At most half a second old."""
        if time.monotonic() - self._read_at > 0.5:
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
        """Upsert what a capture says of itself."""
        values = {k: v for k, v in asdict(row).items() if k not in ("name", *_OF_REQUESTS)}
        self._set(row.name, **values | {"reported_at": s.now_ms()})

    def ask(self, name: str, what: CaptureRequest, actor: Actor, detail: str = "", request: str = "") -> str:
        """Ask something of a capture; returns the id under which the answer will come. What was asked before falls.

        request: that id; what was asked under it is not asked again.
        """
        wanted = request or uuid.uuid4().hex
        with self._control.begin() as c:
            if not is_recorded(c, wanted):
                upsert(c, s.capture, name, requested=what, request_id=wanted)
                record_action(c, actor, what, name, detail, wanted)
        return wanted

    def answer(self, name: str, request: str, why_not: str = "") -> None:
        """Say that a request was done, or why it cannot be."""
        self._set(name, answered_request_id=request, answer=why_not)
        self._requests.pop(name, None)

    def _set(self, name: str, **values: Any) -> None:
        with self._control.begin() as c:
            upsert(c, s.capture, name, **values)
