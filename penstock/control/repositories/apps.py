"""Declared apps, and the desired state of their streams and captures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple, Protocol

from sqlalchemy import Connection, delete, func, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, first_row, insert_if_new, rows
from penstock.control.repositories.actions import is_recorded, record_action
from penstock.control.repositories.replacements import fail_replacement
from penstock.control.rows import OPEN_REPLACEMENT, Actor, AppRow, Desired
from penstock.model.declaration import REPLACEMENT_PREFIX, replacement_app

FORGET_MS = 600_000
"""Time for which the row of an app or a stream is kept that is not declared any more: an editor, `git checkout` or
`rsync` may have removed its file for a moment."""

DECLARED = s.stream.c.absent_since.is_(None)
# The app and the stream of a replacement are none that a project declares.
LISTED = DECLARED & s.stream.c.app.not_like(f"{REPLACEMENT_PREFIX}%")


class SupervisedRow(NamedTuple):
    """The desired state of a stream or capture.

    Attributes:
        changed_at: When it was declared or its desired state was set, epoch ms; None if that is unknown.
    """

    desired: Desired
    changed_at: int | None


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
    """Apps, and the desired state of their streams and captures.

    Those that are not declared any more are as if they did not exist, and their rows are deleted after FORGET_MS.
    """

    def sync(self, declared: DeclaredApps, *, forget: bool = True) -> None:
        """Insert declared apps, streams and captures; the desired state of a new one is on.

        Args:
            declared: The declarations.
            forget: Whether to mark, and later to delete, what is not declared, and to move what changed its app. False
                if a file could not be read, since that may declare them.
        """
        app, stream = s.app.c, s.stream.c
        with self.begin() as c:
            absent_apps = {r.name: r.absent_since is not None for r in c.execute(select(app.name, app.absent_since))}
            # Sorted: two processes that insert the same rows must not wait for each other.
            for name in sorted(declared.apps):
                if name not in absent_apps:
                    insert_if_new(c, s.app, name=name, release_seq=0, restarts=0)
                elif absent_apps[name]:
                    c.execute(update(s.app).where(app.name == name).values(absent_since=None))
            known = {r.name: r for r in c.execute(select(stream.name, stream.app, stream.absent_since))}
            for name, one in sorted(declared.supervised.items()):
                if name not in known:
                    insert_if_new(c, s.stream, name=name, app=one.app, desired="on", changed_at=s.now_ms())
                elif known[name].app == one.app and known[name].absent_since is not None:
                    values = {"absent_since": None, "changed_at": s.now_ms()}
                    c.execute(update(s.stream).where(stream.name == name).values(values))
                elif known[name].app != one.app and forget:
                    c.execute(update(s.stream).where(stream.name == name).values(app=one.app, absent_since=None))
            t = s.replacement.c
            replaced = select(t.name).where(t.state.in_(OPEN_REPLACEMENT), t.app.in_(list(declared.apps)))
            kept = {replacement_app(name) for name in c.execute(replaced).scalars()}
            # Those of an app whose file was away for a moment.
            back = [name for name in kept if absent_apps.get(name)]
            for table in (s.app, s.stream) if back else ():
                c.execute(update(table).where(table.c.name.in_(back)).values(absent_since=None))
            if forget:
                streams, apps = declared.supervised.keys() | kept, declared.apps.keys() | kept
                _forget(c, known.keys() - streams, absent_apps.keys() - apps)

    def desired(self, app: str | None = None) -> dict[str, Desired]:
        """Desired state by stream, for one app or for all that are declared."""
        mine = LISTED if app is None else DECLARED & (s.stream.c.app == app)
        query = select(s.stream.c.name, s.stream.c.desired).where(mine).order_by(s.stream.c.name)
        with self.begin() as c:
            return {r.name: r.desired for r in c.execute(query)}

    def supervised(self) -> dict[str, dict[str, SupervisedRow]]:
        """The declared streams and captures by app and name, in order of their names."""
        by_app: dict[str, dict[str, SupervisedRow]] = {}
        t = s.stream.c
        query = select(t.app, t.name, t.desired, t.changed_at).where(LISTED).order_by(t.name)
        with self.begin() as c:
            for app, name, desired, changed_at in c.execute(query):
                by_app.setdefault(app, {})[name] = SupervisedRow(desired, changed_at)
        return by_app

    def app_of(self, stream: str) -> str | None:
        """The app of a stream or capture; None if it does not exist."""
        with self.begin() as c:
            return c.execute(select(s.stream.c.app).where(s.stream.c.name == stream, DECLARED)).scalar_one_or_none()

    def undeclared(self, app: str) -> list[str]:
        """Names of the streams and captures of an app that are not declared any more, and not yet forgotten."""
        query = select(s.stream.c.name).where(s.stream.c.app == app, ~DECLARED).order_by(s.stream.c.name)
        with self.begin() as c:
            return list(c.execute(query).scalars())

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
        """When the last stream of an app was stopped or removed, in epoch ms, or the present time if that is unknown.

        None if the app has no streams.
        """
        t = s.stream.c
        with self.begin() as c:
            unknown = (t.app == app) & (t.desired == "off") & t.changed_at.is_(None)
            c.execute(update(s.stream).where(unknown).values(changed_at=s.now_ms()))
            stopped_at: int | None = c.execute(select(func.max(t.changed_at)).where(t.app == app)).scalar_one()
            return stopped_at

    def app(self, name: str) -> AppRow | None:
        with self.begin() as c:
            query = select(s.app).where(s.app.c.name == name, s.app.c.absent_since.is_(None))
            return first_row(AppRow, c.execute(query).mappings())

    def apps(self) -> list[AppRow]:
        """The declared apps."""
        listed = s.app.c.absent_since.is_(None) & s.app.c.name.not_like(f"{REPLACEMENT_PREFIX}%")
        with self.begin() as c:
            query = select(s.app).where(listed).order_by(s.app.c.name)
            return rows(AppRow, c.execute(query).mappings())


def _forget(c: Connection, streams: Set[str], apps: Set[str]) -> None:
    """Mark streams and apps that are not declared, and delete those that were marked long ago."""
    for table, names, changed in ((s.stream, streams, {"changed_at": s.now_ms()}), (s.app, apps, {})):
        if names:
            t = table.c
            new = t.name.in_(names) & t.absent_since.is_(None)
            c.execute(update(table).where(new).values(absent_since=s.now_ms(), **changed))
            c.execute(delete(table).where(t.name.in_(names), t.absent_since <= s.now_ms() - FORGET_MS))
    # What another process has found declared in the meantime keeps its rows.
    if streams:
        for table in (s.progress, s.data_loss):
            kept = table.c.name.in_(select(s.stream.c.name))
            c.execute(delete(table).where(table.c.name.in_(streams), ~kept))
    if apps:
        kept = s.release.c.app.in_(select(s.app.c.name))
        c.execute(delete(s.release).where(s.release.c.app.in_(apps), ~kept))
        for app in apps - set(c.execute(select(s.app.c.name)).scalars()):
            fail_replacement(c, app, f"app {app} is not declared any more")
