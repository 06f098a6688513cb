"""Standbys: drivers that are launched beside the running one, and take its app over when it has ended.

Whether a standby takes an app over is decided under the lock of the app's row.
"""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import exists, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase
from penstock.control.repositories.drivers import add_driver, succeed
from penstock.control.repositories.releases import locked_release
from penstock.control.rows import AppRow


class StandbyRepository(ControlDatabase):
    """An app has one standby at most: the one that its row names, until it ends or takes the app over."""

    def request_standby(self, app: str, incarnation: str, release: int) -> None:
        """Ask, as the running driver of an app, for a standby of a release, unless another has followed."""
        t = s.app.c
        mine = (t.name == app) & (t.incarnation == incarnation) & (t.release_seq == release)
        with self.begin() as c:
            c.execute(update(s.app).where(mine).values(standby_for=release))

    def claim_standby(self, app: AppRow, **values: Any) -> str | None:
        """Claim the right to launch the standby that an app's driver has asked for.

        Args:
            app: The app, as the decision to launch was based on it.
            **values: Further columns of the driver's row. Its release and the digest of its code are those of the app.

        Returns:
            The incarnation to launch; None if the app has changed.
        """
        t, incarnation = s.app.c, uuid.uuid4().hex
        is_same = t.standby.is_(None) if app.standby is None else t.standby == app.standby
        is_same &= (t.incarnation == app.incarnation) & (t.release_seq == app.release_seq)
        asked = t.standby_for == t.release_seq
        with self.begin() as c:
            mine = (t.name == app.name) & is_same & asked
            if not c.execute(update(s.app).where(mine).values(standby=incarnation)).rowcount:
                return None
            add_driver(c, app.name, incarnation, values)
        return incarnation

    def report_standby(self, incarnation: str) -> bool:
        """Report a standby that is ready and alive. False if it was given up."""
        mine = (s.driver.c.incarnation == incarnation) & s.driver.c.state.in_(("launching", "standby"))
        with self.begin() as c:
            return bool(c.execute(update(s.driver).where(mine).values(state="standby", alive_at=s.now_ms())).rowcount)

    def take_over(self, app: str, incarnation: str) -> bool:
        """Make a standby that is ready the driver of its app, if the driver before it has ended.

        Returns:
            False if that driver has not ended, the app was released again, or the standby was given up.
        """
        d = s.driver.c
        with self.begin() as c:
            release, _ = locked_release(c, app)
            row = c.execute(select(s.app.c.incarnation, s.app.c.standby).where(s.app.c.name == app)).one()
            ready = (d.incarnation == incarnation) & (d.state == "standby") & (d.release_seq == release)
            lives = (d.incarnation == row.incarnation) & (d.state != "ended")
            if row.standby != incarnation or c.execute(select(exists().where(lives))).scalar():
                return False
            now = {"state": "launching", "launched_at": s.now_ms(), "alive_at": s.now_ms()}
            if not c.execute(update(s.driver).where(ready).values(**now)).rowcount:
                return False
            return succeed(c, app, row.incarnation, incarnation)

    def give_up_standby(self, app: str, incarnation: str) -> bool:
        """Let a standby never take its app over. False if it has done so."""
        d = s.driver.c
        with self.begin() as c:
            locked_release(c, app)
            if c.execute(select(s.app.c.incarnation).where(s.app.c.name == app)).scalar_one() == incarnation:
                return False
            lives = (d.incarnation == incarnation) & (d.state != "ended")
            c.execute(update(s.driver).where(lives).values(state="draining"))
        return True
