"""How far the runs of backfills are, and how they ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from sqlalchemy import delete, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, bounded, insert_if_new, rows

OpenRunState = Literal["running", "waiting", "verifying"]
FinalRunState = Literal["done", "failed", "stopped"]
RunState = OpenRunState | FinalRunState

KEEP_MS = 90 * 24 * 3600 * 1000


@dataclass(frozen=True)
class BackfillRow:
    """A run of a backfill. Times are epoch ms by the database's clock, but for the interval, which is of event time.

    run: the backfill's name, interval and target; a run that is taken up again has the same row. begin, end: None for
    open; why: what it waits for, or the error; files, rows: how many there are to be read, rows 0 if nobody knows;
    rate: rows a second, lately; left_ms: estimated; verified: what the verification found, in a sentence; tries: how
    often it was begun; owner: task instance or user@host; started_at: when it was last begun.
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
    left_ms: int | None
    verified: str
    tries: int
    owner: str
    started_at: int
    reported_at: int
    ended_at: int | None


class BackfillCounts(TypedDict, total=False):
    """How far a run is; see `BackfillRow`. What is not given stays as it was."""

    files: int
    files_done: int
    rows: int
    rows_done: int
    verified: str


class BackfillReport(BackfillCounts, total=False):
    """What a run says of itself while it goes on. A state that is given without a why has none."""

    state: OpenRunState
    why: str
    rate: float
    left_ms: int | None


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
        """Say that a run begins, or is taken up again; how often it has begun by now. Old ones are forgotten."""
        t = s.backfill_run
        of_run = {"name": name, "begin": begin, "end": end, "target": target, "dry": dry, "owner": owner}
        counts = {"files": files, "files_done": files_done, "rows": rows, "rows_done": rows_done}
        anew = {"state": "running", "why": "", "rate": 0.0, "left_ms": None, "verified": "", "ended_at": None}
        with self.begin() as c:
            c.execute(delete(t).where(t.c.reported_at < s.now_ms() - KEEP_MS))
            insert_if_new(c, t, run=run, tries=0, started_at=0, reported_at=0, **of_run, **counts, **anew)
            now = {"started_at": s.now_ms(), "reported_at": s.now_ms()}
            c.execute(update(t).where(t.c.run == run).values(tries=t.c.tries + 1, **of_run, **counts, **anew, **now))
            return int(c.execute(select(t.c.tries).where(t.c.run == run)).scalar_one())

    def report_backfill(self, run: str, **figures: Unpack[BackfillReport]) -> None:
        """Say how far a run is, and that it lives: every few seconds, else it counts as silent after two minutes
        (observe.alarms). Of a run that has ended nothing is changed."""
        values = {"why": "", **figures} if "state" in figures else {**figures}
        self._set(run, values)

    def end_backfill(self, run: str, state: FinalRunState, why: str = "", **counts: Unpack[BackfillCounts]) -> None:
        """Say how a run ended; the first end stands until it is begun again."""
        values = {**counts, "state": state, "why": why, "rate": 0.0, "left_ms": None, "ended_at": s.now_ms()}
        self._set(run, values)

    def backfill_runs(self, limit: int = 50) -> list[BackfillRow]:
        """The runs that were heard of last; of these the newest first."""
        t = s.backfill_run
        query = select(t).order_by(t.c.reported_at.desc(), t.c.run).limit(limit)
        with self.begin() as c:
            found = rows(BackfillRow, c.execute(query).mappings())
        return sorted(found, key=lambda row: row.started_at, reverse=True)

    def _set(self, run: str, values: dict[str, object]) -> None:
        t = s.backfill_run
        with self.begin() as c:
            going = (t.c.run == run) & t.c.ended_at.is_(None)
            c.execute(update(t).where(going).values(reported_at=s.now_ms(), **bounded(t, values)))
