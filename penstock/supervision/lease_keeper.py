"""The leases of a driver: taken when it begins, renewed while it lives, dropped when it leaves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from penstock.control import Control, Lease
from penstock.errors import ControlError, LeaseHeld
from penstock.settings import settings
from penstock.supervision import backends

log = logging.getLogger("penstock.driver")


class LeaseHolder:
    """Holds the leases of the named streams or captures for one incarnation."""

    def __init__(self, control: Control, names: Sequence[str], incarnation: str) -> None:
        self._control, self._names, self._incarnation = control, names, incarnation
        self._renewed_at = time.monotonic()
        self._held: set[str] = set()
        self._lock = threading.Lock()
        """Guards `_held`: what is given up must not be renewed by the keeper, which would find it lost."""
        self._waits: set[str] = set()

    def take(self) -> None:
        """Take them all: one whose holder is dead for certain at once, a hung holder is killed first. Or LeaseHeld.

        What a command runs in the foreground is left out: see `owns`.
        """
        self._take(self._names)

    def _take(self, names: Sequence[str]) -> None:
        leases = self._control.leases()
        dead: list[str] = []
        for holder in {leases[n].holder for n in names if n in leases} - {self._incarnation}:
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
        for name in names:
            try:
                self._control.take_lease(name, self._incarnation, settings().lease_ttl, dead=dead)
            except LeaseHeld as e:
                if self._control.driver(e.holder) is not None:
                    raise
                if name not in self._waits:
                    log.warning("%s is not started while a command runs it: %s", name, e.got)
                self._waits.add(name)
                continue
            self._waits.discard(name)
            with self._lock:
                self._held.add(name)

    def _expired(self, holder: str, leases: dict[str, Lease]) -> bool:
        now = self._control.now()
        return all(lease.expires_at < now for lease in leases.values() if lease.holder == holder)

    def renew(self) -> None:
        """LeaseLost if another driver has one of them, ControlError while the control database is down."""
        with self._lock:
            self._control.renew_leases(sorted(self._held), self._incarnation, settings().lease_ttl)
        self._renewed_at = time.monotonic()

    def owns(self, name: str) -> bool:
        """Whether a stream may be started: its writer fences every other, also that of a successor.

        A lease that was given up, or that a command had, is taken first, if it is free. LeaseLost or LeaseHeld if
        another driver has it.
        """
        try:
            if name not in self._held:
                self._take([name])
                return name in self._held
            self._control.renew_leases([name], self._incarnation, settings().lease_ttl)
        except ControlError:
            return name in self._held and time.monotonic() - self._renewed_at < settings().lease_ttl
        return True

    def give_up(self, name: str) -> None:
        """Drop the lease of what is stopped, so that a command may run it. ControlError: it runs out."""
        if name in self._held:
            with self._lock:
                self._held.discard(name)
            self._control.drop_leases([name], self._incarnation)

    def drop(self) -> None:
        self._control.drop_leases(self._names, self._incarnation)
