"""Does what is due for an app: launches, adopts and clears its driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.control import Actor, Control, DriverRow, EndCode
from penstock.errors import ControlError, PenstockError, ReleaseRefused
from penstock.host import session
from penstock.settings import settings
from penstock.supervision import backends, launch, released_code
from penstock.supervision.cluster_drivers import ClusterSubmission
from penstock.supervision.decision.decide import Decision, decide
from penstock.supervision.decision.facts import Evidence, Facts, facts_of
from penstock.supervision.reaper import clear
from penstock.supervision.release import release

log = logging.getLogger(__name__)


class Supervisor:
    """Acts for one app on behalf of an owner.

    owner: who answers for the driver, e.g. a task instance. command: what runs a given incarnation: a command line, or
    what a cluster is to start.
    """

    def __init__(
        self, control: Control, app: str, owner: str, command: Callable[[str], Sequence[str] | ClusterSubmission]
    ) -> None:
        self.control, self.app, self.owner, self.command = control, app, owner, command
        self.actor = Actor(owner, "supervisor")

    def tick(self, evidence: Evidence | None = None) -> Decision:
        """Do what is due, then say what is left: `rest`, or `wait` until the next launch. ControlError as always."""
        for _ in range(6):  # clear a standby and a driver, launch, adopt, and twice more for those who were faster
            facts = facts_of(self.control, self.app, evidence)
            if facts is None:
                return Decision("rest", "the control database does not know this app")
            step = decide(facts, settings())
            match step.action:
                case "clear" if facts.driver:
                    code: EndCode = "asked" if facts.leaving else "lost"
                    if not clear(self.control, facts.driver, step.why, self.actor, code):
                        return Decision("wait", "processes of the last driver do not end", 1.0)
                case "clear_standby" if facts.standby:
                    given_up = self.control.give_up_standby(self.app, facts.standby.incarnation)
                    if given_up and not clear(self.control, facts.standby, step.why, self.actor, "not begun"):
                        return Decision("wait", "processes of the standby do not end", 1.0)
                case "launch" | "launch_standby":
                    self._launch(facts, step.why, as_standby=step.action == "launch_standby")
                case "request_release":
                    return self._release(step.why)
                case "record_wait_reason" if facts.driver:
                    self.control.report_driver_wait(facts.driver.incarnation, facts.wait_reason)
                    self._adopt(facts)
                    return Decision("rest", step.why)
                case _:
                    self._adopt(facts)
                    if step.action == "wait":
                        # Once of each driver that ended.
                        self.control.record(self.actor, "wait", self.app, step.why, facts.recent[0].incarnation)
                    return step
        return Decision("wait", "others are at work on this app", 1.0)

    def _release(self, why: str) -> Decision:
        try:
            release(self.control, self.app, self.actor, why)
        except ReleaseRefused as e:
            self.control.release_refused(self.app, self.actor, f"{why}: {e}")
            return Decision("rest", str(e))
        return Decision("rest", f"released: {why}")

    def _adopt(self, f: Facts) -> None:
        for d in (f.driver, f.standby):
            if d and d.state != "ended" and d.owner != self.owner:
                self.control.update_driver(d.incarnation, owner=self.owner)
                self.control.record(self.actor, "adopt", self.app, f"driver {d.incarnation[:8]}, {d.label}")

    def _launch(self, f: Facts, why: str, *, as_standby: bool) -> None:
        path = launch.new_log(self.app)
        columns = {"host": session.host(), "owner": self.owner, "log": str(path)}
        if as_standby:
            incarnation = self.control.claim_standby(f.app, **columns)
        else:
            incarnation = self.control.claim(self.app, f.app.incarnation, **columns)
        if incarnation is None:
            return
        try:
            row = self._started(incarnation, path)
        except PenstockError as e:
            self._failed(incarnation, e)
            return
        except Exception as e:  # a command that cannot even be built: it must end up in the record, not in a loop
            self._failed(incarnation, e)
            raise
        try:
            where = ("submission",) if row.submission else ("pid", "pid_started")
            self.control.update_driver(incarnation, **{name: getattr(row, name) for name in where})
            kind = "standby" if as_standby else "driver"
            self.control.record(self.actor, "launch", self.app, f"{kind} {incarnation[:8]}, {row.label}; {why}")
        except ControlError:
            # The row does not name its process. It is ended later, as one whose launcher died.
            backends.kill(row)
            raise
        log.info("app %s: launched driver %s, %s, log %s (%s)", self.app, incarnation[:8], row.label, path, why)

    def _started(self, incarnation: str, log: Path) -> DriverRow:
        """Start a driver; a row that says no more than where it is."""
        claimed = self.control.driver(incarnation)
        assert claimed
        project = released_code.code_for(self.control, claimed, self.actor)
        what = self.command(incarnation)
        if isinstance(what, ClusterSubmission):
            # A submission to a cluster takes longer: meanwhile the launcher must not count as dead.
            self.control.update_driver(incarnation, master=what.master)
            return replace(self._row(incarnation), master=what.master, submission=what.submit(log, project))
        env = launch.environment(project) | launch.connection_variables(self.app, project)
        pid, started = launch.start(what, log=log, env=env)
        return replace(self._row(incarnation), pid=pid, pid_started=started)

    def _failed(self, incarnation: str, e: Exception) -> None:
        why = f"it could not be launched: {e}"
        log.error("app %s: driver %s: %s", self.app, incarnation[:8], why)
        self.control.end_driver(incarnation, why, "not begun")
        self.control.record(self.actor, "end", self.app, f"driver {incarnation[:8]}: {why}")

    def _row(self, incarnation: str) -> DriverRow:
        return DriverRow(
            incarnation=incarnation, app=self.app, host=session.host(), pid=None, pid_started=None, release_seq=0,
            spec_hash="", owner=self.owner, state="launching", launched_at=0, alive_at=0, ended_at=None, reason=None,
            log="",
        )  # fmt: skip
