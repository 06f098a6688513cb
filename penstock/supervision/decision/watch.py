"""Looks at an app again and again; what a trigger does every second. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from penstock.control import Control
from penstock.errors import ControlError
from penstock.model.declaration import replacement_app
from penstock.settings import settings
from penstock.supervision.decision.decide import Decision, decide
from penstock.supervision.decision.facts import Evidence, Facts, facts_of

# Two looks further apart than this (and than three of its own steps) say that the watcher itself was stopped.
GAP = 5.0


class AppWatch:
    """Looks at one app again and again, collects the evidence, and changes nothing.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, control: Control, app: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.control, self.app, self.clock = control, app, clock
        self.evidence = Evidence()
        self._last_look: float | None = None
        self._silent_since = self._leaving_since = self._lacking_since = 0.0

    def look(self) -> Decision:
        """The next decision. ControlError while the database is down, because then nothing is known."""
        try:
            # Whoever looks must look again soon, or what it saw before counts for nothing.
            facts = facts_of(self.control, self.app, wait=False)
        except ControlError:
            self._last_look = None
            raise
        now = self.clock()
        if facts is None:
            return Decision("rest", "the control database does not know this app")
        self._note(facts, now)
        self._last_look = now
        return decide(replace(facts, evidence=self.evidence), settings())

    def _note(self, f: Facts, now: float) -> None:
        d, old = f.driver, self.evidence
        incarnation = d.incarnation if d else None
        blind = self._last_look is None or now - self._last_look > max(GAP, 3 * settings().supervise_every)
        if blind or old.incarnation != incarnation or (d and old.alive_at != d.alive_at):
            self._silent_since = now
        # A driver cannot exit in order while the database is down, so its time to do so starts again.
        if blind or old.incarnation != incarnation or not f.leaving:
            self._leaving_since = now
        if blind or old.incarnation != incarnation or not f.unknown_streams:
            self._lacking_since = now
        self.evidence = Evidence(
            incarnation,
            d.alive_at if d else 0,
            now - self._silent_since,
            now - self._leaving_since,
            now - self._lacking_since,
        )


class WatchedStep(NamedTuple):
    """What is due for an app, and what its watcher has observed."""

    app: str
    decision: Decision
    evidence: Evidence

    @property
    def is_due(self) -> bool:
        """Whether the supervisor has to act now."""
        return self.decision.action not in ("rest", "wait")


class DriversWatch:
    """Looks at the drivers that are supervised with an app: its own, and that of its open replacement.

    Args:
        app: The app.
    """

    def __init__(self, control: Control, app: str) -> None:
        self._control, self._app = control, app
        self._watches: dict[str, AppWatch] = {}

    def look(self) -> WatchedStep:
        """The first step that is due; if none is, that of the app. ControlError while the database is down."""
        steps: list[WatchedStep] = []
        with self._control.read_together():
            for app in supervised_apps(self._control, self._app):
                watch = self._watches.setdefault(app, AppWatch(self._control, app))
                steps.append(WatchedStep(app, watch.look(), watch.evidence))
        return next((step for step in steps if step.is_due), steps[0])


def supervised_apps(control: Control, app: str) -> list[str]:
    """An app, and that of its open replacement, whose drivers are supervised together."""
    replacement = control.open_replacement(app)
    return [app, *([replacement_app(replacement.name)] if replacement else [])]
