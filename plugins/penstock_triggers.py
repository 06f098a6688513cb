"""Triggers that wait beside a stream platform: they look and keep the beat, and never start or stop a driver.

They run in Airflow's triggerer, which keeps the code it started with: restart it when this file changes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

if TYPE_CHECKING:
    from penstock.catalog import HeartbeatTopics
    from penstock.control import Control

# What a broker or database that is away is asked again after.
RETRY = 2.0
# How soon a release is seen, which may bring other windows and topics.
RELEASES_EVERY = 5.0
# A run ends when no beat is due for so long, because the next one takes seconds to start; but it does end.
HANDOVER = 6.0
# How often it is looked whether streams fail, and after how long a run says so: a broker or a store may be away for a
# moment.
FAILURES_EVERY, FAILING_FOR = 5.0, 60.0
HANDOVER_PATIENCE = 60.0


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


class StreamsTrigger(BaseTrigger):
    """Fires when the supervisor has something to do for an app, or at the end of the epoch.

    The event is `{"action": ..., "why": text, "evidence": fields of supervision.decision.facts.Evidence}`, where
    `action` is one of "clear", "launch", "request_release", "record_wait_reason", "unhealthy" and "epoch".

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
        given = {"app": self.app, "owner": self.owner, "until": self.until, "unhealthy": self.unhealthy}
        return "penstock_triggers.StreamsTrigger", given

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from penstock.control import connect

        control = await asyncio.to_thread(connect)
        try:
            due = await self._due(control)
        except Exception:
            # Airflow now fails the task: that is nobody's wish to end the driver.
            await self._disown_driver(control)
            raise
        while not await self._disown_driver(control):
            await asyncio.sleep(RETRY)
        yield _event(due)

    async def _due(self, control: Control) -> dict[str, Any]:
        """The event, once there is one."""
        from penstock.errors import ControlError
        from penstock.settings import settings
        from penstock.supervision.decision.watch import AppWatch

        watch, failures = AppWatch(control, self.app), FailureWatch(control, self.app, self.unhealthy)
        said = ""
        while True:
            try:
                step = await asyncio.to_thread(watch.look)
                says = step.why
                fresh = await asyncio.to_thread(failures.look)
            except ControlError as e:
                step, says, fresh = None, f"nothing is known, so nothing is done: {e}", ""
            if step and step.action in ("clear", "launch", "request_release", "record_wait_reason"):
                self.log.info("app %s: %s is due: %s", self.app, step.action, step.why)
                return {"action": step.action, "why": step.why, "evidence": asdict(watch.evidence)}
            if fresh:
                return {"action": "unhealthy", "why": fresh, "evidence": None}
            if step and time.time() >= self.until:
                return {"action": "epoch", "why": step.why, "evidence": None}
            kind = "away" if step is None else step.action if step.action == "wait" else step.why
            if kind != said:
                self.log.info("app %s: %s", self.app, says)
                said = kind
            await asyncio.sleep(settings().supervise_every)

    async def _disown_driver(self, control: Control) -> bool:
        """Give up the driver before the event, so that only a person's mark finds it still owned. False if the control
        database is away."""
        from penstock.errors import ControlError

        try:
            await asyncio.to_thread(control.disown_driver, self.app, self.owner)
        except ControlError as e:
            self.log.warning("app %s: the event waits for the control database: %s", self.app, e)
            return False
        return True

    async def on_kill(self) -> None:
        """End the driver if a person marked or cleared the task, and this task instance still owns the driver.

        Airflow also calls this in a triggerer that was paused, while another one waits in its place: the task is then
        still deferred, or has gone on, and its event has given the driver up. Without an answer nothing is ended.
        """
        from penstock.control import connect
        from penstock.errors import ControlError
        from penstock.supervision.reaper import stop

        why_not = await asyncio.to_thread(why_task_continues, self.owner)
        if why_not:
            self.log.info("app %s: its driver goes on: %s", self.app, why_not)
            return
        try:
            ended = await asyncio.to_thread(
                lambda: stop(connect(), self.app, self.owner, "its task was marked or cleared in Airflow")
            )
        except ControlError as e:
            self.log.warning("app %s: its driver is left as it is: %s", self.app, e)
            return
        self.log.info("app %s: %s", self.app, "driver ended" if ended else "the driver is not ours, so it is left")


