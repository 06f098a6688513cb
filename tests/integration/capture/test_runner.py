"""A capture as its driver runs it: what it tells the control database, what is asked of it, what goes wrong."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest

from penstock.capture.output.position import SnapshotProgress
from penstock.capture.reconcile.compare import Comparison
from penstock.capture.reconcile.digest_index import DigestIndex
from penstock.capture.runner import CaptureRun
from penstock.capture.session import CaptureSession
from penstock.capture.snapshot.snapshot import SnapshotRun
from penstock.control import Actor, Control, ProgressRow
from penstock.control.repositories.captures import CaptureRequest, CaptureRow, Captures
from penstock.control.repositories.partitions import reconcile_events
from penstock.errors import ControlError
from penstock.model.capture import parse
from tests.support.captures import Source
from tests.support.wait import wait_until

ME = Actor("somebody", "cli")


class Running:
    """Tends a run as its driver does, and knows what it says of itself."""

    def __init__(self, given: Source, control: Control) -> None:
        self.source, self.captures = given, Captures(control)
        self.run: CaptureRun | None = None

    def start(self, columns: str = "*", more: str = "") -> None:
        self.stop()
        text = self.source.declared(more, columns)
        declared = parse(text, self.source.folder / f"{self.source.name}.sql")
        figures = ProgressRow(declared.name, "captures", "test")
        self.run = CaptureRun(declared, self.captures, self.source.broker.bootstrap, figures)
        self.run.reconcile()

    def stop(self) -> None:
        if self.run:
            self.run.stop()

    @property
    def figures(self) -> ProgressRow:
        assert self.run
        self.run.reconcile()
        return self.run.report()

    @property
    def row(self) -> CaptureRow:
        assert self.figures
        return self.captures.rows()[self.source.name]

    def asked(self, what: CaptureRequest) -> str:
        """What came of a request."""
        request = self.captures.ask(self.source.name, what, ME)
        wait_until(lambda: self.row.answered_request_id == request, what=f"{what} is answered")
        return self.row.answer or ""

    def events(self) -> int:
        """The number of asset events that Airflow is to get."""
        return len(self.captures._control.partition_revisions(reconcile_events(self.source.name)))

    def names(self) -> set[str]:
        assert self.figures
        return {orjson.loads(value)["name"] for value in self.source.topic().values()}

    def until(self, condition: Callable[[CaptureRow, ProgressRow], bool], what: str) -> None:
        wait_until(lambda: condition(self.row, self.figures), what=what)


@pytest.fixture
def running(source: Source, control: Control) -> Iterator[Running]:
    made = Running(source, control)
    yield made
    made.stop()


def test_it_tells_how_far_it_is(running: Running) -> None:
    running.source.sql(*(f"INSERT INTO {running.source.name} (name) VALUES ('{i}')" for i in range(3)))
    running.start()
    running.until(lambda row, f: row.phase == "polling" and f.rows_out == 3 and row.low is not None, "it polls")
    found, row = running.figures, running.row
    assert found.state in ("running", "idle")
    assert found.watermark is not None
    assert running.captures._control.now() - found.watermark < 5_000
    assert (row.snapshot_rows, row.snapshot_total, row.drift, row.skipped_until) == (3, 3, None, None)
    assert found.behind_ms is not None
    assert found.behind_ms < 5_000
    running.stop()
    assert running.run
    before = running.run.report().behind_ms
    time.sleep(0.2)
    stopped = running.run.report()
    assert stopped.state == "stopped"
    # It grows old from when the last poll began, for whoever waits for what the capture writes.
    assert before is not None
    assert stopped.behind_ms is not None
    assert stopped.behind_ms >= before + 200


def test_a_statement_that_fails_says_so_and_goes_on_when_it_is_mended(running: Running) -> None:
    running.source.sql(f"INSERT INTO {running.source.name} (name) VALUES ('a')")
    running.start()
    running.until(lambda _, f: f.rows_out == 1, "the first row is there")
    running.source.sql(f"RENAME TABLE {running.source.name} TO elsewhere")
    running.until(lambda _, f: f.state == "failing", "it fails")
    assert "doesn't exist" in (running.figures.error or "")
    running.source.sql(f"RENAME TABLE elsewhere TO {running.source.name}")
    running.source.sql(f"INSERT INTO {running.source.name} (name) VALUES ('b')")
    running.until(lambda _, f: f.state in ("running", "idle"), "it works again")
    wait_until(running.source.same)


def test_a_changed_statement_brings_up_older_rows_by_itself(running: Running) -> None:
    running.source.sql(f"INSERT INTO {running.source.name} (name) VALUES ('a')")
    running.start()
    running.until(lambda row, _: row.low is not None, "it polls")
    running.start(columns="id, gone, changed, UPPER(name) AS name")
    running.source.sql(f"INSERT INTO {running.source.name} (name) VALUES ('b')")
    wait_until(lambda: running.names() == {"A", "B"}, what="the rows are as the new statement has them")
    running.start(columns="id, gone, changed, CONCAT(name, '!') AS name")
    assert running.asked("snapshot") == ""
    assert running.names() == {"a!", "b!"}


def test_a_reconcile_that_would_remove_many_rows_waits_for_somebody_to_decide(running: Running) -> None:
    running.source.sql(f"INSERT INTO {running.source.name} (name) SELECT seq FROM seq_1_to_30")
    running.start()
    running.until(lambda row, _: row.low is not None, "it polls")
    running.source.sql(f"DELETE FROM {running.source.name} WHERE id <= 15")
    assert running.asked("reconcile").startswith("15 of 30 rows of the topic are no longer in the table")
    running.until(lambda row, f: row.phase == "refused" and f.state == "failing", "it says so")
    assert running.row.why == running.figures.error
    assert running.asked("continue") == ""
    assert running.source.same()
    running.until(lambda row, f: row.phase == "polling" and f.state in ("running", "idle"), "it works again")


def test_a_reconcile_that_is_asked_for(running: Running) -> None:
    running.source.sql(*(f"INSERT INTO {running.source.name} (name) VALUES ('{i}')" for i in range(10)))
    running.start()
    running.until(lambda row, _: row.low is not None, "it polls")
    running.source.sql(f"DELETE FROM {running.source.name} WHERE id = 3")
    assert running.asked("reconcile") == ""
    assert running.source.same()
    drift = running.row.drift
    assert drift
    assert (drift["missing"], drift["differing"], drift["extra"], drift["rows"]) == (0, 0, 1, 9)


def test_a_snapshot_that_is_asked_for(running: Running) -> None:
    running.source.sql(*(f"INSERT INTO {running.source.name} (name) VALUES ('{i}')" for i in range(10)))
    running.start()
    running.until(lambda row, _: row.low is not None, "it polls")
    running.source.sql(f"UPDATE {running.source.name} SET name = 'unseen', changed = '2020-01-01' WHERE id = 8")
    running.source.sql(f"DELETE FROM {running.source.name} WHERE id = 3")
    assert running.asked("snapshot") == ""
    assert running.source.same()
    assert running.asked("poll") == ""
    running.until(lambda row, _: row.phase == "polling", "it polls on")


class Paused:
    """Snapshots and comparisons of pages of 100 rows, which go no further than 600 rows until they may.

    Attributes:
        pages: How many pages of either were read.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on, self.rests, self.pages = threading.Event(), threading.Event(), Counter[str]()
        self.may_go_on.set()
        take, compare = SnapshotRun.step, Comparison._compare_rows

        def step(run: SnapshotRun, progress: SnapshotProgress) -> float:
            return take(run, progress) if self._goes_on("snapshot", progress.rows) else 0.01

        def compare_rows(comparison: Comparison) -> None:
            if self._goes_on("reconcile", comparison._session.index.rows):
                compare(comparison)

        for owner, name, value in (
            (SnapshotRun, "step", step), (Comparison, "_compare_rows", compare_rows),
            (CaptureSession, "PAGE", 100), (DigestIndex, "CHUNK", 100),
        ):  # fmt: skip
            monkeypatch.setattr(owner, name, value)

    def _goes_on(self, kind: str, rows: int) -> bool:
        if rows >= 600 and not self.may_go_on.is_set():
            self.rests.set()
            return False
        self.pages[kind] += 1
        return True


