"""The lifecycle of every driver, whatever it runs: leases, desired state, reports, drain.

It takes the leases of what its app declares, reads the desired state every second and reports every two. It leaves by
itself when none of its streams is wanted, when a release is requested, on SIGTERM, or when another driver has its
leases. The driver of a release that is launched beside the running one opens its session, and then stands by until that
one has ended.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, NoReturn

from penstock import catalog, logs
from penstock.control import Control, Desired, DriverRow, EndCode, ProgressRow, connect
from penstock.errors import BrokerError, ControlError, LeaseHeld, LeaseLost
from penstock.host import session
from penstock.kafka.admin import admin, end_offsets, log_end_offsets
from penstock.kafka.transactions import TIMEOUT
from penstock.model.declaration import replaced_stream
from penstock.settings import misspelled_variables, settings
from penstock.supervision import cluster_driver_process, released_code
from penstock.supervision import out_of_memory as ends
from penstock.supervision.driver_run import DriverRun
from penstock.supervision.lease_keeper import LeaseHolder
from penstock.supervision.standby import StandbyWait, stand_by
from penstock.supervision.unreadable_run import UnreadableRun

log = logging.getLogger("penstock.driver")

# Seconds. The stream of a cut has no output until its end is seen.
LOOK_EVERY, CUT_LOOK_EVERY, LAG_EVERY, HISTORY_EVERY = 1.0, 0.2, 5.0, 15.0
# A client that does not come back from a call cannot be stopped, only left: several times what each call may take.
STUCK_WRITE = 5 * TIMEOUT
# Exit codes, for the log's reader: 0 asked to exit, 75 (EX_TEMPFAIL) another driver has the leases, 78 nothing to run.
LEASES_ELSEWHERE, NOTHING_TO_RUN = 75, 78


class Driver(ABC):
    """Runs what one app declares, under one incarnation."""

    HEALTH_SUBJECT: ClassVar[str] = "the process"
    """What `health_check` checks, for messages."""
    in_cluster = False
    """Whether a cluster runs it."""

    def __init__(self, app: str, incarnation: str, control: Control) -> None:
        self.app = app
        self.incarnation = incarnation
        self._control = control
        self.catalog, self._broken_files = catalog.load_partial(first=app, combiners=False)
        for name, similar in misspelled_variables().items():
            log.warning("%s is not a setting and has no effect; did you mean %s?", name, similar)
        declared = [one.name for one in self.catalog.apps.get(app, ())]
        self._names = [app] if replaced_stream(app) else [name for name in declared if self._is_mine(name)]
        self._leaving = threading.Event()
        self._log = ""
        self._why: tuple[str, EndCode] | None = None
        self._ended_without_memory: DriverRow | None = None
        self._runs: dict[str, DriverRun] = {}
        # As read last.
        self._desired: Mapping[str, Desired] = {}
        self._release = 0
        self._has_resources = self._broker_answers = True
        # What was reported last of what it lacks: that all is on its way is what a launch says already.
        self._reported_resources: str | None = ""
        self._unreported: dict[str, str] = {}
        # Runs whose lag was measured since they were started.
        self._measured: set[str] = set()
        # The stream whose new version is about to write, which must not start meanwhile; and of the last cut.
        self._replaced = self._replaced_last = ""
        self._leases = LeaseHolder(control, self._names, incarnation)
        self._standby_wait = StandbyWait(control, incarnation, self.standby_obstacle)

    def _is_mine(self, name: str) -> bool:
        """Whether it is this app's; of two apps that declare one name it is whose it was."""
        return not self._broken_files or self._control.app_of(name) in (None, self.app)

    def open(self) -> None:  # noqa: B027
        """Open what all runs share, before any of them starts."""

    def warm_up(self, is_over: Callable[[], bool]) -> None:  # noqa: B027
        """Prepare what `open` made for the first work of the runs, until `is_over`, as a standby has time for that."""

    def standby_obstacle(self) -> str:
        """Why no other driver of the app is to start beside this one; empty if one may."""
        return "only drivers of streams have one"

    @abstractmethod
    def create_run(self, name: str, figures: ProgressRow) -> DriverRun:
        """The run of a declared stream or capture, not yet started.

        Args:
            figures: Its progress, with what earlier drivers reported.
        """

    def unmet_resources(self) -> str | None:
        """What it lacks before its runs can work, e.g. executors of a cluster; None if nothing, empty if that is on its
        way. Must not take long."""
        return None

    def health_check(self) -> None:  # noqa: B027
        """Return if the driver can work; an exception ends it."""

    def rest(self, name: str, run: DriverRun) -> None:  # noqa: B027
        """What is done at each look for a run that is neither wanted nor running."""

    def close(self) -> None:  # noqa: B027
        """Give back what `open` made."""

    @classmethod
    def main(cls) -> int:
        """Run the driver that the command line names: `--app APP --incarnation ID`."""
        parser = argparse.ArgumentParser(description=cls.__doc__)
        parser.add_argument("--app", required=True)
        parser.add_argument("--incarnation", required=True)
        parser.add_argument("--cluster-log", type=Path, metavar="LOG")
        arguments = parser.parse_args()
        if arguments.cluster_log:
            cluster_driver_process.begin(arguments.cluster_log)
        logs.setup(f"driver-{arguments.app}")
        control = connect()
        released_code.fetch_own(control)
        driver = cls(arguments.app, arguments.incarnation, control)
        driver.in_cluster = arguments.cluster_log is not None
        return driver.run()

    def run(self) -> int:
        """Run until asked to exit; returns the exit code."""
        row = self._control.driver(self.incarnation)
        if row is None:
            log.error("driver %s is not known to the control database: it was not launched by Penstock", self.app)
            return 2
        if row.state == "ended":
            log.error("driver of %s leaves: it was given up before it began: %s", self.app, row.reason)
            return LEASES_ELSEWHERE
        if not self._names:
            why = self._unreadable() or f"nothing is declared for app {self.app}"
            log.error("driver of %s leaves: %s", self.app, why)
            self._control.end_driver(self.incarnation, why, "not begun")
            return NOTHING_TO_RUN
        where = cluster_driver_process.whereabouts(row.log) if self.in_cluster else {}
        self._release, self._log = row.release_seq, where.get("log", row.log)
        own_session = session.current()
        # The launcher records them too, but it may have died in between.
        self._control.update_driver(self.incarnation, pid=own_session.pid, pid_started=own_session.started, **where)
        signal.signal(signal.SIGTERM, lambda *_: self._leave("SIGTERM", "signal"))
        signal.signal(signal.SIGINT, lambda *_: self._leave("SIGINT", "signal"))
        app = self._control.app(self.app)
        is_standby = app is not None and app.incarnation != self.incarnation
        if app and is_standby and (why := stand_by(self._control, app, row, self, self._leaving)):
            log.error("driver of %s leaves: %s", self.app, why)
            self._control.end_driver(self.incarnation, why, "not begun")
            return LEASES_ELSEWHERE
        try:
            self._leases.take()
        except LeaseHeld as e:
            log.error("driver of %s leaves: %s", self.app, e)
            holder = self._control.driver(e.holder)
            if holder and holder.app == self.app and holder.state != "ended":
                self._control.hand_app_over(self.app, self.incarnation, e.holder)
            self._control.end_driver(self.incarnation, str(e), "not begun")
            return LEASES_ELSEWHERE
        if not is_standby:
            self.open()
        self._report_resources()
        threading.Thread(target=self._keep, name="keeper", daemon=True).start()
        self._open_runs()
        threading.Thread(target=self._report_on, name="reporter", daemon=True).start()
        try:
            self._loop()
        finally:
            self._drain()
        return 0

    def _report_resources(self) -> None:
        """Report whether the driver has what it needs to work: its first sign of life, and whenever that changes."""
        lacking = self.unmet_resources()
        self._has_resources = lacking is None
        if lacking == self._reported_resources or (lacking == "" and self._reported_resources is None):
            return
        self._control.report_driver_resources(self.incarnation, lacking)
        self._reported_resources = lacking
        if lacking:
            log.warning("driver of %s %s", self.app, lacking)

    def _open_runs(self) -> None:
        progress, now = self._control.progress(self.app), self._control.now()
        self._ended_without_memory = ends.find_ended_before(self._control, self.app, self.incarnation)
        unreadable = self._control.desired(self.app).keys() - set(self._names) if self._broken_files else set()
        for name in (*self._names, *sorted(unreadable)):
            previous = progress.get(name)
            figures = ProgressRow(name, self.app, self.incarnation, state="stopped")
            if previous:
                for figure in ProgressRow.KEPT:
                    setattr(figures, figure, getattr(previous, figure))
                if previous.behind_ms is not None:
                    figures.behind_ms = previous.behind_ms + now - previous.reported_at
            if full := self._ended_without_memory:
                figures.error, figures.error_at = full.reason, full.ended_at
            self._runs[name] = (
                UnreadableRun(figures, self._unreadable()) if name in unreadable else self.create_run(name, figures)
            )

    def _unreadable(self) -> str:
        """What is wrong with files of the app; with others, if its own are right."""
        own = catalog.mistakes_of_app(self.app, self.catalog, self._broken_files)
        return "; ".join(map(str, own or self._broken_files))

    def _loop(self) -> None:
        lag_at = 0.0
        while not self._leaving.is_set():
            self._look()
            if time.monotonic() >= lag_at:
                self._measure_lag()
                lag_at = time.monotonic() + LAG_EVERY
            self._leaving.wait(CUT_LOOK_EVERY if self._replaced else LOOK_EVERY)

    def _report_on(self) -> None:
        """Report every few seconds, also while the main loop waits for a broker that is down."""
        history_at = 0.0
        while not self._leaving.wait(settings().progress_every):
            keep = time.monotonic() >= history_at
            self._report(keep=keep)
            if keep:
                history_at = time.monotonic() + HISTORY_EVERY

    def _look(self) -> None:
        """Apply the desired state; without the database, continue as before."""
        try:
            # Read before the release: one that is undone has released the earlier code at the same time.
            replacement = self._control.open_replacement(self.app)
            self._desired = self._control.desired(self.app)
            app = self._control.app(self.app)
            # The driver of the version before goes on until it drains.
            is_cut = replacement and replacement.state == "cutting" and self._release >= (replacement.release_seq or 0)
            self._replaced = replacement.name if replacement and is_cut else ""
            self._replaced_last = self._replaced or self._replaced_last
            if "on" not in self._desired.values():
                return self._leave("no stream of the app is wanted", "unwanted")
            if app and app.release_seq > self._release and self._standby_wait.is_over(app, self._release):
                return self._leave(f"release {app.release_seq}", "released")
        except ControlError as e:
            log.warning("the desired state of %s cannot be read, going on as before: %s", self.app, e)
        for name, run in sorted(self._runs.items(), key=lambda item: item[0] != self._replaced_last):
            if not (was_active := run.active):
                self._measured.discard(name)
            if self._desired.get(name) == "on":
                if self._has_resources and (was_active or (name != self._replaced and self._owns(name))):
                    run.reconcile()
                    if self._replaced and run.active and not was_active:
                        return None  # a start takes seconds, in which the cut may have ended
            elif run.running:
                log.info("stream %s is not wanted any more", name)
                self._stop(name, run)
            elif name in self._desired:
                self.rest(name, run)
        return None

    def _stop(self, name: str, run: DriverRun) -> None:
        """Stop a run; one that cannot even end in order must not keep the others from it."""
        try:
            run.stop()
        except Exception:
            log.exception("stream %s did not stop in order", name)

    def _owns(self, name: str) -> bool:
        try:
            return self._leases.owns(name)
        except (LeaseLost, LeaseHeld) as e:
            self._die(str(e), LEASES_ELSEWHERE)

    def _report(self, *, keep: bool) -> None:
        """Write down what each run says of itself. One that cannot say it, or whose figures are refused, is left out:
        its last report then grows old."""
        rows = [row for name, run in list(self._runs.items()) if (row := self._figures(name, run))]
        try:
            refused = self._control.report(rows, keep=keep)
        except ControlError as e:
            log.warning("progress could not be reported: %s", e)
        except Exception:
            log.exception("progress could not be reported")
        else:
            for row in rows:
                self._note(row.name, refused.get(row.name, ""))

    def _figures(self, name: str, run: DriverRun) -> ProgressRow | None:
        try:
            row = run.report()
            # The path of the released code would take the place of the reason where lists show its beginning.
            row = replace(row, error=row.error and row.error.replace(f"{settings().project}/", ""))
            if name == self._replaced and not run.active:
                return replace(row, state="replacing")
            # A run whose lag was not measured yet may have records to read.
            return replace(row, state="starting") if row.state == "idle" and name not in self._measured else row
        except Exception as e:
            self._note(name, f"{type(e).__name__}: {e}")
            return None

    def _note(self, name: str, why: str) -> None:
        """Log once why a run is not reported."""
        if why and why != self._unreported.get(name):
            log.error("stream %s cannot be reported: %s", name, why, exc_info=sys.exc_info()[0] is not None)
        self._unreported[name] = why

    def _measure_lag(self) -> None:
        positions = {name: run.offsets for name, run in self._runs.items()}
        partitions = {(t, p) for offsets in positions.values() for t, parts in offsets.items() for p in parts}
        asked_at, broker = time.monotonic(), settings().bootstrap
        try:
            # In this order: what is committed in between is no open transaction.
            stable, ends = (of(admin(broker), partitions, broker) for of in (end_offsets, log_end_offsets))
        except BrokerError as e:
            log.warning("lag could not be measured: %s", e)
            self._broker_answers = False
            return
        self._broker_answers = True
        for name, offsets in positions.items():
            try:
                self._runs[name].lag(offsets, stable, ends, asked_at)
                self._measured.add(name)
            except Exception:
                log.exception("the lag of stream %s could not be measured", name)

    def _keep(self) -> None:
        """Renew the leases and say that this driver lives, as long as `health_check` comes back."""
        while True:
            try:
                self.health_check()
            except Exception as e:
                if self._leaving.is_set():
                    return
                self._die(f"{self.HEALTH_SUBJECT} is gone: {type(e).__name__}", 1)
            for name, run in list(self._runs.items()):
                if run.write_seconds() > STUCK_WRITE:
                    self._die(f"the output of {name} hangs for {STUCK_WRITE:g} s", 1)
            try:
                self._leases.renew()
                if not self._control.report_driver_alive(self.incarnation):
                    self._leave("it was given up", "asked")
                self._report_resources()
            except ControlError as e:
                # No driver can take the leases meanwhile, and the broker fences older writers.
                log.warning("leases cannot be renewed, going on: %s", e)
            except Exception as e:
                if self._leaving.is_set():
                    return
                if isinstance(e, LeaseLost):
                    self._die(str(e), LEASES_ELSEWHERE)
                # Without a keeper it would write on under leases that run out.
                log.exception("the leases of %s can be kept no more", self.app)
                self._die(f"its leases can be kept no more: {type(e).__name__}", 1)
            time.sleep(min(settings().progress_every, settings().lease_ttl / 4))

    def _die(self, reason: str, code: int) -> NoReturn:
        full = ends.out_of_memory(self._log)
        log.error("driver of %s ends at once: %s", self.app, full or reason)
        try:
            self._control.end_driver(self.incarnation, full or reason, "memory" if full else "failed")
        finally:
            logging.shutdown()
            os._exit(code)

    def _leave(self, reason: str, code: EndCode) -> None:
        self._why = self._why or (reason, code)
        self._leaving.set()

    def _drain(self) -> None:
        # What ends with it is no news to the keeper.
        self._leaving.set()
        full, error = ends.out_of_memory(self._log), sys.exc_info()[1]
        reason, code = self._why or ((full, "memory") if full else (f"failed: {error!r}", "failed"))
        log.info("driver of %s drains: %s", self.app, reason)
        try:
            self._control.update_driver(self.incarnation, state="draining")
        except ControlError as e:
            log.warning("draining could not be reported: %s", e)
        with ThreadPoolExecutor(max(1, len(self._runs))) as pool:
            list(pool.map(self._stop, self._runs, self._runs.values()))
        # This stays the lag of a stopped stream: its last batch counts too. No lease is kept for a broker that is down.
        if self._broker_answers:
            self._measure_lag()
        try:
            self._report(keep=True)
            self._leases.drop()
            self._control.end_driver(self.incarnation, reason, code)
        except ControlError as e:
            log.warning("the end could not be reported; the leases run out: %s", e)
        self.close()
