"""Progress of streams as reported by their drivers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, fields

from sqlalchemy import Connection, insert, null, select
from sqlalchemy.exc import SQLAlchemyError

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, bounded, first_row, upsert
from penstock.control.repositories.apps import LISTED
from penstock.control.repositories.history import HISTORY_FIGURES, fold_old_reports
from penstock.control.rows import ProgressRow, StreamProgress


class ProgressRepository(ControlDatabase):
    """The last report of each stream."""

    def report(self, progress: Iterable[ProgressRow], *, keep: bool) -> dict[str, str]:
        """Upsert the progress of streams. Streams that are forgotten are left out.

        Args:
            progress: The reports.
            keep: Whether to add them to the history.

        Returns:
            Why the database refused a report, by stream; the others are written.
        """
        refused: dict[str, str] = {}
        with self.begin() as c:
            now = c.execute(select(s.now_ms())).scalar_one()
            reported = list(progress)
            names = {row.name for row in reported}
            known = set(c.execute(select(s.stream.c.name).where(s.stream.c.name.in_(names))).scalars())
            writable = [row for row in reported if row.name in known]
            if _refusal(c, writable, now, keep=keep):
                # One by one, to find the refused rows: three round trips for each.
                reasons = {row.name: _refusal(c, [row], now, keep=keep) for row in writable}
                refused = {name: reason for name, reason in reasons.items() if reason}
            if keep:
                fold_old_reports(c, names, now)
        return refused

    def progress(self, app: str | None = None, *, without: Collection[str] = ()) -> dict[str, ProgressRow]:
        """The last report of each stream, by name.

        Args:
            app: Only of this app.
            without: Fields that may be None, and are not read.
        """
        names = [field.name for field in fields(ProgressRow)]
        # By position: by name it takes a third longer, and the page reads thousands of rows at a time.
        query = select(*(null().label(name) if name in without else s.progress.c[name] for name in names))
        if app is not None:
            query = query.where(s.progress.c.app == app)
        with self.begin() as c:
            return {row.name: ProgressRow(*row) for row in c.execute(query)}

    def reporters(self, app: str) -> dict[str, str]:
        """The incarnation of the driver that reported last of each stream of an app, by name."""
        p = s.progress.c
        with self.begin() as c:
            return {row.name: row.incarnation for row in c.execute(select(p.name, p.incarnation).where(p.app == app))}

    def progress_of(self, name: str) -> ProgressRow | None:
        """The last report of a stream; None if it has not started yet."""
        with self.begin() as c:
            return first_row(ProgressRow, c.execute(select(s.progress).where(s.progress.c.name == name)).mappings())

    def stream_progress(self) -> tuple[int, dict[str, StreamProgress]]:
        """The database's clock, and the progress of each declared stream."""
        p = s.progress.c
        figures = (p.state, p.reported_at, p.behind_ms, p.state_rows)
        query = select(s.now_ms().label("now"), s.stream.c.name, s.stream.c.desired, *figures)
        with self.begin() as c:
            joined = query.outerjoin_from(s.stream, s.progress, s.stream.c.name == p.name)
            result = c.execute(joined.where(LISTED)).all()
        now = result[0].now if result else 0
        return now, {
            r.name: StreamProgress(
                r.desired,
                r.state or "",
                r.reported_at or 0,
                None if r.behind_ms is None else r.reported_at - r.behind_ms,
                r.state_rows,
            )
            for r in result
        }


def _refusal(c: Connection, reports: Sequence[ProgressRow], now: int, *, keep: bool) -> str:
    """Write all reports or none; returns why the database refuses them, or an empty text."""
    try:
        with c.begin_nested():
            for row in reports:
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
        figures = bounded(s.history, {**ages, **{k: values[k] for k in HISTORY_FIGURES}})
        c.execute(insert(s.history).values(name=row.name, at=now, **figures))
