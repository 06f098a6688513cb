"""Drivers: who may launch one, which live, how they ended."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import func, insert, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, one, rows
from penstock.control.rows import DriverRow, EndCode

# How a driver ended that was told to: the next one is no restart. None is of one that ended before codes were kept.
ORDERLY_ENDS: tuple[EndCode | None, ...] = (None, "released", "unwanted", "asked")


class DriverRepository(ControlDatabase):
    """One row for each driver that was ever launched, by incarnation."""

    def claim(self, app: str, expected: str | None, **values: Any) -> str | None:
        """Claim the right to launch an app's driver: the incarnation to launch, or None if somebody was faster.

        expected: the incarnation this decision was based on; a launch under any other one is refused.
        """
        incarnation = uuid.uuid4().hex
        before = self.driver(expected) if expected else None
        told = before is None or before.end_code in ORDERLY_ENDS
        with self.begin() as c:
            is_expected = s.app.c.incarnation.is_(None) if expected is None else s.app.c.incarnation == expected
            won = c.execute(
                update(s.app)
                .where(s.app.c.name == app, is_expected)
                .values(
                    incarnation=incarnation,
                    restarts=s.app.c.restarts + (0 if told else 1),
                    refused_at=None,
                    refused=None,
                )
            ).rowcount
            if not won:
                return None
            seq = c.execute(select(s.app.c.release_seq).where(s.app.c.name == app)).scalar_one()
            c.execute(
                insert(s.driver).values(
                    incarnation=incarnation,
                    app=app,
                    release_seq=seq,
                    state="launching",
                    launched_at=s.now_ms(),
                    alive_at=s.now_ms(),
                    **values,
                )
            )
        return incarnation

    def hand_app_over(self, app: str, incarnation: str, holder: str) -> None:
        """Leave the app to the driver that holds its leases: this incarnation was launched beside a live one."""
        with self.begin() as c:
            mine = (s.app.c.name == app) & (s.app.c.incarnation == incarnation)
            c.execute(update(s.app).where(mine).values(incarnation=holder))

    def driver(self, incarnation: str) -> DriverRow | None:
        with self.begin() as c:
            row = c.execute(select(s.driver).where(s.driver.c.incarnation == incarnation)).mappings().first()
        return one(DriverRow, row)

    def drivers(self, app: str | None = None, *, live: bool = True) -> list[DriverRow]:
        """Drivers that have not ended, or the last hundred, ended or not; of one app or of all. The newest first."""
        query = select(s.driver).order_by(s.driver.c.launched_at.desc())
        query = query.where(s.driver.c.state != "ended") if live else query.limit(100)
        if app is not None:
            query = query.where(s.driver.c.app == app)
        with self.begin() as c:
            return rows(DriverRow, c.execute(query).mappings())

    def update_driver(self, incarnation: str, **values: Any) -> None:
        with self.begin() as c:
            c.execute(update(s.driver).where(s.driver.c.incarnation == incarnation).values(**values))

    def disown_driver(self, app: str, owner: str) -> None:
        """Say that an owner answers for an app's driver no longer; the next run adopts it."""
        mine = (s.driver.c.app == app) & (s.driver.c.owner == owner) & (s.driver.c.state != "ended")
        with self.begin() as c:
            c.execute(update(s.driver).where(mine).values(owner=""))

    def report_driver_resources(self, incarnation: str, lacking: str | None) -> None:
        """Say that a driver's session is up and what it still lacks: `running` if that is nothing, else `queued`."""
        mine = (s.driver.c.incarnation == incarnation) & s.driver.c.state.in_(("launching", "queued", "running"))
        state = {} if lacking == "" else {"state": "queued" if lacking else "running", "reason": lacking}
        with self.begin() as c:
            c.execute(update(s.driver).where(mine).values(alive_at=s.now_ms(), **state))

    def report_driver_wait(self, incarnation: str, lacking: str | None) -> None:
        """Say of a driver that has not begun what its cluster lacks for it; None: it is being started."""
        mine = (s.driver.c.incarnation == incarnation) & s.driver.c.pid.is_(None)
        mine &= s.driver.c.state.in_(("launching", "queued"))
        state = "queued" if lacking else "launching"
        with self.begin() as c:
            c.execute(update(s.driver).where(mine).values(alive_at=s.now_ms(), state=state, reason=lacking))

    def report_driver_alive(self, incarnation: str) -> None:
        """Say that the driver is alive, its JVM included."""
        self.update_driver(incarnation, alive_at=s.now_ms())

    def mark_driver_asked_to_leave(self, incarnation: str) -> None:
        """Note that a driver is about to be asked to leave: it cannot tell who sends it a signal."""
        mine = (s.driver.c.incarnation == incarnation) & (s.driver.c.state != "ended")
        with self.begin() as c:
            c.execute(update(s.driver).where(mine).values(end_code="asked"))

    def end_driver(self, incarnation: str, reason: str, code: EndCode = "lost") -> None:
        """Mark a driver as ended; the first reason stands."""
        with self.begin() as c:
            c.execute(
                update(s.driver)
                .where(s.driver.c.incarnation == incarnation, s.driver.c.state != "ended")
                .values(
                    state="ended",
                    ended_at=s.now_ms(),
                    reason=reason,
                    end_code=func.coalesce(s.driver.c.end_code, code),
                )
            )
