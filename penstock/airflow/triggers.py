"""Triggers that watch apps and captures, and send heartbeats. They never start or stop a driver.

They run in Airflow's triggerer, which keeps the code it started with: restart it when this file changes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from penstock.airflow.connections import resolve_in_airflow

if TYPE_CHECKING:
    from penstock.catalog import HeartbeatTopics
    from penstock.control import Control

# Seconds between two attempts while the broker or the database is down.
RETRY = 2.0
# Seconds between two checks for releases, which may change windows and topics.
RELEASES_EVERY = 5.0
# A run ends when no heartbeat is due for so many seconds, because the next run takes seconds to start, and at the
# latest HANDOVER_TIMEOUT seconds after the end of its epoch.
HANDOVER = 6.0
# Seconds between two checks for failing streams, and after how many a run fails: a broker or a store may be down for a
# moment.
FAILURES_EVERY, FAILING_FOR = 5.0, 60.0
HANDOVER_TIMEOUT = 60.0

resolve_in_airflow()


def end_of_epoch(until: float) -> float:
    """When a run ends by the monotonic clock: if the other one is set back, it would last longer by as much."""
    from penstock.settings import settings

    return time.monotonic() + min(until - time.time(), settings().supervise_epoch)


def trigger_event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


class StreamsTrigger(BaseTrigger):
    """Fires when the supervisor has something to do for an app, or at the end of the epoch.

    The event is `{"action": ..., "why": text, "app": name, "evidence": fields of supervision.decision.facts.Evidence}`,
    where `action` is what the supervisor has to do (see `decision.decide.Decision`), "unhealthy" or "epoch", and
    `app` the app, or that of its open replacement.

    Args:
        app: Name of the app.
        owner: The task instance that waits.
        until: Epoch seconds at which the run ends, also if the triggerer restarts meanwhile.
        unhealthy: Streams that were failing, blocked or waiting when the run began.
    """

    def __init__(self, app: str, owner: str, until: float, unhealthy: Sequence[str] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.app, self.owner, self.until, self.unhealthy = app, owner, until, list(unhealthy)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        attributes = {"app": self.app, "owner": self.owner, "until": self.until, "unhealthy": self.unhealthy}
        return "penstock.airflow.triggers.StreamsTrigger", attributes

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from penstock.control import connect

        control = await asyncio.to_thread(connect)
        try:
            due = await self._due(control)
        except Exception:
            # Airflow now fails the task, but nobody asked to end the driver.
            await self._disown_drivers(control)
            raise
        while not await self._disown_drivers(control):
            await asyncio.sleep(RETRY)
        yield trigger_event(due)

    async def _due(self, control: Control) -> dict[str, Any]:
        """The event, once there is one."""
        from penstock.errors import ControlError
        from penstock.settings import settings
        from penstock.supervision.decision.watch import DriversWatch

        watch, failures = DriversWatch(control, self.app), FailureWatch(control, self.app, self.unhealthy)
        logged_kind, ends_at = "", end_of_epoch(self.until)
        while True:
            try:
                due = await asyncio.to_thread(watch.look)
                step, text = due.decision, due.decision.why
                new_failures = await asyncio.to_thread(failures.look)
            except ControlError as e:
                due, step, text, new_failures = (
                    None,
                    None,
                    f"the control database does not answer, so nothing is done: {e}",
                    "",
                )
            if due and step and due.is_due:
                self.log.info("app %s: %s is due: %s", due.app, step.action, step.why)
                return {"action": step.action, "why": step.why, "app": due.app, "evidence": asdict(due.evidence)}
            if new_failures:
                return {"action": "unhealthy", "why": new_failures, "app": self.app, "evidence": None}
            if step and time.monotonic() >= ends_at:
                return {"action": "epoch", "why": step.why, "app": self.app, "evidence": None}
            kind = "away" if step is None else step.action if step.action == "wait" else step.why
            if kind != logged_kind:
                self.log.info("app %s: %s", self.app, text)
                logged_kind = kind
            await asyncio.sleep(settings().supervise_every)

    async def _disown_drivers(self, control: Control) -> bool:
        """Give up the drivers before the event, so that only a task that a person marked still owns one. False if the
        control database does not answer."""
        from penstock.errors import ControlError

        try:
            await asyncio.to_thread(control.disown_drivers, self.owner)
        except ControlError as e:
            self.log.warning("app %s: the event waits for the control database: %s", self.app, e)
            return False
        return True

    async def on_kill(self) -> None:
        """End the driver if a person marked or cleared the task, and this task instance still owns the driver.

        Airflow also calls this in a triggerer that was paused, while another one waits in its place: the task is then
        still deferred, or has continued and given up the driver. Without an answer nothing is ended.
        """
        from penstock.control import connect
        from penstock.errors import ControlError
        from penstock.supervision.reaper import stop

        why_not = await asyncio.to_thread(why_task_continues, self.owner)
        if why_not:
            self.log.info("app %s: its driver continues: %s", self.app, why_not)
            return
        try:
            ended = await asyncio.to_thread(
                lambda: stop(connect(), self.app, self.owner, "its task was marked or cleared in Airflow")
            )
        except ControlError as e:
            self.log.warning("app %s: its driver is not ended: %s", self.app, e)
            return
        self.log.info(
            "app %s: %s", self.app, "driver ended" if ended else "the driver has another owner and is not ended"
        )


def why_task_continues(owner: str, going: str = "deferred") -> str:
    """Why a task instance must be assumed to continue; empty if Airflow says that it was marked or cleared.

    Args:
        owner: the key of `penstock.airflow.operators.task_key`.
        going: its state while nobody has marked or cleared it.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    try:
        dag, run, task, _ = owner.split("/")
        states = RuntimeTaskInstance.get_task_states(dag_id=dag, task_ids=[task], run_ids=[run])
        state = states[run][task]
    except Exception as e:  # any error means that the state is unknown
        return f"the state of its task is unknown: {type(e).__name__}: {e}"
    return f"its task is {state}" if state == going else ""


