"""The history of streams: their reports of some days, and of older ones what is left of each hour."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, and_, case, delete, func, insert, literal_column, or_, select
from sqlalchemy.sql import ColumnElement

from penstock.control import tables as s
from penstock.control.database import ControlDatabase
from penstock.settings import settings

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
# Days for which the hours are kept.
HOURLY_DAYS = 400
# Of the time of a batch.
BATCH_PARTS = s.BATCH_TIMES[1:]
# Figures that the history has as they were reported.
HISTORY_FIGURES = (
    "rows_per_s", *s.BATCH_TIMES, "lag", "state_rows", "state_bytes", "rows_in", "rows_out", "late", "dead",
    "restarts",
)  # fmt: skip
FIGURES = (*HISTORY_FIGURES, "batch_age_ms", "watermark_age_ms")
_COUNTED = ("late", "dead")


class HistoryRepository(ControlDatabase):
    """Rates, lags, times and sizes of streams in the past."""

    def history(self, since_ms: int, names: Collection[str] | None = None) -> list[Mapping[str, Any]]:
        """Reports with `at` later than since_ms, oldest first, of some streams or of all."""
        query = select(s.history).where(s.history.c.at > since_ms).order_by(s.history.c.at)
        if names is not None:
            query = query.where(s.history.c.name.in_(names))
        with self.begin() as c:
            return [dict(row) for row in c.execute(query).mappings()]

    def history_steps(self, names: Collection[str], since_ms: int, step_ms: int) -> list[Mapping[str, Any]]:
        """The history of streams in steps, oldest first; a step without a report is left out.

        Args:
            names: Names of the streams.
            since_ms: Epoch milliseconds; of its step, all is taken.
            step_ms: Milliseconds of a step. Where only hours are left, steps are not shorter than these.

        Returns:
            Rows with `name`, `at`, the beginning of the step, and `FIGURES`: the mean of `rows_per_s`, and the greatest
            value of all others. Those that count (`rows_in`, `rows_out`, `late`, `dead`, `restarts`) so have their
            last one.
        """
        since = since_ms // step_ms * step_ms
        with self.begin() as c:
            found = [
                dict(row)
                for table in (s.hourly_history, s.history)
                for row in c.execute(
                    _steps(table, step_ms).where(table.c.name.in_(names), table.c.at >= since)
                ).mappings()
            ]
        # The step in which reports follow hours is in both.
        by_step = {(row["at"], row["name"]): row for row in found}
        return [by_step[place] for place in sorted(by_step)]

    def spark_steps(self, names: Collection[str], since_ms: int, step_ms: int) -> list[Mapping[str, Any]]:
        """The mean `rows_per_s` and the greatest `lag` of streams in steps, in order of names and times.

        Args:
            names: Names of the streams.
            since_ms: Epoch milliseconds; of its step, all is taken. Hours that are left of older reports are left out.
            step_ms: Milliseconds of a step.
        """
        steps = _steps(s.history, step_ms, ("rows_per_s", "lag"))
        recent = steps.where(s.history.c.name.in_(names), s.history.c.at >= since_ms // step_ms * step_ms)
        with self.begin() as c:
            return [dict(row) for row in c.execute(recent.order_by("name", "at")).mappings()]

    def history_totals(self, at_ms: int, step_ms: int, delays: Mapping[str, int]) -> Mapping[str, Any]:
        """Totals of all streams in one step.

        Args:
            at_ms: Epoch milliseconds of its beginning.
            step_ms: Its milliseconds.
            delays: By stream, milliseconds that its watermark is behind by declaration, which is no age of it.

        Returns:
            The sums over streams of the mean `rows_per_s`, of the greatest `lag` and `state_bytes`, and of how much
            `late` and `dead` rose since the step before, if the stream reported in it; and the greatest
            `watermark_age_ms`. None if it is unknown of all streams.
        """
        h = s.history.c
        within = h.at >= at_ms
        figures = [func.avg(case((within, h.rows_per_s))).label("rows_per_s")]
        figures += [
            func.max(case((within, h[name]))).label(name) for name in ("lag", "state_bytes", "watermark_age_ms")
        ]
        for name in _COUNTED:
            begin = func.coalesce(func.max(case((~within, h[name]))), func.min(case((within, h[name]))))
            figures.append((func.max(case((within, h[name]))) - begin).label(name))
        both = (h.at >= at_ms - step_ms) & (h.at < at_ms + step_ms)
        one = select(h.name, *figures).where(both).group_by(h.name).subquery().c
        totals = [func.sum(one[name]).label(name) for name in ("rows_per_s", "lag", "state_bytes")]
        totals.append(func.max(one.watermark_age_ms - _delay(one.name, delays)).label("watermark_age_ms"))
        # A stream that was reset counts from 0.
        totals += [func.sum(case((one[name] > 0, one[name]), else_=0)).label(name) for name in _COUNTED]
        with self.begin() as c:
            return {name: _number(value) for name, value in c.execute(select(*totals)).mappings().one().items()}

    def restarts(self, since: Mapping[str, int]) -> dict[str, int]:
        """The smallest count of restarts of each stream in its reports since a time. since: epoch ms by stream."""
        h = s.history.c
        wanted = or_(*(and_(h.name == name, h.at >= at) for name, at in since.items()))
        query = select(h.name, func.min(h.restarts).label("restarts")).where(wanted).group_by(h.name)
        with self.begin() as c:
            return {row.name: row.restarts for row in c.execute(query)}

    def counts(self, since_ms: int, names: Collection[str] | None = None) -> dict[str, Mapping[str, int]]:
        """The smallest `late` and `dead` in the history after `since_ms`, of streams whose present counts are not 0.

        Args:
            since_ms: Epoch milliseconds.
            names: Of these streams only.
        """
        h, p = s.history.c, s.progress.c
        recent = s.history.join(s.progress, (h.name == p.name) & (h.at > since_ms))
        query = select(h.name, func.min(h.late).label("late"), func.min(h.dead).label("dead")).select_from(recent)
        if names is not None:
            query = query.where(h.name.in_(names))
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


def _steps(table: Table, step_ms: int, figures: Sequence[str] = FIGURES) -> Select[Any]:
    at: ColumnElement[int] = table.c.at - table.c.at % literal_column(str(int(step_ms)))
    columns = [(func.avg if name == "rows_per_s" else func.max)(table.c[name]).label(name) for name in figures]
    return select(table.c.name, at.label("at"), *columns).group_by(table.c.name, at)


def _delay(name: ColumnElement[str], delays: Mapping[str, int]) -> ColumnElement[int]:
    """The delay of a stream by its name. Few streams have one of their own."""
    streams: dict[int, list[str]] = {}
    for stream, delay in delays.items():
        streams.setdefault(delay, []).append(stream)
    none: ColumnElement[int] = literal_column("0")
    delayed: list[tuple[Any, Any]] = [(name.in_(names), literal_column(str(delay))) for delay, names in streams.items()]
    return case(*delayed, else_=none) if delayed else none


def _number(value: Any) -> int | float | None:
    """A sum: servers give those of integers as decimals."""
    return value if value is None or isinstance(value, float) else int(value)
