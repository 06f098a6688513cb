"""Operators that supervise streams. Their decisions are in penstock.supervision.

What needs a database, a broker or Spark is imported when an operator runs, because DAG files import this module.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from penstock.airflow.assets import DeclaresLineage
from penstock.airflow.connections import resolve_in_airflow

if TYPE_CHECKING:
    from airflow.sdk import Context

    from penstock.catalog import BrokenFile
    from penstock.control import Actor, Control
    from penstock.supervision.cluster_drivers import ClusterSubmission
    from penstock.supervision.supervisor import Supervisor

# Seconds until invalid files are read again.
BROKEN_EPOCH = 60.0
# Seconds in which Airflow must return the state of a task that got SIGTERM; five seconds later the process is killed.
STATE_TIMEOUT = 1.5

resolve_in_airflow()


def task_key(context: Context) -> str:
    """The key of a try of a task instance, as the owner of a driver."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.try_number}"


def request_of(context: Context, cleared: int | None = None) -> str:
    """The id of the request of a DAG run, the same in all tries until the run is cleared; a cleared run asks anew.
    cleared: how often it was cleared; by default as often as by now."""
    ti, number = context["ti"], context["dag_run"].clear_number if cleared is None else cleared
    key = f"{ti.dag_id}/{ti.run_id}" + (f"/{number}" if number else "")
    return hashlib.sha256(key.encode()).hexdigest()[:32]