def why_task_continues(owner: str, going: str = "deferred") -> str:
    """Why a task instance must be taken to go on, empty if Airflow says for certain that it does not.

    owner: as `penstock_operators.task_key` names it; going: its state while nobody has marked or cleared it.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    try:
        dag, run, task, _ = owner.split("/")
        states = RuntimeTaskInstance.get_task_states(dag_id=dag, task_ids=[task], run_ids=[run])
        state = states[run][task]
    except Exception as e:  # whatever it is: nothing is known then
        return f"the state of its task is not known: {type(e).__name__}: {e}"
    return f"its task is {state}" if state == going else ""


class FailureWatch:
    """Sees a stream that begins to fail, is blocked or waits for its store, and stays so.

    known: those of which it is known already.
    """

    def __init__(self, control: Control, app: str, known: Sequence[str]) -> None:
        self._control, self._app, self._known = control, app, set(known)
        self._since: dict[str, float] = {}
        self._looked = float("-inf")

    def look(self) -> str:
        """What is new, in words; empty if nothing is. It looks no oftener than each few seconds."""
        from penstock.monitoring.health import failing

        now = time.monotonic()
        if now - self._looked < FAILURES_EVERY:
            return ""
        found, self._looked = failing(self._control, self._app), now
        self._known &= found.keys()
        self._since = {name: self._since.get(name, now) for name in found.keys() - self._known}
        return "; ".join(f"stream {n}: {found[n]}" for n, at in sorted(self._since.items()) if now - at >= FAILING_FOR)


class HeartbeatTrigger(BaseTrigger):
    """Keeps the heartbeats going until the end of the epoch or the next release, whatever is away meanwhile.

    windows: what a fresh process read from the declarations, as `declared_windows` gives it.
    """

    def __init__(self, windows: list[dict[str, Any]], until: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.windows, self.until = windows, until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "penstock_triggers.HeartbeatTrigger", {"windows": self.windows, "until": self.until}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from penstock.control import connect
        from penstock.errors import PenstockError
        from penstock.settings import settings
        from penstock.supervision.event_clock.heartbeats import HeartbeatSender

        control = await asyncio.to_thread(connect)
        beater = await asyncio.to_thread(HeartbeatSender, _windowed(self.windows), control, settings().bootstrap)
        releases, looked, said, until = await asyncio.to_thread(_releases, control), time.monotonic(), "", self.until
        try:
            while True:
                try:
                    wait, says = await asyncio.to_thread(beater.run_once), "beating"
                except PenstockError as e:
                    wait, says = RETRY, f"no beat goes out: {e}"
                kind = says.partition(";")[0]  # without the details, which differ every time
                if kind != said:
                    self.log.info("heartbeats: %s", says)
                    said = kind
                over = time.time() - until
                if over >= 0 and (wait >= HANDOVER or over >= HANDOVER_PATIENCE):
                    break
                await asyncio.sleep(min(wait, RELEASES_EVERY))
                if time.monotonic() - looked >= RELEASES_EVERY:
                    now, looked = await asyncio.to_thread(_releases, control), time.monotonic()
                    if now and releases and now != releases:
                        self.log.info("heartbeats: a release may have changed the windows; they are read again")
                        until = min(until, time.time())
                    releases = now or releases
        finally:
            await asyncio.to_thread(beater.close)
        yield _event({"action": "epoch"})


def _releases(control: Control) -> dict[str, int] | None:
    """Release by app, or None while the database is away."""
    from penstock.errors import ControlError

    try:
        return {a.name: a.release_seq for a in control.apps()}
    except ControlError:
        return None


def declared_windows() -> list[dict[str, Any]]:
    """Topics that need heartbeats, as JSON: name, heartbeat_every, [every, after, name] of each reader and the least
    grace of theirs, in seconds; by name [every, feeds, clocks] of the streams that feed it.

    A mistake in one file must not stop the beats of others, nor those that its running driver waits for: these are as
    they were when all could be read.
    """
    from penstock.catalog import load_partial
    from penstock.host.files import write_private
    from penstock.settings import settings

    catalog, wrong = load_partial(combiners=False)
    found = [
        {
            "topic": of.topic.name,
            "heartbeat_every": of.topic.heartbeat_every,
            "readers": [
                [r.schedule.interval.total_seconds(), r.schedule.offset.total_seconds(), r.name] for r in of.readers
            ],
            "grace": of.grace,
            "writers": {n: [w.every, list(w.feeds), list(w.clocks)] for n, w in of.writers.items()},
        }
        for of in catalog.heartbeat_topics().values()
    ]
    known = settings().home / "run" / "windows.json"
    if not wrong:
        known.parent.mkdir(parents=True, exist_ok=True)
        write_private(known, json.dumps(found))
    elif known.exists():
        with suppress(ValueError):  # a power cut may leave it empty
            found = _both(found, json.loads(known.read_text()))
    return found


def _both(found: list[dict[str, Any]], known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is declared, and the readers and writers that were known of each topic."""
    by_topic = {one["topic"]: one for one in found}
    for one in known:
        now = by_topic.setdefault(one["topic"], {"grace": 0.0, "writers": {}, **one, "readers": []})
        now["readers"] += [due for due in one["readers"] if due not in now["readers"]]
        now["grace"] = min(now["grace"], one.get("grace", now["grace"]))
        now["writers"] = {**now["writers"], **one.get("writers", {})}
    return list(by_topic.values())