@pytest.mark.parametrize(("kind", "meanwhile"), [("snapshot", ""), ("snapshot", "reconcile"), ("reconcile", "")])
def test_what_is_asked_for_goes_on_where_a_restart_stopped_it(
    running: Running, monkeypatch: pytest.MonkeyPatch, kind: CaptureRequest, meanwhile: CaptureRequest | Literal[""]
) -> None:
    """What is asked for meanwhile is done, too."""
    paused = Paused(monkeypatch)
    running.source.sql(f"INSERT INTO {running.source.name} (name) SELECT seq FROM seq_1_to_1200")
    running.start()
    running.until(lambda row, _: row.phase == "polling", "it polls")
    paused.may_go_on.clear()
    request = running.captures.ask(running.source.name, kind, ME)
    wait_until(lambda: running.figures and paused.rests.is_set(), what="a part is done")
    if meanwhile:
        request = running.captures.ask(running.source.name, meanwhile, ME)
    running.stop()
    paused.pages.clear()
    paused.may_go_on.set()
    running.start()
    running.until(lambda row, _: row.answered_request_id == request and row.answer == "", "it is answered")
    # Of 12 pages, 6 are read before. After a snapshot all rows are compared.
    assert paused.pages[kind] in (6, 7)
    assert paused.pages["reconcile"] >= 12 or kind == "reconcile"
    assert running.source.same()


