"""Faults that last, and those of the past."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, bounded, insert_if_new, rows
from penstock.control.repositories.history import DAY_MS
from penstock.control.rows import Fault, FaultRow

# A fault that comes back within this time has not ended.
PAUSE_MS = 60_000
PAST_DAYS = 400


class FaultRepository(ControlDatabase):
    """Faults, as the meter notes them."""

    def note_faults(self, faults: Sequence[Fault]) -> tuple[list[Fault], list[FaultRow]]:
        """Note all faults that there are now: others end, and one that ended a moment ago goes on.

        Returns:
            The faults that are new, and the rows of those that have ended.
        """
        f = s.fault.c
        with self.begin() as c:
            now = c.execute(select(s.now_ms())).scalar_one()
            late = f.ended_at.is_(None) | (f.ended_at > now - PAUSE_MS)
            known = {(row.kind, row.name): row for row in rows(FaultRow, c.execute(_ordered(late)).mappings())}
            for fault in faults:
                values = bounded(s.fault, {"app": fault.app, "state": fault.state, "reason": fault.reason})
                if row := known.get((fault.kind, fault.name)):
                    c.execute(update(s.fault).where(_key(row)).values(**values, ended_at=None))
                else:
                    insert_if_new(c, s.fault, kind=fault.kind, name=fault.name, since=now, **values)
            present = {(fault.kind, fault.name) for fault in faults}
            ended = [row for key, row in known.items() if key not in present and row.ended_at is None]
            for row in ended:
                c.execute(update(s.fault).where(_key(row)).values(ended_at=now))
            c.execute(delete(s.fault).where(f.ended_at < now - PAST_DAYS * DAY_MS))
        return [fault for fault in faults if (fault.kind, fault.name) not in known], ended

    def faults(self, past: int = 50) -> list[FaultRow]:
        """The faults that last, the oldest first, then the last of those that have ended, the newest first."""
        f = s.fault.c
        with self.begin() as c:
            lasting = rows(FaultRow, c.execute(_ordered(f.ended_at.is_(None))).mappings())
            ended = select(s.fault).where(f.ended_at.is_not(None)).order_by(f.ended_at.desc()).limit(past)
            return [*lasting, *rows(FaultRow, c.execute(ended).mappings())]

    def past_faults(self, kinds: Collection[str], name: str, limit: int = 50) -> list[FaultRow]:
        """The last faults of something that have ended, the newest first.

        Args:
            kinds: What it may be, see `Fault`.
            name: Its name.
            limit: How many at most.
        """
        f = s.fault.c
        query = select(s.fault).where(f.kind.in_(kinds), f.name == name, f.ended_at.is_not(None))
        with self.begin() as c:
            return rows(FaultRow, c.execute(query.order_by(f.ended_at.desc()).limit(limit)).mappings())


def _ordered(condition: ColumnElement[bool]) -> Select[Any]:
    return select(s.fault).where(condition).order_by(s.fault.c.since)


def _key(row: FaultRow) -> ColumnElement[bool]:
    f = s.fault.c
    return and_(f.kind == row.kind, f.name == row.name, f.since == row.since)