def _windowed(windows: list[dict[str, Any]]) -> HeartbeatTopics:
    """What `declared_windows` gave: the triggerer lives long, and must not keep declarations of its own."""
    from penstock.catalog import HeartbeatReader, HeartbeatTopic, UpstreamWriter
    from penstock.model.output_mode import HeartbeatSchedule
    from penstock.model.topic import Topic

    return {
        w["topic"]: HeartbeatTopic(
            Topic(w["topic"], heartbeat_every=w["heartbeat_every"]),
            [
                HeartbeatReader(HeartbeatSchedule(*(timedelta(seconds=s) for s in given[:2])), *given[2:])
                for given in w["readers"]
            ],
            # A trigger that an earlier version left knows neither, nor the names of readers.
            w.get("grace", 0.0),
            {
                name: UpstreamWriter(every, tuple(feeds), tuple(clocks))
                for name, (every, feeds, clocks) in w.get("writers", {}).items()
            },
        )
        for w in windows
    }


class CaptureStateTrigger(BaseTrigger):
    """Fires when it can be said how a capture is, or at `until`, epoch seconds."""

    def __init__(self, capture: str, until: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capture, self.until = capture, until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "penstock_triggers.CaptureStateTrigger", {"capture": self.capture, "until": self.until}

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
        yield _event({"why_not": ""})


class CaptureTrigger(BaseTrigger):
    """Fires when a capture has answered a request: `{"why_not": text}`, empty if it did what was asked."""

    def __init__(self, capture: str, request: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capture, self.request = capture, request

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "penstock_triggers.CaptureTrigger", {"capture": self.capture, "request": self.request}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from penstock.control import connect
        from penstock.control.repositories.captures import Captures
        from penstock.errors import ControlError

        captures = Captures(await asyncio.to_thread(connect))
        while True:
            try:
                row = (await asyncio.to_thread(captures.rows)).get(self.capture)
            except ControlError as e:
                self.log.info("capture %s: nothing is known: %s", self.capture, e)
                row = None
            if row and row.answered_request_id == self.request:
                yield _event({"why_not": row.answer or ""})
                return
            if row and row.request_id != self.request:
                yield _event({"why_not": f"somebody asked for {row.requested} instead"})
                return
            await asyncio.sleep(RETRY)
