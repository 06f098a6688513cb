"""Drivers: the right to launch one, their state and their end."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, first_row, rows
from penstock.control.rows import DriverRow, EndCode

# Ends after which the next launch is no restart; None is from before ends had codes.
ORDERLY_ENDS: tuple[EndCode | None, ...] = (None, "released", "unwanted", "asked")


class DriverRepository(ControlDatabase):
    """The drivers that were ever launched, by incarnation."""

    def claim(self, app: str, expected: str | None, **values: Any) -> str | None:
        """Claim the right to launch an app's driver.

        Args:
            app: The app.
            expected: The incarnation on which the decision to launch was based.
            **values: Further columns of the driver's row. Its release and the digest of its code are those of the app.

        Returns:
            The incarnation to launch; None if the app has another incarnation than expected.
        """
        with self.begin() as c:
            incarnation = uuid.uuid4().hex
            if not succeed(c, app, expected, incarnation):
                return None
            add_driver(c, app, incarnation, values)
        return incarnation

    def hand_app_over(self, app: str, incarnation: str, holder: str) -> None:
        """Make the driver that holds the leases the app's incarnation, instead of one that was launched beside it."""
        with self.begin() as c:
            mine = (s.app.c.name == app) & (s.app.c.incarnation == incarnation)
            c.execute(update(s.app).where(mine).values(incarnation=holder))

    def driver(self, incarnation: str) -> DriverRow | None:
        with self.begin() as c:
            query = select(s.driver).where(s.driver.c.incarnation == incarnation)
            return first_row(DriverRow, c.execute(query).mappings())

    def drivers(self, app: str | None = None, *, live: bool = True) -> list[DriverRow]:
        """Drivers of one app or of all, newest first: those that have not ended, or with `live=False` the last 100."""
        query = select(s.driver).order_by(s.driver.c.launched_at.desc())
        query = query.where(s.driver.c.state != "ended") if live else query.limit(100)
        if app is not None:
            query = query.where(s.driver.c.app == app)
        with self.begin() as c:
            return rows(DriverRow, c.execute(query).mappings())

    def update_driver(self, incarnation: str, **values: Any) -> None:
        with self.begin() as c:
            c.execute(update(s.driver).where(s.driver.c.incarnation == incarnation).values(**values))

    def disown_drivers(self, owner: str) -> None:
        """Give up the drivers of an owner; the next run adopts them."""
        mine = (s.driver.c.owner == owner) & (s.driver.c.state != "ended")
        with self.begin() as c:
            c.execute(update(s.driver).where(mine).values(owner=""))

    def report_driver_resources(self, incarnation: str, lacking: str | None) -> None:
        """Report a driver whose session has started, and the resources that it lacks.

        Args:
            incarnation: The driver.
            lacking: None if it lacks none: the driver is `running`, else `queued`. Empty if they are on their way: the
                state stays.
        """
        mine = (s.driver.c.incarnation == incarnation) & s.driver.c.state.in_(("launching", "queued", "running"))
        state = {} if lacking == "" else {"state": "queued" if lacking else "running", "reason": lacking}
        with self.begin() as c:
            c.execute(update(s.driver).where(mine).values(alive_at=s.now_ms(), **state))

    def report_driver_wait(self, incarnation: str, lacking: str | None) -> None:
        """Report what a cluster lacks for a driver that has not started; None if the driver is being started."""
        mine = (s.driver.c.incarnation == incarnation) & s.driver.c.pid.is_(None)
        mine &= s.driver.c.state.in_(("launching", "queued"))
        state = "queued" if lacking else "launching"
        with self.begin() as c:
            c.execute(update(s.driver).where(mine).values(alive_at=s.now_ms(), state=state, reason=lacking))

    def report_driver_alive(self, incarnation: str) -> bool:
        """Report that the driver and its JVM are alive. False if it was given up: its end is recorded already."""
        mine = (s.driver.c.incarnation == incarnation) & (s.driver.c.state != "ended")
        with self.begin() as c:
            return bool(c.execute(update(s.driver).where(mine).values(alive_at=s.now_ms())).rowcount)

    def mark_driver_asked_to_leave(self, incarnation: str) -> None:
        """Record that a driver is about to get a signal from Penstock; the driver cannot see who sent a signal."""
        mine = (s.driver.c.incarnation == incarnation) & (s.driver.c.state != "ended")
        with self.begin() as c:
            c.execute(update(s.driver).where(mine).values(end_code="asked"))

    def end_driver(self, incarnation: str, reason: str, code: EndCode = "lost") -> None:
        """Record the end of a driver; a second call changes nothing."""
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


def add_driver(c: Connection, app: str, incarnation: str, values: dict[str, Any]) -> None:
    """Add the row of a driver that is about to be launched, of the release and the code of its app.

    Args:
        values: Further columns.
    """
    last = c.execute(select(s.app.c.release_seq, s.app.c.digest).where(s.app.c.name == app)).one()
    own = {"release_seq": last.release_seq, "spec_hash": last.digest or "", "state": "launching"}
    times = {"launched_at": s.now_ms(), "alive_at": s.now_ms()}
    c.execute(insert(s.driver).values({"incarnation": incarnation, "app": app, **own, **times, **values}))


def succeed(c: Connection, app: str, expected: str | None, incarnation: str) -> bool:
    """Make a driver the one that may run an app, instead of the expected one; False if the app has another.

    It counts as a restart if the driver before it did not end in order.
    """
    ended = c.execute(select(s.driver.c.end_code).where(s.driver.c.incarnation == expected)).first()
    orderly = ended is None or ended.end_code in ORDERLY_ENDS
    is_expected = s.app.c.incarnation.is_(None) if expected is None else s.app.c.incarnation == expected
    values = {"incarnation": incarnation, "refused_at": None, "refused": None, "standby": None, "standby_for": None}
    restarts = s.app.c.restarts + (0 if orderly else 1)
    mine = (s.app.c.name == app) & is_expected
    return bool(c.execute(update(s.app).where(mine).values(restarts=restarts, **values)).rowcount)
