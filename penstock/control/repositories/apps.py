"""What is declared, and what is wanted of it: apps, their streams and captures, releases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from sqlalchemy import delete, func, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, insert_if_new, one, rows
from penstock.control.repositories.actions import is_recorded, record_action
from penstock.control.rows import Actor, AppRow, Desired


class SupervisedStream(Protocol):
    """A stream or a capture."""

    @property
    def name(self) -> str: ...

    @property
    def app(self) -> str: ...


class DeclaredApps(Protocol):
    """What is declared, by name; a catalog is one."""

    @property
    def apps(self) -> Mapping[str, object]: ...

    @property
    def supervised(self) -> Mapping[str, SupervisedStream]: ...


class AppRepository(ControlDatabase):
    """Apps and the desired state of what runs in them."""

    def sync(self, declared: DeclaredApps, *, forget: bool = True) -> None:
        """Bring declared apps, streams and captures in; a new one is wanted on.

        forget: whether undeclared ones are forgotten, and others may go from one app to another. Not if a file could
        not be read: it may declare them.
        """
        with self.begin() as c:
            apps = set(c.execute(select(s.app.c.name)).scalars())
            for name in declared.apps.keys() - apps:
                insert_if_new(c, s.app, name=name, release_seq=0, restarts=0)
            known: dict[str, str] = {r.name: r.app for r in c.execute(select(s.stream.c.name, s.stream.c.app))}
            for stream in declared.supervised.values():
                if stream.name not in known:
                    insert_if_new(c, s.stream, name=stream.name, app=stream.app, desired="on", changed_at=s.now_ms())
                elif known[stream.name] != stream.app and forget:
                    c.execute(update(s.stream).where(s.stream.c.name == stream.name).values(app=stream.app))
            gone = known.keys() - declared.supervised.keys()
            if gone and forget:
                c.execute(delete(s.stream).where(s.stream.c.name.in_(gone)))
                c.execute(delete(s.progress).where(s.progress.c.name.in_(gone)))
                c.execute(delete(s.data_loss).where(s.data_loss.c.name.in_(gone)))
            lost = apps - declared.apps.keys()
            if lost and forget:
                c.execute(delete(s.app).where(s.app.c.name.in_(lost)))

    def desired(self, app: str | None = None) -> dict[str, Desired]:
        """Desired state by stream, of one app or of all."""
        query = select(s.stream.c.name, s.stream.c.desired).order_by(s.stream.c.name)
        if app is not None:
            query = query.where(s.stream.c.app == app)
        with self.begin() as c:
            return {r.name: r.desired for r in c.execute(query)}

    def desired_by_app(self) -> dict[str, dict[str, Desired]]:
        """The same of all apps that have streams, by app, in order of the streams' names."""
        found: dict[str, dict[str, Desired]] = {}
        query = select(s.stream.c.app, s.stream.c.name, s.stream.c.desired).order_by(s.stream.c.name)
        with self.begin() as c:
            for row in c.execute(query):
                found.setdefault(row.app, {})[row.name] = row.desired
        return found

    def app_of(self, stream: str) -> str | None:
        """The app of a stream or capture; None if there is no such."""
        with self.begin() as c:
            return c.execute(select(s.stream.c.app).where(s.stream.c.name == stream)).scalar_one_or_none()

    def set_desired(
        self, streams: Iterable[str], state: Desired, actor: Actor, detail: str = "", request: str = ""
    ) -> None:
        """Want streams on or off; recorded as the actor's start or stop. request: its id, done only once."""
        names, t = list(streams), s.stream.c
        with self.begin() as c:
            if is_recorded(c, request):
                return
            for name in names:
                differs = (t.name == name) & (t.desired != state)
                c.execute(update(s.stream).where(differs).values(desired=state, changed_at=s.now_ms()))
                record_action(c, actor, "start" if state == "on" else "stop", name, detail, request)

    def stopped_since(self, app: str) -> int | None:
        """When the last stream of an app was stopped, epoch ms; now, if that was not written down. None if the app has
        no streams."""
        t = s.stream.c
        with self.begin() as c:
            unknown = (t.app == app) & (t.desired == "off") & t.changed_at.is_(None)
            c.execute(update(s.stream).where(unknown).values(changed_at=s.now_ms()))
            found: int | None = c.execute(select(func.max(t.changed_at)).where(t.app == app)).scalar_one()
            return found

    def changed_at(self) -> dict[str, int]:
        """When streams were declared or their desired state changed, epoch ms, as far as it is known."""
        t = s.stream.c
        with self.begin() as c:
            return {r.name: r.changed_at for r in c.execute(select(t.name, t.changed_at)) if r.changed_at is not None}

    def release(self, app: str, actor: Actor, detail: str = "", request: str = "") -> int:
        """Ask for a new driver from the code as it stands; the running one drains first. Returns the release.

        request: its id; it raises the release only once.
        """
        mine = s.app.c.name == app
        with self.begin() as c:
            # Two tries of one request wait here for each other.
            seq = int(c.execute(select(s.app.c.release_seq).where(mine).with_for_update()).scalar_one())
            if is_recorded(c, request):
                return seq
            c.execute(update(s.app).where(mine).values(release_seq=seq + 1, refused_at=None, refused=None))
            record_action(c, actor, "release", app, detail or f"release {seq + 1}", request)
            return seq + 1

    def release_refused(self, app: str, actor: Actor, why: str) -> None:
        """Note that a release was refused which the app's driver needs, as it does not know all that is wanted."""
        with self.begin() as c:
            c.execute(update(s.app).where(s.app.c.name == app).values(refused_at=s.now_ms(), refused=why))
            record_action(c, actor, "refuse", app, why)

    def app(self, name: str) -> AppRow | None:
        with self.begin() as c:
            return one(AppRow, c.execute(select(s.app).where(s.app.c.name == name)).mappings().first())

    def apps(self) -> list[AppRow]:
        with self.begin() as c:
            return rows(AppRow, c.execute(select(s.app).order_by(s.app.c.name)).mappings())
