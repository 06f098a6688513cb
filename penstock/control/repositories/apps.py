"""Declared apps, and the desired state of their streams and captures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from sqlalchemy import delete, func, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, first_row, insert_if_new, rows
from penstock.control.repositories.actions import is_recorded, record_action
from penstock.control.rows import Actor, AppRow, Desired


class SupervisedStream(Protocol):
    """A stream or a capture."""

    @property
    def name(self) -> str: ...

    @property
    def app(self) -> str: ...


class DeclaredApps(Protocol):
    """Declared apps and what they run, by name; implemented by the catalog."""

    @property
    def apps(self) -> Mapping[str, object]: ...

    @property
    def supervised(self) -> Mapping[str, SupervisedStream]: ...


class AppRepository(ControlDatabase):
    """Apps, and the desired state of their streams and captures."""

    def sync(self, declared: DeclaredApps, *, forget: bool = True) -> None:
        """Insert declared apps, streams and captures; the desired state of a new one is on.

        Args:
            declared: The declarations.
            forget: Whether to delete what is not declared and to move what changed its app. False if a file could not
                be read, since that may declare them.
        """
        with self.begin() as c:
            apps = set(c.execute(select(s.app.c.name)).scalars())
            # Sorted: two processes that insert the same rows must not wait for each other.
            for name in sorted(declared.apps.keys() - apps):
                insert_if_new(c, s.app, name=name, release_seq=0, restarts=0)
            app_by_stream: dict[str, str] = {r.name: r.app for r in c.execute(select(s.stream.c.name, s.stream.c.app))}
            for _, stream in sorted(declared.supervised.items()):
                if stream.name not in app_by_stream:
                    insert_if_new(c, s.stream, name=stream.name, app=stream.app, desired="on", changed_at=s.now_ms())
                elif app_by_stream[stream.name] != stream.app and forget:
                    c.execute(update(s.stream).where(s.stream.c.name == stream.name).values(app=stream.app))
            undeclared = app_by_stream.keys() - declared.supervised.keys()
            if undeclared and forget:
                c.execute(delete(s.stream).where(s.stream.c.name.in_(undeclared)))
                c.execute(delete(s.progress).where(s.progress.c.name.in_(undeclared)))
                c.execute(delete(s.data_loss).where(s.data_loss.c.name.in_(undeclared)))
            undeclared_apps = apps - declared.apps.keys()
            if undeclared_apps and forget:
                c.execute(delete(s.app).where(s.app.c.name.in_(undeclared_apps)))
                c.execute(delete(s.release).where(s.release.c.app.in_(undeclared_apps)))

    def desired(self, app: str | None = None) -> dict[str, Desired]:
        """Desired state by stream, for one app or for all."""
        query = select(s.stream.c.name, s.stream.c.desired).order_by(s.stream.c.name)
        if app is not None:
            query = query.where(s.stream.c.app == app)
        with self.begin() as c:
            return {r.name: r.desired for r in c.execute(query)}

    def desired_by_app(self) -> dict[str, dict[str, Desired]]:
        """Desired state by app and stream, in order of the streams' names."""
        states: dict[str, dict[str, Desired]] = {}
        query = select(s.stream.c.app, s.stream.c.name, s.stream.c.desired).order_by(s.stream.c.name)
        with self.begin() as c:
            for row in c.execute(query):
                states.setdefault(row.app, {})[row.name] = row.desired
        return states

    def app_of(self, stream: str) -> str | None:
        """The app of a stream or capture; None if it does not exist."""
        with self.begin() as c:
            return c.execute(select(s.stream.c.app).where(s.stream.c.name == stream)).scalar_one_or_none()

    def set_desired(
        self, streams: Iterable[str], state: Desired, actor: Actor, detail: str = "", request: str = ""
    ) -> None:
        """Set the desired state of streams, and record it as the actor's `start` or `stop`.

        Args:
            streams: Names of streams and captures.
            state: The desired state.
            actor: Who asks for it.
            detail: Recorded with the action.
            request: Request id; a request that was done is not done again.
        """
        names, t = list(streams), s.stream.c
        with self.begin() as c:
            if is_recorded(c, request):
                return
            for name in names:
                differs = (t.name == name) & (t.desired != state)
                c.execute(update(s.stream).where(differs).values(desired=state, changed_at=s.now_ms()))
                record_action(c, actor, "start" if state == "on" else "stop", name, detail, request)

    def stopped_since(self, app: str) -> int | None:
        """When the last stream of an app was stopped, in epoch ms, or the present time if that is unknown.

        None if the app has no streams.
        """
        t = s.stream.c
        with self.begin() as c:
            unknown = (t.app == app) & (t.desired == "off") & t.changed_at.is_(None)
            c.execute(update(s.stream).where(unknown).values(changed_at=s.now_ms()))
            stopped_at: int | None = c.execute(select(func.max(t.changed_at)).where(t.app == app)).scalar_one()
            return stopped_at

    def changed_at(self) -> dict[str, int]:
        """When streams were declared or their desired state changed, in epoch ms, as far as it is known."""
        t = s.stream.c
        with self.begin() as c:
            return {r.name: r.changed_at for r in c.execute(select(t.name, t.changed_at)) if r.changed_at is not None}

    def app(self, name: str) -> AppRow | None:
        with self.begin() as c:
            return first_row(AppRow, c.execute(select(s.app).where(s.app.c.name == name)).mappings())

    def apps(self) -> list[AppRow]:
        with self.begin() as c:
            return rows(AppRow, c.execute(select(s.app).order_by(s.app.c.name)).mappings())
