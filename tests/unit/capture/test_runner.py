"""A capture in its driver, without a broker: what a request confirms, and when a reconcile begins."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.capture import runner
from penstock.capture.polling.poller import Poller
from penstock.capture.runner import CaptureRun
from penstock.capture.source.base import SourceError
from penstock.control import Actor, Control, ProgressRow
from penstock.control.repositories.captures import CaptureRequest, CaptureRow, Captures
from penstock.model.capture import parse
from tests.support.captures_in_memory import QUICK, Kept, poller_of
from tests.support.wait import wait_until

DECLARED = f"CAPTURE INTO t FROM sqlite x KEY (id) CURSOR c {QUICK} {{more}} AS SELECT * FROM v"


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    """A view of 50 rows."""
    monkeypatch.setattr("penstock.capture.polling.cursors.LEAST_OVERLAP", timedelta(0))
    monkeypatch.setattr("penstock.capture.reconcile.compare.DECISION_POLL_SECONDS", 0.05)
    monkeypatch.setattr(runner, "BACKOFF", (0.0,))
    monkeypatch.setenv("AIRFLOW_CONN_X", f"sqlite:///{tmp_path / 'x.db'}")
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None, timeout=10)) as c:
        c.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, c INT)")
        c.executemany("INSERT INTO t VALUES (?, 1)", [(n,) for n in range(50)])
        c.execute("CREATE VIEW v AS SELECT * FROM t")
        yield c


class Unbrokered:
    """A run whose pollers keep the topic in memory."""

    def __init__(self, folder: Path, control: Control, monkeypatch: pytest.MonkeyPatch, more: str) -> None:
        self.kept, self.captures, self.pollers = Kept(), Captures(control), list[Poller]()
        # What is done to each poller that is opened.
        self.opened: Callable[[Poller], object] = lambda _: None
        text = DECLARED.format(more=more)

        def open_poller(*_: Any) -> Poller:
            self.pollers.append(poller_of(text, folder, self.kept))
            self.opened(self.pollers[-1])
            return self.pollers[-1]

        monkeypatch.setattr(runner, "open_poller", open_poller)
        self.run = CaptureRun(parse(text, folder / "t.sql"), self.captures, "", ProgressRow("t", "captures", "test"))

    @property
    def row(self) -> CaptureRow:
        return self.captures.rows()["t"]

    def until(self, condition: Callable[[CaptureRow], bool], what: str) -> None:
        """Tend it, as its driver does, until its row says something."""

        def tended() -> bool:
            self.run.reconcile()
            self.run.report()
            return condition(self.row)

        wait_until(tended, 30.0, what=what)

    def ask(self, what: CaptureRequest) -> str:
        return self.captures.ask("t", what, Actor("somebody", "cli"))

    def asked(self, what: CaptureRequest) -> str:
        """What came of a request."""
        request = self.ask(what)
        self.until(lambda row: row.answered_request_id == request, f"{what} is answered")
        return self.row.answer or ""


@pytest.fixture
def start(tmp_path: Path, control: Control, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Unbrokered]]:
    made = list[Unbrokered]()

    def begun(more: str = "") -> Unbrokered:
        made.append(Unbrokered(tmp_path, control, monkeypatch, more))
        return made[-1]

    yield begun
    for one in made:
        one.run.stop()


def test_a_request_confirms_what_was_shown_when_it_was_asked_for(
    db: sqlite3.Connection, start: Callable[..., Unbrokered]
) -> None:
    made = start()
    made.until(lambda row: row.phase == "polling", "it polls")
    db.execute("DELETE FROM t WHERE id < 11")
    assert made.asked("reconcile").startswith("11 of 50 rows")
    made.until(lambda row: row.phase == "refused", "it is shown")
    [poller] = made.pollers
    # It starts anew, and the operator still sees what was pending before.
    db.executescript("BEGIN; DROP VIEW v; CREATE VIEW v AS SELECT * FROM t WHERE id = 20; COMMIT")
    poller.session.next_table_check = 0.0
    wait_until(lambda: "49 of 50 rows" in poller.pending_decision, what="it asks for more")
    request = made.ask("continue")
    made.until(lambda row: row.answered_request_id == request, "it is answered")
    assert (made.row.answer or "").startswith("49 of 50 rows")
    assert len(made.kept.rows) == 50
    made.until(lambda row: (row.why or "").startswith("49 of 50 rows"), "it is shown")
    assert made.asked("continue") == ""
    assert len(made.kept.rows) == 1


@pytest.mark.usefixtures("db")
def test_an_overdue_reconcile_begins_also_where_the_capture_fails_now_and_then(
    start: Callable[..., Unbrokered],
) -> None:
    # It is due within three seconds of a start.
    made = start("RECONCILE EVERY 72 SECONDS")

    def fail_later(poller: Poller) -> None:
        opened_at = time.monotonic()

        def fail(_: str) -> None:
            if poller.position.snapshot is None and time.monotonic() > opened_at + 0.5:
                raise SourceError("it fails", got="now and then", hint="none")

        poller.session.hook, poller.session.index.in_sync_at = fail, 0.0

    made.opened = fail_later
    made.until(lambda row: row.drift is not None, "it compares")
    assert len(made.pollers) > 1
