"""The history of streams: their reports of some days, and of older ones what is left of each hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, literal_column, select
from sqlalchemy.sql import ColumnElement

from penstock.control import tables as s
from penstock.control.database import ControlDatabase
from penstock.settings import settings

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
# Days for which the hours are kept.
HOURLY_DAYS = 400
# Figures that the history has as they were reported.
HISTORY_FIGURES = (
    "rows_per_s", "batch_ms", "lag", "state_rows", "state_bytes", "rows_in", "rows_out", "late", "dead", "restarts",
)  # fmt: skip
FIGURES = (*HISTORY_FIGURES, "batch_age_ms", "watermark_age_ms")


class HistoryRepository(ControlDatabase):
    """Rates, lags, times and sizes of streams in the past."""

    def history(self, since_ms: int, name: str | None = None) -> list[Mapping[str, Any]]:
        """Reports with `at` later than since_ms, oldest first."""
        query = select(s.history).where(s.history.c.at > since_ms).order_by(s.history.c.at)
        if name is not None:
            query = query.where(s.history.c.name == name)
        with self.begin() as c:
            return [dict(row) for row in c.execute(query).mappings()]

    def history_steps(self, name: str, since_ms: int, step_ms: int) -> list[Mapping[str, Any]]:
        """The history of a stream in steps, oldest first; a step without a report is left out.

        Args:
            name: Name of the stream.
            since_ms: Epoch milliseconds; of its step, all is taken.
            step_ms: Milliseconds of a step. Where only hours are left, steps are not shorter than these.

        Returns:
            Rows with `at`, the beginning of the step, and `FIGURES`: the mean of `rows_per_s`, and the greatest value
            of all others. Those that count (`rows_in`, `rows_out`, `late`, `dead`, `restarts`) so have their last one.
        """
        since = since_ms // step_ms * step_ms
        with self.begin() as c:
            found = [
                dict(row)
                for table in (s.hourly_history, s.history)
                for row in c.execute(_steps(table, step_ms).where(table.c.name == name, table.c.at >= since)).mappings()
            ]
        # The step in which reports follow hours is in both.
        by_step = {row["at"]: row for row in found}
        return [by_step[at] for at in sorted(by_step)]

    def counts(self, since_ms: int) -> dict[str, Mapping[str, int]]:
        """The smallest `late` and `dead` in the history after `since_ms`, of streams whose present counts are not 0."""
        h, p = s.history.c, s.progress.c
        recent = s.history.join(s.progress, (h.name == p.name) & (h.at > since_ms))
        query = select(h.name, func.min(h.late).label("late"), func.min(h.dead).label("dead")).select_from(recent)
        with self.begin() as c:
            result = c.execute(query.where((p.late > 0) | (p.dead > 0)).group_by(h.name)).mappings()
            return {row["name"]: {"late": row["late"], "dead": row["dead"]} for row in result}


def fold_old_reports(c: Connection, names: Iterable[str], now: int) -> None:
    """Replace the reports of some streams that are older than `PENSTOCK_HISTORY_DAYS` by their hours.

    Args:
        c: In the transaction that has reported these streams.
        names: Names of the streams.
        now: Epoch milliseconds of the database.
    """
    history, hourly = s.history, s.hourly_history
    end = (now - int(settings().history_days * DAY_MS)) // HOUR_MS * HOUR_MS
    old = history.c.name.in_(sorted(names)) & (history.c.at < end)
    hours = c.execute(_steps(history, HOUR_MS).where(old)).mappings().all()
    for row in hours:
        # The former driver of the app may fold the same at the same time.
        c.execute(delete(hourly).where(hourly.c.name == row["name"], hourly.c.at == row["at"]))
        c.execute(insert(hourly).values(**row))
    if hours:
        c.execute(delete(history).where(old))
    # What nobody reports any more is deleted a day later.
    c.execute(delete(history).where(history.c.at < end - DAY_MS))
    c.execute(delete(hourly).where(hourly.c.at < now - HOURLY_DAYS * DAY_MS))


def _steps(table: Table, step_ms: int) -> Any:
    at: ColumnElement[int] = table.c.at - table.c.at % literal_column(str(int(step_ms)))
    figures = [func.avg(table.c.rows_per_s).label("rows_per_s")]
    figures += [func.max(table.c[name]).label(name) for name in FIGURES if name != "rows_per_s"]
    return select(table.c.name, at.label("at"), *figures).group_by(table.c.name, at)
