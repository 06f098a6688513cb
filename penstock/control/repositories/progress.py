"""What drivers report of their streams, and the history of it that feeds the charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.exc import SQLAlchemyError

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, bounded, rows, upsert
from penstock.control.rows import ProgressRow, StreamProgress

HISTORY_MS = 24 * 3600 * 1000
# Figures that the history takes over as they were reported.
KEPT = (
    "rows_per_s", "batch_ms", "lag", "state_rows", "state_bytes", "rows_in", "rows_out", "late", "dead", "restarts",
)  # fmt: skip


class ProgressRepository(ControlDatabase):
    """The last figures of each stream, and a day of earlier ones."""

    def report(self, progress: Iterable[ProgressRow], *, keep: bool) -> dict[str, str]:
        """Upsert the progress of streams; with keep, add each to the history that feeds the charts.

        What is declared no longer is left out: the driver that still runs it learns of that later. Returns why the
        database refused rows, by stream; the others are written.
        """
        refused: dict[str, str] = {}
        with self.begin() as c:
            now = c.execute(select(s.now_ms())).scalar_one()
            given = list(progress)
            names = {row.name for row in given}
            known = set(c.execute(select(s.stream.c.name).where(s.stream.c.name.in_(names))).scalars())
            mine = [row for row in given if row.name in known]
            if _refusal(c, mine, now, keep=keep):
                # Each by itself: this takes three round trips a row.
                whys = {row.name: _refusal(c, [row], now, keep=keep) for row in mine}
                refused = {name: why for name, why in whys.items() if why}
            if keep:
                c.execute(delete(s.history).where(s.history.c.at < now - HISTORY_MS))
        return refused

    def progress(self, app: str | None = None) -> dict[str, ProgressRow]:
        query = select(s.progress)
        if app is not None:
            query = query.where(s.progress.c.app == app)
        with self.begin() as c:
            return {row.name: row for row in rows(ProgressRow, c.execute(query).mappings())}

    def stream_progress(self) -> tuple[int, dict[str, StreamProgress]]:
        """The database's clock, and how far each stream that is known is."""
        p = s.progress.c
        figures = (p.state, p.reported_at, p.behind_ms)
        query = select(s.now_ms().label("now"), s.stream.c.name, s.stream.c.desired, *figures)
        with self.begin() as c:
            found = c.execute(query.outerjoin_from(s.stream, s.progress, s.stream.c.name == p.name)).all()
        now = found[0].now if found else 0
        return now, {
            r.name: StreamProgress(
                r.desired,
                r.state or "",
                r.reported_at or 0,
                None if r.behind_ms is None else r.reported_at - r.behind_ms,
            )
            for r in found
        }

    def history(self, since_ms: int, name: str | None = None) -> list[Mapping[str, Any]]:
        """Rows of the history with `at` later than since_ms, oldest first."""
        query = select(s.history).where(s.history.c.at > since_ms).order_by(s.history.c.at)
        if name is not None:
            query = query.where(s.history.c.name == name)
        with self.begin() as c:
            return [dict(row) for row in c.execute(query).mappings()]

    def counts(self, since_ms: int) -> dict[str, Mapping[str, int]]:
        """Of each stream that counts any now, the least of its counts `late` and `dead` in the history later than
        since_ms."""
        h, p = s.history.c, s.progress.c
        lately = s.history.join(s.progress, (h.name == p.name) & (h.at > since_ms))
        query = select(h.name, func.min(h.late).label("late"), func.min(h.dead).label("dead")).select_from(lately)
        with self.begin() as c:
            found = c.execute(query.where((p.late > 0) | (p.dead > 0)).group_by(h.name)).mappings()
            return {row["name"]: {"late": row["late"], "dead": row["dead"]} for row in found}


def _refusal(c: Connection, given: Sequence[ProgressRow], now: int, *, keep: bool) -> str:
    """Write rows, all or none; why the database refuses them, or empty."""
    try:
        with c.begin_nested():
            for row in given:
                _write(c, row, now, keep=keep)
    except (SQLAlchemyError, ValueError, TypeError, OverflowError) as e:
        if getattr(e, "connection_invalidated", False):
            raise
        return f"{type(e).__name__}: {getattr(e, 'orig', None) or e}"
    return ""


def _write(c: Connection, row: ProgressRow, now: int, *, keep: bool) -> None:
    values = bounded(s.progress, {**asdict(row), "reported_at": now})
    upsert(c, s.progress, values.pop("name"), **values)
    if keep:
        ages = {
            "batch_age_ms": None if row.batch_at is None else max(0, now - row.batch_at),
            "watermark_age_ms": None if row.watermark is None else now - row.watermark,
        }
        kept = bounded(s.history, {**ages, **{k: values[k] for k in KEPT}})
        c.execute(insert(s.history).values(name=row.name, at=now, **kept))