class SuperviseStreams(DeclaresLineage):
    """Keeps one driver of an app while the desired state of any of its streams is on, and that of its open replacement,
    outside of the task's process.

    A run starts or adopts the driver, then waits in a trigger until there is something to do, does it and ends; the
    next run of the @continuous DAG adopts the driver. A run also ends after each epoch, so that its history is bounded.
    A run fails when a stream starts to fail, is blocked or waits for its store, and at the end of an epoch if a stream
    still does; the driver continues.

    conn_id: Spark connection; without it the master of the settings is used.
    """

    ui_color = "#d7e8f0"

    def __init__(self, *, app: str, conn_id: str = "spark_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.app, self.conn_id = app, conn_id
        self._owner = ""

    def execute(self, context: Context) -> None:
        from penstock.airflow.lineage import pass_parent_run
        from penstock.control import connect
        from penstock.errors import ControlError
        from penstock.monitoring.health import failing_for_long
        from penstock.settings import settings
        from penstock.supervision.decision.watch import supervised_apps

        self._owner = task_key(context)
        pass_parent_run(context)
        wrong: list[BrokenFile] = []
        undeclared: list[str] = []
        unhealthy: list[str] = []
        try:
            wrong = self._declare()
            undeclared = connect().undeclared(self.app)
            if undeclared:
                self.log.warning("app %s: not declared any more, so stopped: %s", self.app, ", ".join(undeclared))
            for mistake in wrong:
                self.log.error(
                    "app %s: its driver continues with the declarations that it has read: %s", self.app, mistake
                )
            for app in supervised_apps(connect(), self.app):
                self.log.info("app %s: %s", app, self._supervisor(app).tick().why)
            unhealthy = sorted(failing_for_long(connect(), self.app))
        except ControlError as e:
            self.log.warning("app %s: the control database does not answer, so nothing is done: %s", self.app, e)
        # The file may be back soon.
        self._wait(time.time() + (BROKEN_EPOCH if wrong or undeclared else settings().supervise_epoch), unhealthy)

    def resume(self, context: Context, event: dict[str, Any]) -> None:
        """Do what the trigger reported, and end the run."""
        from penstock.airflow.lineage import pass_parent_run
        from penstock.errors import ControlError
        from penstock.supervision.decision.facts import Evidence

        self._owner = task_key(context)
        pass_parent_run(context)
        # A trigger of an earlier version knows no other app.
        app = event.get("app", self.app)
        self.log.info("app %s: %s: %s", app, event["action"], event["why"])
        if event["action"] == "unhealthy":
            raise AirflowFailException(event["why"])
        try:
            if event["action"] == "epoch":
                self._still_failing()
                return
            if event["action"] == "request_release":
                # A stream that was undeclared meanwhile needs no release.
                self._declare()
            step = self._supervisor(app).tick(Evidence(**event["evidence"]))
            self.log.info("app %s: %s", app, step.why)
        except ControlError as e:
            self.log.warning("app %s: the next run repeats it: %s", self.app, e)

    def on_kill(self) -> None:
        """End the driver if a person marked or cleared the task while it ran in a worker.

        Airflow also sends SIGTERM when its api-server is down or the worker is shut down: the driver then continues.
        """
        from penstock.control import connect
        from penstock.supervision.reaper import stop

        if not self._owner:
            return
        if why_not := self._why_task_continues():
            self.log.info("app %s: its driver continues: %s", self.app, why_not)
            return
        stop(connect(), self.app, self._owner, "its task was marked or cleared in Airflow", timeout=3)

    def _why_task_continues(self) -> str:
        """Why the task must be assumed to continue; empty if it does not."""
        from penstock.airflow.triggers import why_task_continues

        answers: list[str] = []
        # This is a signal handler: the interrupted code may use the connection to Airflow.
        thread = Thread(target=lambda: answers.append(why_task_continues(self._owner, "running")), daemon=True)
        thread.start()
        thread.join(STATE_TIMEOUT)
        return answers[0] if answers else f"Airflow has not returned the state of its task within {STATE_TIMEOUT:g} s"

    def _wait(self, until: float, unhealthy: list[str]) -> None:
        from penstock.airflow.triggers import StreamsTrigger

        self.defer(trigger=StreamsTrigger(self.app, self._owner, until, unhealthy), method_name="resume")

    def _still_failing(self) -> None:
        """AirflowFailException if streams fail or wait; not while files are invalid, as epochs are short then."""
        from penstock.catalog import mistakes_of_app, partial_catalog
        from penstock.control import connect
        from penstock.monitoring.health import failing_for_long

        faults = failing_for_long(connect(), self.app)
        if faults and not mistakes_of_app(self.app, *partial_catalog()):
            raise AirflowFailException("; ".join(f"stream {name}: {why}" for name, why in sorted(faults.items())))

    def _supervisor(self, app: str) -> Supervisor:
        from penstock.control import connect
        from penstock.supervision.supervisor import Supervisor

        return Supervisor(connect(), app, self._owner, partial(self._command, app))

    def _declare(self) -> list[BrokenFile]:
        """Add a new app or stream to the control database; returns the errors of the app's files."""
        from penstock.catalog import mistakes_of_app, partial_catalog
        from penstock.control import connect

        catalog, wrong = partial_catalog()
        declared, control = {s.name for s in catalog.apps.get(self.app, ())}, connect()
        is_same = control.app(self.app) and control.desired(self.app).keys() == declared
        if not is_same or control.undeclared(self.app):
            control.sync(catalog, forget=not wrong)
        return mistakes_of_app(self.app, catalog, wrong)

    def _command(self, app: str, incarnation: str) -> Sequence[str] | ClusterSubmission:
        """The command line of a driver, or what a cluster must start; for streams by the Spark connection."""
        from penstock.airflow.spark_submit import spark_submit
        from penstock.supervision import launch

        return launch.python_command(app, incarnation) or spark_submit(self.conn_id, app, incarnation)


class SendHeartbeats(BaseOperator):
    """Reads the declarations, and lets a trigger send the heartbeats of all windowed topics."""

    ui_color = "#f0d7de"

    def execute(self, context: Context) -> None:  # noqa: ARG002
        from penstock.airflow.triggers import HeartbeatTrigger
        from penstock.settings import settings
        from penstock.supervision.declared import declared_windows, stored_windows

        windows = declared_windows()
        # Without a file, the declarations have never been read.
        epoch = settings().supervise_epoch if windows or stored_windows().exists() else BROKEN_EPOCH
        self.defer(trigger=HeartbeatTrigger(windows, time.time() + epoch), method_name="resume")

    def resume(self, context: Context, event: dict[str, Any]) -> None:
        """The epoch is over; the next run continues."""


class EndOrphanedDrivers(BaseOperator):
    """Ends drivers without an owner, and marks dead drivers as ended."""

    ui_color = "#e2e0d5"

    def execute(self, context: Context) -> list[str]:
        from penstock.control import Actor, connect
        from penstock.errors import ControlError
        from penstock.supervision.declared import declared_apps
        from penstock.supervision.reaper import reap

        try:
            control = connect()
            # Reading what is declared costs a process.
            if not control.drivers():
                return []
            ended = list(reap(control, declared_apps(control), Actor(task_key(context), "supervisor")))
        except ControlError as e:
            raise AirflowSkipException(f"the control database does not answer, so nothing is ended: {e}") from e
        for line in ended:
            self.log.warning("%s", line)
        return ended


@dataclass(frozen=True)
class StreamsForm:
    """What the form of a run asks for.

    Attributes:
        app: The app of the target.
        streams: The streams of the target.
        actor: The user who triggered the run.
        note: The note with the id of the run.
        request: Id of the request; see `request_of`.
    """

    app: str
    streams: Sequence[str]
    actor: Actor
    note: str
    request: str


def read_form(control: Control, context: Context) -> StreamsForm:
    """Read params target (`app NAME` or `stream NAME`) and note, and declare what is new.

    Raises:
        DeclarationError: There is no such app or stream.
    """
    from penstock.catalog import partial_catalog
    from penstock.control import Actor
    from penstock.errors import DeclarationError

    params, run = context["params"], context["dag_run"]
    kind, _, name = str(params["target"]).partition(" ")
    catalog, wrong = partial_catalog()
    control.sync(catalog, forget=not wrong)
    # By the control database: streams of invalid files can be stopped too.
    app = name if kind == "app" else control.app_of(name)
    streams = list(control.desired(app)) if kind == "app" else [name]
    if not app or not streams:
        raise DeclarationError(f"no such {kind}", got=name, hint="see `penstock streams list`")
    note = f"{params['note'] or ''} (run {run.run_id})".strip()
    actor = Actor(run.triggering_user_name or "unknown", "airflow")
    return StreamsForm(app, streams, actor, note, request_of(context))


class OperateStreams(BaseOperator):
    """Starts or stops what the form of the run names, in the name of the user who triggered it.

    Params: action (start or stop); target (`app NAME` or `stream NAME`); note.
    """

    ui_color = "#dcefd9"

    def execute(self, context: Context) -> str:
        from penstock.control import connect

        action = str(context["params"]["action"])
        if action not in ("start", "stop"):
            hint = "start or stop; to release, trigger the DAG release_streams"
            raise AirflowFailException(f"operate_streams has no such action; got: {action}; hint: {hint}")
        control = connect()
        form = read_form(control, context)
        control.set_desired(form.streams, "on" if action == "start" else "off", form.actor, form.note, form.request)
        result = f"{action} {', '.join(form.streams)}"
        self.log.info("%s, requested by %s", result, form.actor.name)
        return result


class ReleaseStreams(BaseOperator):
    """Releases the app of what the form of the run names, in the name of the user who triggered it.

    Params: target (`app NAME` or `stream NAME`); to (number or digest of an earlier release; empty: the code on the
    disk); note.
    """

    ui_color = "#dcefd9"

    def execute(self, context: Context) -> str:
        from penstock.control import connect
        from penstock.errors import ReleaseRefused
        from penstock.supervision.release import release

        control = connect()
        form = read_form(control, context)
        if control.recorded(form.request):
            # Airflow repeats a task whose end it has not received; a second release would be a second restart.
            result = "an earlier try of this run has done this"
            self.log.info(result)
            return result
        to = str(context["params"]["to"] or "").strip()
        try:
            number = release(control, form.app, form.actor, form.note, request=form.request, to=to)
        except ReleaseRefused as e:
            raise AirflowFailException(str(e)) from e
        result = f"release {number} of app {form.app}"
        self.log.info("%s, requested by %s", result, form.actor.name)
        return result