class FailureWatch:
    """Detects streams that start to fail, are blocked or wait for their store, for FAILING_FOR seconds.

    known: streams that were failing before.
    """

    def __init__(self, control: Control, app: str, known: Sequence[str]) -> None:
        self._control, self._app, self._known = control, app, set(known)
        self._since: dict[str, float] = {}
        self._looked = float("-inf")

    def look(self) -> str:
        """New failures as text; empty if there are none. Checks at most every FAILURES_EVERY seconds."""
        from penstock.monitoring.health import failing

        now = time.monotonic()
        if now - self._looked < FAILURES_EVERY:
            return ""
        failing_streams, self._looked = failing(self._control, self._app), now
        self._known &= failing_streams.keys()
        self._since = {name: self._since.get(name, now) for name in failing_streams.keys() - self._known}
        return "; ".join(
            f"stream {n}: {failing_streams[n]}" for n, at in sorted(self._since.items()) if now - at >= FAILING_FOR
        )


class ReleaseWatch:
    """Notices releases, which may change what is declared."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._releases = self._read()

    def changed(self) -> bool:
        """Whether an app was released since the last call; False while the control database does not answer."""
        before, now = self._releases, self._read()
        self._releases = now or before
        return bool(now and before and now != before)

    def _read(self) -> dict[str, int] | None:
        """Release by app, or None if the control database does not answer."""
        from penstock.errors import ControlError

        try:
            return {a.name: a.release_seq for a in self._control.apps()}
        except ControlError:
            return None


class HeartbeatTrigger(BaseTrigger):
    """Sends heartbeats until the end of the epoch or the next release, also while the broker is down for some time.

    windows: the result of `penstock.supervision.declared.declared_windows`.
    """

    def __init__(self, windows: list[dict[str, Any]], until: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.windows, self.until = windows, until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "penstock.airflow.triggers.HeartbeatTrigger", {"windows": self.windows, "until": self.until}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from penstock.control import connect
        from penstock.errors import PenstockError
        from penstock.settings import settings
        from penstock.supervision.event_clock.heartbeats import HeartbeatSender

        control = await asyncio.to_thread(connect)
        bootstrap = await asyncio.to_thread(lambda: settings().bootstrap)
        beater = await asyncio.to_thread(HeartbeatSender, _windowed(self.windows), control, bootstrap)
        releases = await asyncio.to_thread(ReleaseWatch, control)
        checked_at, logged_kind, ends_at = time.monotonic(), "", end_of_epoch(self.until)
        try:
            while True:
                try:
                    wait, text = await asyncio.to_thread(beater.run_once), "sending"
                except PenstockError as e:
                    wait, text = RETRY, f"no heartbeat is sent: {e}"
                kind = text.partition(";")[0]  # without the details, which differ every time
                if kind != logged_kind:
                    self.log.info("heartbeats: %s", text)
                    logged_kind = kind
                late = time.monotonic() - ends_at
                if late >= 0 and (beater.seconds_to_next() >= HANDOVER or late >= HANDOVER_TIMEOUT):
                    break
                await asyncio.sleep(min(wait, RELEASES_EVERY))
                if time.monotonic() - checked_at >= RELEASES_EVERY:
                    changed, checked_at = await asyncio.to_thread(releases.changed), time.monotonic()
                    if changed:
                        self.log.info("heartbeats: a release may have changed the windows, which are read again")
                        ends_at = min(ends_at, checked_at)
        finally:
            await asyncio.to_thread(beater.close)
        yield trigger_event({"action": "epoch"})


def _windowed(windows: list[dict[str, Any]]) -> HeartbeatTopics:
    """Topics of `declared_windows`. The triggerer runs long, and must not import declarations itself."""
    from penstock.catalog import HeartbeatReader, HeartbeatTopic, UpstreamWriter
    from penstock.model.output_mode import HeartbeatSchedule
    from penstock.model.topic import Topic

    return {
        w["topic"]: HeartbeatTopic(
            Topic(w["topic"], heartbeat_every=w["heartbeat_every"]),
            [
                HeartbeatReader(HeartbeatSchedule(*(timedelta(seconds=s) for s in reader[:2])), *reader[2:])
                for reader in w["readers"]
            ],
            # A trigger of an earlier version has neither these nor the names of readers.
            w.get("grace", 0.0),
            {
                name: UpstreamWriter(every, tuple(feeds), tuple(clocks))
                for name, (every, feeds, clocks) in w.get("writers", {}).items()
            },
        )
        for w in windows
    }


class CaptureStateTrigger(BaseTrigger):
    """Fires when the state of a capture is known, or at `until`, epoch seconds."""

    def __init__(self, capture: str, until: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capture, self.until = capture, until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "penstock.airflow.triggers.CaptureStateTrigger", {"capture": self.capture, "until": self.until}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from penstock.control import connect
        from penstock.errors import ControlError
        from penstock.monitoring.health import state_is_known

        control = await asyncio.to_thread(connect)
        while time.time() < self.until:
            with suppress(ControlError):
                if await asyncio.to_thread(state_is_known, control, self.capture):
                    break
            await asyncio.sleep(RETRY)
        yield trigger_event({"why_not": ""})


class CaptureTrigger(BaseTrigger):
    """Fires when a capture has answered a request: `{"why_not": text}`, empty if the request was done; or at `until`,
    epoch seconds, with its id as `unanswered`."""

    # A trigger of an earlier version has no `until`.
    def __init__(self, capture: str, request: str, until: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capture, self.request, self.until = capture, request, until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        attributes = {"capture": self.capture, "request": self.request, "until": self.until}
        return "penstock.airflow.triggers.CaptureTrigger", attributes

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from penstock.control import connect
        from penstock.control.repositories.captures import Captures
        from penstock.errors import ControlError

        captures = Captures(await asyncio.to_thread(connect))
        while True:
            try:
                row = (await asyncio.to_thread(captures.rows)).get(self.capture)
            except ControlError as e:
                self.log.info("capture %s: the control database does not answer: %s", self.capture, e)
                row = None
            if row and row.answered_request_id == self.request:
                yield trigger_event({"why_not": row.answer or ""})
                return
            if row and row.request_id != self.request:
                why_not = f"a later request came: {row.requested}; whether this one was done before is not known"
                yield trigger_event({"why_not": why_not})
                return
            if row and time.time() >= self.until:
                yield trigger_event({"why_not": "", "unanswered": self.request})
                return
            await asyncio.sleep(RETRY)
