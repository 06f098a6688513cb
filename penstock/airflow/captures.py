"""The operator of a capture: a check of its health, or a request to it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from penstock.airflow.assets import DeclaresLineage
from penstock.airflow.operators import request_of

if TYPE_CHECKING:
    from airflow.sdk import Context

# Seconds that a capture may take to start before a run fails.
STARTING = 180.0
# Seconds between two checks of a capture by a run that waits for its answer.
CHECK_EVERY = 3600.0


class OperateCapture(DeclaresLineage):
    """Sends the request of the form to a capture, waits for the answer, and fails if the capture fails.

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
        """The report of the capture. While its state is unknown, a trigger waits, until `until` (epoch seconds) at
        most; then `resume` continues."""
        from penstock.airflow.triggers import CaptureStateTrigger
        from penstock.control import connect
        from penstock.errors import ControlError
        from penstock.monitoring.health import state_is_known

        with suppress(ControlError):
            if time.time() < until and not state_is_known(connect(), self.capture):
                self.log.info("capture %s: waiting for its state", self.capture)
                trigger = CaptureStateTrigger(self.capture, until)
                self.defer(trigger=trigger, method_name="resume", kwargs={"until": until})
        return self._report_health()

    def _ask(self, context: Context) -> None:
        """Send the request, and wait in a trigger; the answer goes to `resume`."""
        from penstock.control import Actor, connect
        from penstock.control.repositories.captures import Captures

        params, run = context["params"], context["dag_run"]
        actor = Actor(run.triggering_user_name or "unknown", "airflow")
        note = f"{params['note'] or ''} (run {run.run_id})".strip()
        # Airflow repeats a task whose end it has not received: that try waits for the answer to the first one.
        request = request_of(context)
        Captures(connect()).ask(self.capture, params["action"], actor, note, request)
        self.log.info("capture %s: %s, requested by %s", self.capture, params["action"], actor.name)
        self._await_answer(request)

    def _await_answer(self, request: str) -> NoReturn:
        from penstock.airflow.triggers import CaptureTrigger

        until = time.time() + CHECK_EVERY
        self.defer(trigger=CaptureTrigger(self.capture, request, until), method_name="resume")

    def resume(self, context: Context, event: dict[str, Any], until: float | None = None) -> dict[str, Any]:  # noqa: ARG002
        """The capture has answered, or not for CHECK_EVERY seconds, or its state is known; a release since may have
        replaced its driver."""
        if event["why_not"]:
            raise AirflowFailException(f"capture {self.capture}: {event['why_not']}")
        if request := event.get("unanswered"):
            # No run of the schedule checks the capture meanwhile.
            self._report_health()
            self._await_answer(request)
        return self._wait_until_known(time.time() + STARTING if until is None else until)

    def _report_health(self) -> dict[str, Any]:
        """The report of the capture, for the XCom of the run; AirflowFailException if it fails."""
        from penstock.control import connect
        from penstock.errors import ControlError
        from penstock.monitoring.dashboard.captures import health

        try:
            capture_health = health(connect(), self.capture)
        except ControlError as e:
            raise AirflowSkipException(f"the control database does not answer: {e}") from e
        for warning in capture_health.warnings:
            self.log.warning("capture %s: %s", self.capture, warning)
        if capture_health.fault:
            raise AirflowFailException(f"capture {self.capture}: {capture_health.fault}")
        return capture_health.figures
