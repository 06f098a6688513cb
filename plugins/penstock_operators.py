"""Operators that supervise streams. They are thin: what they decide is in penstock.supervision.

Whatever reaches for a database, a broker or Spark is imported when it runs: DAG files import this module.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from penstock.catalog import BrokenFile
    from penstock.supervision.cluster_drivers import ClusterSubmission
    from penstock.supervision.supervisor import Supervisor

# Seconds after which files that could not be read are looked at again.
BROKEN_EPOCH = 60.0
# Seconds that a capture gets to begin, before a run fails because it does not work.
STARTING = 180.0
# Seconds in which Airflow must say how a task that got SIGTERM is; five after that, the process is killed.
STATE_TIMEOUT = 1.5


def task_key(context: Context) -> str:
    """Names a try of a task instance: who answers for a driver."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.try_number}"


def request_of(dag: str, run: str) -> str:
    """The id of what a run of a DAG asks for, the same in all its tries."""
    return hashlib.sha256(f"{dag}/{run}".encode()).hexdigest()[:32]


class SuperviseStreams(BaseOperator):
    """Keeps one driver of an app while any of its streams is wanted. The driver is never the task's own process.

    A run starts or adopts the driver, then waits in a trigger until something is to be done, does it and ends; the
    next run of the @continuous DAG adopts. It also ends after each epoch, so that no run's history grows for ever.
    A run fails when a stream begins to fail, is blocked or waits for its store, and at the end of an epoch if one still
    does; the driver goes on.

    conn_id: Spark connection; without it the master of the settings is used.
    """

    ui_color = "#d7e8f0"

    def __init__(self, *, app: str, conn_id: str = "spark_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.app, self.conn_id = app, conn_id
        self._owner = ""

    def execute(self, context: Context) -> None:
        from penstock.control import connect
        from penstock.errors import ControlError
        from penstock.monitoring.health import failing_for_long
        from penstock.settings import settings

        self._owner = task_key(context)
        wrong: list[BrokenFile] = []
        unhealthy: list[str] = []
        try:
            wrong = self._declare()
            for mistake in wrong:
                self.log.error("app %s: its driver goes on with what it has read before: %s", self.app, mistake)
            step = self._supervisor().tick()
            self.log.info("app %s: %s", self.app, step.why)
            unhealthy = sorted(failing_for_long(connect(), self.app))
        except ControlError as e:
            self.log.warning("app %s: nothing is known, so nothing is done: %s", self.app, e)
        self._wait(time.time() + (BROKEN_EPOCH if wrong else settings().supervise_epoch), unhealthy)

    def resume(self, context: Context, event: dict[str, Any]) -> None:
        """Do what the trigger saw due, and end the run."""
        from penstock.errors import ControlError
        from penstock.supervision.decision.facts import Evidence

        self._owner = task_key(context)
        self.log.info("app %s: %s: %s", self.app, event["action"], event["why"])
        if event["action"] == "unhealthy":
            raise AirflowFailException(event["why"])
        try:
            if event["action"] == "epoch":
                self._still_failing()
                return
            if event["action"] == "request_release":
                # What was undeclared meanwhile is not new.
                self._declare()
            step = self._supervisor().tick(Evidence(**event["evidence"]))
            self.log.info("app %s: %s", self.app, step.why)
        except ControlError as e:
            self.log.warning("app %s: left to the next run: %s", self.app, e)

    def on_kill(self) -> None:
        """End the driver if a person marked or cleared the task while it ran in a worker.

        Airflow also sends SIGTERM when its api-server is away or the worker is shut down: the driver then goes on.
        """
        from penstock.control import connect
        from penstock.supervision.reaper import stop

        if not self._owner:
            return
        if why_not := self._why_task_continues():
            self.log.info("app %s: its driver goes on: %s", self.app, why_not)
            return
        stop(connect(), self.app, self._owner, "its task was marked or cleared in Airflow", timeout=3)

    def _why_task_continues(self) -> str:
        """Why the task must be taken to go on; empty if it does not."""
        from penstock_triggers import why_task_continues

        answers: list[str] = []
        # This is a signal handler: what it interrupted may hold the connection to Airflow.
        thread = Thread(target=lambda: answers.append(why_task_continues(self._owner, "running")), daemon=True)
        thread.start()
        thread.join(STATE_TIMEOUT)
        return answers[0] if answers else f"Airflow has not said within {STATE_TIMEOUT:g} s whether its task was marked"

    def _wait(self, until: float, unhealthy: list[str]) -> None:
        from penstock_triggers import StreamsTrigger

        self.defer(trigger=StreamsTrigger(self.app, self._owner, until, unhealthy), method_name="resume")

    def _still_failing(self) -> None:
        """AirflowFailException if streams fail or wait; not while files cannot be read, as epochs are short then."""
        from penstock.catalog import mistakes_of_app, partial_catalog
        from penstock.control import connect
        from penstock.monitoring.health import failing_for_long

        faults = failing_for_long(connect(), self.app)
        if faults and not mistakes_of_app(self.app, *partial_catalog()):
            raise AirflowFailException("; ".join(f"stream {name}: {why}" for name, why in sorted(faults.items())))

    def _supervisor(self) -> Supervisor:
        from penstock.control import connect
        from penstock.supervision.supervisor import Supervisor

        return Supervisor(connect(), self.app, self._owner, self._command)

    def _declare(self) -> list[BrokenFile]:
        """Bring a new app or stream into the control database; what is wrong with the app's files."""
        from penstock.catalog import mistakes_of_app, partial_catalog
        from penstock.control import connect

        catalog, wrong = partial_catalog()
        declared = {s.name for s in catalog.apps.get(self.app, ())}
        if connect().app(self.app) is None or set(connect().desired(self.app)) != declared:
            connect().sync(catalog, forget=not wrong)
        return mistakes_of_app(self.app, catalog, wrong)

    def _command(self, incarnation: str) -> Sequence[str] | ClusterSubmission:
        """The command line of a driver, or what a cluster is to start: for streams from the Spark connection."""
        from penstock_spark_submit import spark_submit

        from penstock.supervision import launch

        return launch.python_command(self.app, incarnation) or spark_submit(self.conn_id, self.app, incarnation)


class SendHeartbeats(BaseOperator):
    """Keeps the heartbeats of all windowed topics: reads the declarations afresh, then a trigger sends the beats."""

    ui_color = "#f0d7de"

    def execute(self, context: Context) -> None:  # noqa: ARG002
        from penstock_triggers import HeartbeatTrigger, declared_windows

        from penstock.settings import settings

        until = time.time() + settings().supervise_epoch
        self.defer(trigger=HeartbeatTrigger(declared_windows(), until), method_name="resume")

    def resume(self, context: Context, event: dict[str, Any]) -> None:
        """The epoch is over; the next run goes on."""


class EndOrphanedDrivers(BaseOperator):
    """Ends drivers that nobody owns and marks the dead as ended."""

    ui_color = "#e2e0d5"

    def execute(self, context: Context) -> list[str]:
        from penstock.catalog import load_partial
        from penstock.control import Actor, connect
        from penstock.errors import ControlError
        from penstock.supervision.reaper import reap

        actor = Actor(task_key(context), "supervisor")
        catalog, wrong = load_partial(combiners=False)
        try:
            # What cannot be read may declare any of them.
            apps = {app.name for app in connect().apps()} if wrong else set()
            ended = list(reap(connect(), apps | catalog.apps.keys(), actor))
        except ControlError as e:
            raise AirflowSkipException(f"nothing is known, so nothing is ended: {e}") from e
        for line in ended:
            self.log.warning("%s", line)
        return ended


class OperateStreams(BaseOperator):
    """Starts, stops or releases what the run's form asks for, in the name of who triggered it.

    Params: action (start, stop or release); target (`app NAME` or `stream NAME`); note.
    """

    ui_color = "#dcefd9"

    def execute(self, context: Context) -> str:
        from penstock.catalog import partial_catalog
        from penstock.control import Actor, connect
        from penstock.errors import DeclarationError, ReleaseRefused
        from penstock.supervision.release import release

        params, run = context["params"], context["dag_run"]
        actor = Actor(run.triggering_user_name or "unknown", "airflow")
        kind, _, name = str(params["target"]).partition(" ")
        request = request_of(self.dag_id, run.run_id)
        note = f"{params['note'] or ''} (run {run.run_id})".strip()
        (catalog, wrong), control = partial_catalog(), connect()
        control.sync(catalog, forget=not wrong)
        # By the control database: what cannot be read now can be stopped all the same.
        app = name if kind == "app" else control.app_of(name)
        streams = list(control.desired(app)) if kind == "app" else [name]
        if not app or not streams:
            raise DeclarationError(f"no such {kind}", got=name, hint="see `penstock streams list`")
        if control.recorded(request):
            # Airflow runs a task again whose end it did not hear of; a second release would be a second restart.
            result = "an earlier try of this run has done it"
            self.log.info(result)
            return result
        if params["action"] == "release":
            try:
                result = f"release {release(control, app, actor, note, request=request)} of app {app}"
            except ReleaseRefused as e:
                raise AirflowFailException(str(e)) from e
        else:
            control.set_desired(streams, "on" if params["action"] == "start" else "off", actor, note, request)
            result = f"{params['action']} {', '.join(streams)}"
        self.log.info("%s, asked for by %s", result, actor.name)
        return result


class OperateCapture(BaseOperator):
    """Asks of a capture what the run's form says, waits for the answer, and fails if the capture fails.

    Params: action (check, poll, reconcile, snapshot or continue); note.
    """

    ui_color = "#efe3cf"

    def __init__(self, *, capture: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.capture = capture

    def execute(self, context: Context) -> dict[str, Any]:
        if context["params"]["action"] != "check":
            self._ask(context)
        return self._wait_until_known(time.time() + STARTING)

    def _wait_until_known(self, until: float) -> dict[str, Any]:
        """What the capture says of itself. While nothing can be said of it, it is waited for in a trigger, until a time
        in epoch seconds at most; then it goes on in `resume`."""
        from penstock_triggers import CaptureStateTrigger

        from penstock.control import connect
        from penstock.errors import ControlError
        from penstock.monitoring.health import state_is_known

        with suppress(ControlError):
            if time.time() < until and not state_is_known(connect(), self.capture):
                self.log.info("capture %s: it is waited for", self.capture)
                trigger = CaptureStateTrigger(self.capture, until)
                self.defer(trigger=trigger, method_name="resume", kwargs={"until": until})
        return self._report_health()

    def _ask(self, context: Context) -> None:
        """Ask, and wait in a trigger; the answer goes to `resume`."""
        from penstock_triggers import CaptureTrigger

        from penstock.control import Actor, connect
        from penstock.control.repositories.captures import Captures

        params, run = context["params"], context["dag_run"]
        actor = Actor(run.triggering_user_name or "unknown", "airflow")
        note = f"{params['note'] or ''} (run {run.run_id})".strip()
        # Airflow runs a task again whose end it did not hear of: that waits for the answer to the first try.
        request = request_of(self.dag_id, run.run_id)
        Captures(connect()).ask(self.capture, params["action"], actor, note, request)
        self.log.info("capture %s: %s, asked for by %s", self.capture, params["action"], actor.name)
        self.defer(trigger=CaptureTrigger(self.capture, request), method_name="resume")

    def resume(self, context: Context, event: dict[str, Any], until: float | None = None) -> dict[str, Any]:  # noqa: ARG002
        """The capture has answered, or something can be said of it; a release since may have taken its driver away."""
        if event["why_not"]:
            raise AirflowFailException(f"capture {self.capture}: {event['why_not']}")
        return self._wait_until_known(time.time() + STARTING if until is None else until)

    def _report_health(self) -> dict[str, Any]:
        """What the capture says of itself, for the run's XCom; AirflowFailException if it fails."""
        from penstock.control import connect
        from penstock.errors import ControlError
        from penstock.monitoring.dashboard.captures import health

        try:
            capture_health = health(connect(), self.capture)
        except ControlError as e:
            raise AirflowSkipException(f"nothing is known: {e}") from e
        for warning in capture_health.warnings:
            self.log.warning("capture %s: %s", self.capture, warning)
        if capture_health.fault:
            raise AirflowFailException(f"capture {self.capture}: {capture_health.fault}")
        return capture_health.figures
