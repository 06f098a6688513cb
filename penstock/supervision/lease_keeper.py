"""The leases of a driver: taken when it begins, renewed while it lives, dropped when it leaves."""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.control import Control, Lease
from penstock.errors import ControlError
from penstock.settings import settings
from penstock.supervision import backends


class LeaseHolder:
    """Holds the leases of the named streams or captures for one incarnation."""

    def __init__(self, control: Control, names: Sequence[str], incarnation: str) -> None:
        self._control, self._names, self._incarnation = control, names, incarnation
        self._renewed_at = time.monotonic()

    def take(self) -> None:
        """Take them all: one whose holder is dead for certain at once, a hung holder is killed first. Or LeaseHeld."""
        leases = self._control.leases()
        dead: list[str] = []
        for holder in {leases[n].holder for n in self._names if n in leases} - {self._incarnation}:
            row = self._control.driver(holder)
            if row is None:
                continue
            if backends.alive(row) is False:
                dead.append(holder)
            elif self._expired(holder, leases) and backends.kill(row):
                # It missed its lease, so it was hung or paused: it must not resume while this driver runs.
                dead.append(holder)
        for holder in dead:
            self._control.end_driver(holder, f"gone; its leases went to {self._incarnation}", "lost")
        for name in self._names:
            self._control.take_lease(name, self._incarnation, settings().lease_ttl, dead=dead)

    def _expired(self, holder: str, leases: dict[str, Lease]) -> bool:
        now = self._control.now()
        return all(lease.expires_at < now for lease in leases.values() if lease.holder == holder)

    def renew(self) -> None:
        """LeaseLost if another driver has one of them, ControlError while the control database is down."""
        self._control.renew_leases(self._names, self._incarnation, settings().lease_ttl)
        self._renewed_at = time.monotonic()

    def owns(self, name: str) -> bool:
        """Whether a stream may be started: its writer fences every other, also that of a successor.

        LeaseLost if another driver has its lease.
        """
        try:
            self._control.renew_leases([name], self._incarnation, settings().lease_ttl)
        except ControlError:
            return time.monotonic() - self._renewed_at < settings().lease_ttl
        return True

    def drop(self) -> None:
        self._control.drop_leases(self._names, self._incarnation)
