"""One capture of a running driver: the polling thread, its progress reports and the requests of operators."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict, replace

from penstock.capture.checks.diagnostics import with_source_location
from penstock.capture.factory import Decision, PositionRefused, check_topic, open_poller
from penstock.capture.polling.poller import Poller
from penstock.capture.reconcile.drift import REQUESTED, SCHEDULED
from penstock.capture.reconcile.schedule import due
from penstock.capture.source.base import READ_TIMEOUT
from penstock.control import ProgressRow
from penstock.control.repositories.captures import CaptureRow, Captures
from penstock.errors import ControlError, LeaseLost, PenstockError
from penstock.model.capture import Capture
from penstock.supervision.thread_run import ThreadRun

log = logging.getLogger(__name__)

# Seconds until a capture that failed is started again.
BACKOFF = (1.0, 2.0, 5.0, 10.0, 30.0)
# Seconds between two checks that the topic is still the one that was opened.
TOPIC_CHECK_SECONDS = 10.0
# A step that takes longer than a query may hangs in a call without a limit of its own.
STEP_TIMEOUT = 2.0 * READ_TIMEOUT
STOP_TIMEOUT = READ_TIMEOUT + 30.0


class CaptureRun(ThreadRun):
    """Runs one capture in a thread of its own.

    Args:
        capture: The capture.
        captures: Its part of the control database.
        bootstrap: The brokers.
        figures: Its progress as a stream, continued from the last report. There `rows_in` counts changed rows, `dead`
            dead letters, a batch is a poll, `watermark` is the time before which every commit is in the topic, and
            `state_rows` are the rows whose last value is cached.
    """

    def __init__(self, capture: Capture, captures: Captures, bootstrap: str, figures: ProgressRow) -> None:
        super().__init__(f"capture-{capture.name}", figures, STOP_TIMEOUT)
        self.capture, self._captures, self._bootstrap = capture, captures, bootstrap
        self.row = CaptureRow(capture.name, fingerprint=capture.fingerprint)
        self._wake = threading.Event()
        self._request: tuple[str, str] | None = None
        # Ids of decisions: the one that is pending, the one that was reported last, and that at the request's time.
        self._pending_id = self._reported_id = self._requested_id = ""
        # The request that is being done, and the number of polls when it began.
        self._current_request, self._polls = "", 0
        self._failures = 0
        self._retry_at = 0.0
        # A capture that fails now and then is opened anew, which must not put off its reconcile.
        self._created_at = time.time()
        self._stepped_at = 0.0
        # When the last finished poll began: all commits before it are in the topic.
        self._caught_up_at = None if figures.behind_ms is None else time.monotonic() - figures.behind_ms / 1000
        self._earlier_counts = (figures.rows_in, figures.rows_out, figures.dead)

    def reconcile(self) -> None:
        """Start the thread if it does not run, and read the request of an operator."""
        if not self.active and time.monotonic() >= self._retry_at:
            self._stepped_at = time.monotonic()
            self.start()
        self._read_request()

    def _read_request(self, *, fresh: bool = False) -> None:
        try:
            request = self._captures.requests(fresh=fresh).get(self.capture.name)
        except ControlError:
            return  # the driver reports it
        if request and not self._request:
            self._request, self._requested_id = request, self._reported_id
            self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        super().stop()

    def report(self) -> ProgressRow:
        now = time.monotonic()
        idle_seconds = now - self._stepped_at
        if self.active and idle_seconds > STEP_TIMEOUT and self.row.phase:
            self.figures.state, self.figures.error = "failing", f"no query or write has ended for {idle_seconds:.0f} s"
            self.figures.error_at = int(time.time() * 1000)
        self.update_rate(now)
        if (caught_up_at := self._caught_up_at) is not None:
            self.figures.behind_ms = int((now - caught_up_at) * 1000)
        pending_id = self._pending_id
        if self.active and pending_id != self._reported_id:
            # A request that came before this report is about the decision that was reported before.
            self._read_request(fresh=True)
        try:
            self._captures.report(self.row)
            self._reported_id = pending_id
        except Exception as e:  # its progress is reported all the same
            log.warning("capture %s could not report: %s", self.capture.name, e)
        return replace(self.figures)

    def _work(self, stopping: threading.Event) -> None:
        decision: Decision = ""
        while not stopping.is_set():
            requested, decision = decision, ""
            try:
                decision = self._opened(requested, stopping)
            except PositionRefused as e:
                self._failed(e)
                self.row.phase, self.row.why = "refused", str(e)
                decision = self._decided(stopping)
            except LeaseLost as e:
                # Another process has fenced this one. The driver checks its lease before it starts the capture again.
                self._failed(e)
                self._retry_at = time.monotonic() + BACKOFF[-1]
                return
            except PenstockError as e:
                self._gave_up(e, stopping)
            except Exception as e:
                # An unexpected error must show as a failing capture, not as a dead thread.
                log.exception("capture %s", self.capture.name)
                self._gave_up(e, stopping)

    def _gave_up(self, e: Exception, stopping: threading.Event) -> None:
        self._failed(e)
        self._answer(str(e))
        stopping.wait(BACKOFF[min(self._failures, len(BACKOFF)) - 1])

    def _opened(self, decision: Decision, stopping: threading.Event) -> Decision:
        """Open the capture and poll until it is stopped; returns a decision if it must be opened again."""
        with with_source_location(self.capture):
            poller = open_poller(self.capture, self._bootstrap, decision, self._current_request if decision else "")
            try:
                return self._poll(poller, stopping)
            finally:
                self._earlier_counts = (self.figures.rows_in, self.figures.rows_out, self.figures.dead)
                poller.close()

    def _poll(self, poller: Poller, stopping: threading.Event) -> Decision:
        self.row.why, self._polls = None, 0
        checked_at = time.monotonic()
        while not stopping.is_set():
            if self._request and self._request[1] != self._current_request and self._begin(poller, self._request):
                return "snapshot"
            if time.monotonic() - checked_at > TOPIC_CHECK_SECONDS:
                check_topic(self.capture, poller.position, self._bootstrap)
                checked_at = time.monotonic()
            name, interval = self.capture.name, self.capture.reconcile
            busy = (poller.position.reconcile and not poller.pending_since) or poller.position.snapshot
            # A reconcile that waits for a decision is repeated when due, since the cause may be repaired.
            compared_at = max(poller.session.index.in_sync_at, poller.pending_since)
            if interval and not busy and time.time() >= due(name, interval, compared_at, self._created_at):
                poller.compare(poller.position.reconcile or SCHEDULED)
            poll_started, polls = time.monotonic(), poller.metrics.polls
            wait = poller.step()
            self._stepped_at = time.monotonic()
            if polled := poller.metrics.polls > polls:
                self._caught_up_at = poll_started
            self._note(poller, self._stepped_at - poll_started if polled else None)
            rests = not poller.position.reconcile and poller.position.snapshot is None
            if self._request and self._request[1] == self._current_request and poller.metrics.polls > self._polls:
                if rests and not (self._request[0] == "continue" and poller.pending_decision):
                    self._answer("")
                elif poller.pending_decision:
                    self._answer(poller.pending_decision)
            self._wake.wait(wait)
            self._wake.clear()
        return ""

    def _begin(self, poller: Poller, request: tuple[str, str]) -> bool:
        """Start a request; True if the capture must be opened again for it."""
        kind, self._current_request = request
        self._polls = poller.metrics.polls
        if poller.position.request == self._current_request:
            return False  # it began before a restart
        if kind == "snapshot":
            return True
        if kind == "reconcile":
            poller.compare(REQUESTED, self._current_request)
        if kind == "continue" and poller.pending_decision:
            if poller.pending_id != self._requested_id:
                # The operator has seen another one, or none.
                self._answer(poller.pending_decision)
                return False
            poller.continue_pending()
        poller.poll_now()
        return False

    def _note(self, poller: Poller, took: float | None) -> None:
        f, p, row = poller.metrics, poller.position, self.row
        self._failures, self._pending_id = 0, poller.pending_id
        row.phase, row.polls = "refused" if poller.pending_decision else f.state, f.polls
        row.why = poller.pending_decision or (f.waits_for if f.state == "waiting" else None)
        row.low = None if p.low is None else str(p.low)
        row.snapshot_rows, row.snapshot_total = f.rows, f.total
        row.oldest_at = None if f.oldest is None else int(f.oldest * 1000)
        row.skipped_until = None if p.skipped is None else int(p.skipped.until * 1000)
        row.reconcile = p.reconcile or None
        rows, first = len(poller.session.oversized), poller.session.oversized.first
        row.dead_letter_rows = {"rows": rows, "first": first.decode(errors="replace")} if first is not None else None
        if p.reconciles:
            *others, last = p.reconciles
            row.drift = {**asdict(last), "explained": last.explained, "earlier": [*map(asdict, others)]}
        figures = self.figures
        figures.rows_in, figures.rows_out, figures.dead = (
            earlier + now
            for earlier, now in zip(self._earlier_counts, (f.changed, f.written, f.dead_letters), strict=True)
        )
        figures.state_rows = len(poller.session.last_values)
        if f.current is not None:
            figures.watermark = int(f.current * 1000)
        if took is not None:
            figures.batch_id, figures.batch_at, figures.batch_ms = f.polls, int(time.time() * 1000), int(took * 1000)
        figures.state = "idle" if f.state == "polling" and not figures.rows_per_s else "running"
        if poller.pending_decision:
            # Polls continue, but the reconcile waits for the decision.
            if figures.error != poller.pending_decision:
                figures.error, figures.error_at = poller.pending_decision, int(time.time() * 1000)
            figures.state = "failing"

    def _failed(self, e: Exception) -> None:
        self._failures += 1
        self.figures.state, self.figures.rows_per_s = "failing", 0.0
        self.figures.error, self.figures.error_at = str(e), int(time.time() * 1000)
        self.figures.restarts += 1
        log.error("capture %s failed: %s", self.capture.name, e)

    def _decided(self, stopping: threading.Event) -> Decision:
        """Wait until an operator decides about a position of another key, cursor or topic."""
        while not stopping.is_set():
            self._wake.wait(1.0)
            self._wake.clear()
            self._stepped_at = time.monotonic()
            if self._request and self._request[1] == self._current_request:
                self._answer("refused: see why")
            if self._request:
                kind, self._current_request = self._request
                if kind in ("snapshot", "continue"):
                    return "snapshot" if kind == "snapshot" else "continue"
                self._answer("refused: its position does not fit: mend what the reason names, or ask for a `snapshot`")
        return ""

    def _answer(self, why_not: str) -> None:
        request, self._request = self._request, None
        if request:
            try:
                # The operator reads the report after the answer.
                self._captures.report(self.row)
                self._captures.answer(self.capture.name, request[1], why_not)
            except ControlError as e:
                log.warning("capture %s could not answer: %s", self.capture.name, e)
