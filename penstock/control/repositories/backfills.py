"""Progress and results of backfill runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from sqlalchemy import delete, func, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, bounded, insert_if_new, rows

OpenRunState = Literal["running", "waiting", "verifying"]
FinalRunState = Literal["done", "failed", "stopped"]
RunState = OpenRunState | FinalRunState

KEEP_MS = 90 * 24 * 3600 * 1000


@dataclass(frozen=True)
class BackfillRow:
    """A run of a backfill. Times are epoch ms by the database's clock, except for the interval of event time.

    Attributes:
        run: The backfill's name, interval and target; a run that is resumed has the same row.
        begin: Start of the interval; None if it is open.
        end: End of the interval; None if it is open.
        why: What the run waits for, or the error.
        files: Number of files to read.
        rows: Number of rows to read; 0 if it is unknown.
        rate: Rows per second, lately.
        remaining_ms: Estimated.
        verified: Result of the verification, in a sentence.
        attempts: How often the run was started.
        owner: Task instance or user@host.
        started_at: Start of the last attempt.
    """

    run: str
    name: str
    begin: int | None
    end: int | None
    target: str
    dry: bool
    state: RunState
    why: str
    files: int
    files_done: int
    rows: int
    rows_done: int
    rate: float
    remaining_ms: int | None
    verified: str
    attempts: int
    owner: str
    started_at: int
    reported_at: int
    ended_at: int | None


class BackfillCounts(TypedDict, total=False):
    """How far a run is; see `BackfillRow`. A key that is missing leaves its column unchanged."""

    files: int
    files_done: int
    rows: int
    rows_done: int
    verified: str


class BackfillReport(BackfillCounts, total=False):
    """The report of an open run. A state without a `why` clears it."""

    state: OpenRunState
    why: str
    rate: float
    remaining_ms: int | None


class BackfillRepository(ControlDatabase):
    """One row for each run: a backfill of an interval to a target."""

    def begin_backfill(
        self,
        run: str,
        *,
        name: str,
        target: str,
        owner: str,
        begin: int | None = None,
        end: int | None = None,
        dry: bool = False,
        files: int = 0,
        files_done: int = 0,
        rows: int = 0,
        rows_done: int = 0,
    ) -> int:
        """Record that a run starts or is resumed, and delete the rows of runs older than `KEEP_MS`.

        Returns:
            The number of attempts, this one included.
        """
        t = s.backfill_run
        values = {
            "name": name, "begin": begin, "end": end, "target": target, "dry": dry, "owner": owner,
            "files": files, "files_done": files_done, "rows": rows, "rows_done": rows_done,
            "state": "running", "why": "", "rate": 0.0, "remaining_ms": None, "verified": "", "ended_at": None,
        }  # fmt: skip
        with self.begin() as c:
            c.execute(delete(t).where(t.c.reported_at < s.now_ms() - KEEP_MS))
            insert_if_new(c, t, run=run, attempts=0, started_at=0, reported_at=0, **values)
            attempt = {"attempts": t.c.attempts + 1, "started_at": s.now_ms(), "reported_at": s.now_ms()}
            c.execute(update(t).where(t.c.run == run).values(**values, **attempt))
            return int(c.execute(select(t.c.attempts).where(t.c.run == run)).scalar_one())

    def report_backfill(self, run: str, **figures: Unpack[BackfillReport]) -> None:
        """Report how far a run is. A run that does not report for two minutes counts as silent.

        The row of a run that has ended is not changed.
        """
        values = {"why": "", **figures} if "state" in figures else {**figures}
        self._set(run, values)

    def end_backfill(self, run: str, state: FinalRunState, why: str = "", **counts: Unpack[BackfillCounts]) -> None:
        """Record how a run ended; a second call changes nothing until the run is started again."""
        values = {**counts, "state": state, "why": why, "rate": 0.0, "remaining_ms": None, "ended_at": s.now_ms()}
        self._set(run, values)

    def backfill_runs(self, limit: int = 50, offset: int = 0) -> list[BackfillRow]:
        """The runs that reported last, after the first `offset` of them, in descending order of their start."""
        t = s.backfill_run
        query = select(t).order_by(t.c.reported_at.desc(), t.c.run).limit(limit).offset(offset)
        with self.begin() as c:
            latest = rows(BackfillRow, c.execute(query).mappings())
        return sorted(latest, key=lambda row: row.started_at, reverse=True)

    def backfill_run_count(self) -> int:
        """The number of runs."""
        with self.begin() as c:
            return int(c.execute(select(func.count()).select_from(s.backfill_run)).scalar_one())

    def last_backfill_runs(self) -> dict[str, BackfillRow]:
        """The run of each backfill that started last, by the name of the backfill."""
        t = s.backfill_run.c
        last = select(t.name, func.max(t.started_at).label("started_at")).group_by(t.name).subquery().c
        query = select(s.backfill_run).where(t.name == last.name, t.started_at == last.started_at).order_by(t.run)
        with self.begin() as c:
            return {row.name: row for row in rows(BackfillRow, c.execute(query).mappings())}

    def _set(self, run: str, values: dict[str, object]) -> None:
        t = s.backfill_run
        with self.begin() as c:
            is_open = (t.c.run == run) & t.c.ended_at.is_(None)
            c.execute(update(t).where(is_open).values(reported_at=s.now_ms(), **bounded(t, values)))