def test_columns_that_change_are_taken_over_and_older_rows_brought_up(running: Running) -> None:
    name = running.source.name
    running.source.sql(*(f"INSERT INTO {name} (name) VALUES ('{i}')" for i in range(5)))
    running.start()
    running.until(lambda row, _: row.low is not None, "it polls")
    running.source.sql(f"ALTER TABLE {name} ADD COLUMN size INT NOT NULL DEFAULT 7")
    wait_until(running.source.same, what="the new column is in all rows")
    running.source.sql(f"ALTER TABLE {name} CHANGE COLUMN size weight BIGINT NULL")
    wait_until(running.source.same, what="the renamed column is in all rows")
    running.source.sql(f"ALTER TABLE {name} MODIFY COLUMN weight VARCHAR(20)")
    wait_until(running.source.same, what="the new type is in all rows")
    running.source.sql(f"ALTER TABLE {name} DROP COLUMN weight")
    wait_until(running.source.same, what="the column is gone from all rows")
    running.source.sql(f"ALTER TABLE {name} DROP COLUMN changed")
    running.until(lambda _, f: f.state == "failing", "it fails without its cursor")
    assert "changed" in (running.figures.error or "")


def test_a_comparison_comes_by_itself_when_it_is_due(running: Running) -> None:
    running.source.sql(f"INSERT INTO {running.source.name} (name) VALUES ('a'), ('b')")
    running.start(more="RECONCILE EVERY 1 SECOND")
    running.until(lambda row, _: row.low is not None, "it polls")
    running.source.sql(f"DELETE FROM {running.source.name} WHERE id = 1")
    wait_until(running.source.same, what="the row is gone from the topic")
    running.until(lambda row, _: row.drift is not None and row.drift["why"] == "it is time", "what it found is told")


def test_a_comparison_comes_by_itself_if_nobody_knows_of_one(
    running: Running, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.source.sql(f"INSERT INTO {running.source.name} (name) VALUES ('a'), ('b')")
    running.start()
    running.until(lambda row, _: row.low is not None, "it polls")
    running.stop()
    running.source.sql(f"DELETE FROM {running.source.name} WHERE id = 1")
    for file in (home / "captures").glob("*"):
        file.unlink()
    monkeypatch.setattr("penstock.capture.reconcile.schedule.START_SPREAD_SECONDS", 0.0)
    running.start(more="RECONCILE NEVER")
    running.until(lambda row, _: row.polls > 5, "it polls")
    assert running.row.drift is None
    running.start()
    running.until(lambda row, _: row.drift is not None and row.drift["extra"] == 1, "it compares")
    assert running.source.same()


def test_a_row_that_is_put_aside_is_told(running: Running) -> None:
    name = running.source.name
    running.source.sql(f"ALTER TABLE {name} ADD COLUMN body LONGTEXT", f"INSERT INTO {name} (name) VALUES ('a')")
    with running.source.cursor() as cursor:
        cursor.execute(f"INSERT INTO {name} (body) VALUES (%s)", (random.Random(7).randbytes(100_000).hex(),))
    running.start(more="LARGEST 64 KB")
    running.until(lambda row, f: row.dead_letter_rows == {"rows": 1, "first": '{"id":2}'} and f.dead == 1, "it is told")
    assert len(running.source.topic()) == 1


# Each reconcile that repaired records is one asset event.

REPAIRS = {
    "mark_compared": "UPDATE {} SET name = 'unseen', changed = '2020-01-01' WHERE id = 2",
    "mark_removed": "DELETE FROM {} WHERE id = 2",
}


def hidden_change(running: Running, statement: str) -> None:
    """Make a change that no poll can see, while the capture is stopped."""
    running.start(more="RECONCILE NEVER")
    running.until(lambda row, _: row.low is not None, "it polls")
    running.stop()
    running.source.sql(statement.format(running.source.name))


def test_a_kill_between_a_repair_and_its_note_loses_no_event(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    running.source.sql(f"INSERT INTO {running.source.name} (name) SELECT seq FROM seq_1_to_10")
    for events, (step, statement) in enumerate(REPAIRS.items(), start=1):
        hidden_change(running, statement)
        note, deaths = getattr(DigestIndex, step), [RuntimeError("killed")]

        def dies_once(*args: object, note: Any = note, deaths: list[RuntimeError] = deaths) -> None:
            if running.source.same() and deaths:
                raise deaths.pop()
            note(*args)

        with monkeypatch.context() as patched:
            patched.setattr(DigestIndex, step, dies_once)
            running.start()
            assert running.asked("reconcile") == "killed"
        assert running.asked("poll") == "", "it is compared to the end"
        assert running.events() == events
        assert running.asked("reconcile") == ""
        assert running.events() == events, "nothing was repaired"


def test_a_reconcile_that_is_started_anew_is_one_event_with_what_it_had_repaired(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DigestIndex, "CHUNK", 5)
    running.source.sql(f"INSERT INTO {running.source.name} (name) SELECT seq FROM seq_1_to_30")
    hidden_change(running, REPAIRS["mark_compared"])
    running.start(more="RECONCILE EVERY 1 SECOND RATE 10")
    wait_until(lambda: running.figures and running.source.same(), what="the row is repaired")
    assert running.row.reconcile == "it is time"
    assert running.asked("reconcile") == ""
    assert running.events() == 1


def test_reconciles_that_end_while_the_control_database_is_away_are_events(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: CaptureRow) -> None:
        raise ControlError("the control database does not answer")

    running.source.sql(f"INSERT INTO {running.source.name} (name) SELECT seq FROM seq_1_to_10")
    hidden_change(running, REPAIRS["mark_removed"])
    with monkeypatch.context() as patched:
        patched.setattr(running.captures, "report", away)
        running.start(more="RECONCILE EVERY 1 SECOND")
        assert running.run
        told = running.run.row
        for statement in ("SELECT 1", REPAIRS["mark_compared"].replace("= 2", "= 3")):
            running.source.sql(statement.format(running.source.name))
            wait_until(lambda: running.figures and running.source.same(), what="it is repaired")
            wait_until(lambda: told.drift is not None and repaired(told.drift) > 0, what="its end is known")
        wait_until(lambda: told.drift is not None and repaired(told.drift) == 0, what="a later one finds nothing")
        assert running.events() == 0
    assert running.row
    assert running.events() == 2


def repaired(drift: dict[str, int]) -> int:
    return drift["missing"] + drift["differing"] + drift["extra"]
