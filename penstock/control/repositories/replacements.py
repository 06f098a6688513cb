"""Replacements of streams: their options, how far they are, and the cut."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, bounded, first_row, insert_if_new, rows
from penstock.control.repositories.actions import record_action
from penstock.control.repositories.releases import add_release, locked_release
from penstock.control.rows import OPEN_REPLACEMENT, Actor, ReplacementRow, ReplacementState
from penstock.errors import ReplacementRefused
from penstock.model.declaration import MAX_NAME_LENGTH, replacement_app

BEFORE: Mapping[ReplacementState, tuple[ReplacementState, ...]] = {
    "queued": ("building", "following"),
    "building": ("queued",),
    "following": ("queued", "building"),
    "cutting": ("following",),
    "cut": ("cutting",),
    "confirmed": ("cut",),
    "cancelled": ("queued", "building", "following"),
    "failed": OPEN_REPLACEMENT,
}
"""States that a replacement may be in before it gets another."""
ENDED: tuple[ReplacementState, ...] = ("confirmed", "cancelled", "failed")


class ReplacementRepository(ControlDatabase):
    """Replacements. An app has one open replacement at most, and no release meanwhile."""

    def request_replacement(
        self,
        name: str,
        app: str,
        digest: str,
        previous: str,
        actor: Actor,
        options: Mapping[str, Any],
        request: str = "",
        note: str = "",
    ) -> ReplacementRow:
        """Ask for a new version of a stream, and for the driver that builds it.

        Args:
            name: The stream.
            app: Its app.
            digest: Of the code of the new version.
            previous: Of the code of the running version.
            actor: Who asks for it.
            options: See `ReplacementRow`.
            request: Request id, 32 characters, which becomes the id of the replacement; a request that was made is not
                made again.
            note: Recorded with the action.

        Raises:
            ReplacementRefused: The app has an open replacement, or was released meanwhile.
        """
        own_app, identity = replacement_app(name), request or uuid.uuid4().hex
        if len(own_app) > MAX_NAME_LENGTH:
            longest = MAX_NAME_LENGTH - len(replacement_app(""))
            raise ReplacementRefused(
                f"the name of stream {name} is too long for a replacement",
                got=f"{len(name)} characters",
                hint=f"streams whose names have {longest} characters at most can be replaced",
            )
        values = {
            "id": identity, "name": name, "app": app, "digest": digest, "previous": previous, "state": "queued",
            "why": "", "options": dict(options), "figures": {}, "actor": actor.name,
        }  # fmt: skip
        with self.begin() as c:
            # Who releases the app, or asks for another replacement of it at the same time, waits here.
            _, running = locked_release(c, app)
            if made := _row(c, s.replacement.c.id == identity):
                return made
            _check_can_start(c, name, app, previous, running)
            if options.get("back"):
                _check_can_go_back(c, name, previous)
            insert_if_new(c, s.app, name=own_app, release_seq=0, restarts=0)
            # A driver of an earlier replacement drains, as after a release.
            mine = s.app.c.name == own_app
            again = {"digest": digest, "restarts": 0, "refused_at": None, "refused": None, "absent_since": None}
            c.execute(update(s.app).where(mine).values(release_seq=s.app.c.release_seq + 1, **again))
            wanted = {"app": own_app, "desired": "on", "absent_since": None, "changed_at": s.now_ms()}
            if not insert_if_new(c, s.stream, name=own_app, **wanted):
                c.execute(update(s.stream).where(s.stream.c.name == own_app).values(**wanted))
            times = {"requested_at": s.now_ms(), "reported_at": s.now_ms()}
            c.execute(insert(s.replacement).values(**bounded(s.replacement, values), **times))
            record_action(c, actor, "replace", name, note, request)
            row = _row(c, s.replacement.c.id == identity)
        assert row
        return row

    def replacement(self, identity: str) -> ReplacementRow | None:
        """The replacement of an id."""
        with self.begin() as c:
            return _row(c, s.replacement.c.id == identity)

    def open_replacement(self, app: str) -> ReplacementRow | None:
        """The open replacement of an app."""
        with self.begin() as c:
            return _open(c, app)

    def replacement_of(self, name: str) -> ReplacementRow | None:
        """The newest replacement of a stream."""
        with self.begin() as c:
            return _row(c, s.replacement.c.name == name)

    def last_cut(self, name: str) -> ReplacementRow | None:
        """The newest replacement of a stream that is cut, also if it is confirmed."""
        with self.begin() as c:
            return _row(c, (s.replacement.c.name == name) & s.replacement.c.state.in_(("cut", "confirmed")))

    def replacements(self, limit: int = 50, offset: int = 0) -> list[ReplacementRow]:
        """Replacements after the first `offset` of them, newest first."""
        query = select(s.replacement).order_by(s.replacement.c.requested_at.desc(), s.replacement.c.id)
        with self.begin() as c:
            return rows(ReplacementRow, c.execute(query.limit(limit).offset(offset)).mappings())

    def open_replacements(self) -> list[ReplacementRow]:
        """The open replacements of all apps."""
        with self.begin() as c:
            query = select(s.replacement).where(s.replacement.c.state.in_(OPEN_REPLACEMENT))
            return rows(ReplacementRow, c.execute(query).mappings())

    def replacement_count(self) -> int:
        """The number of replacements."""
        with self.begin() as c:
            return int(c.execute(select(func.count()).select_from(s.replacement)).scalar_one())

    def report_replacement(
        self, identity: str, *, why: str | None = None, figures: Mapping[str, Any] | None = None
    ) -> None:
        """Report how far a replacement is; what is None stays as it is. Why it has ended stays, too."""
        values = ({} if why is None else {"why": why}) | ({} if figures is None else {"figures": figures})
        report = update(s.replacement).where(s.replacement.c.id == identity)
        if why is not None:
            report = report.where(s.replacement.c.state.in_(OPEN_REPLACEMENT))
        with self.begin() as c:
            c.execute(report.values(reported_at=s.now_ms(), **bounded(s.replacement, values)))

    def request_cut(self, identity: str, actor: Actor, note: str = "") -> bool:
        """Ask for the cut as soon as the new version has caught up. False if it is cut already, or has ended."""
        mine = (s.replacement.c.id == identity) & s.replacement.c.state.in_(("queued", "building", "following"))
        with self.begin() as c:
            if not c.execute(update(s.replacement).where(mine).values(cut_requested_at=s.now_ms())).rowcount:
                return False
            row = _row(c, s.replacement.c.id == identity)
            assert row
            record_action(c, actor, "cut", row.name, note or "as soon as it has caught up")
        return True

    def move_replacement(
        self,
        identity: str,
        to: ReplacementState,
        *,
        of: Iterable[ReplacementState] = (),
        why: str = "",
        actor: Actor | None = None,
        **columns: Any,
    ) -> bool:
        """Give a replacement another state, and record it. Its driver is wanted as long as it is open.

        Args:
            identity: The id of the replacement.
            to: The state.
            of: States in which it must be; by default those that come `BEFORE` it.
            why: Why it ended, or what it waits for.
            actor: Who does it; by default the replacement's driver.
            **columns: Further columns.

        Returns:
            False if it has another state than expected; then nothing is changed.
        """
        with self.begin() as c:
            return _move(c, identity, to, of, why, actor, columns) is not None

    def begin_cut(self, identity: str) -> ReplacementRow | None:
        """Give a replacement the state `cutting`, and release its code: the running driver drains, and the next one
        does not start the stream before the cut.

        Returns:
            Its row; None if it is neither `following` nor `cutting`.
        """
        with self.begin() as c:
            row = _move(c, identity, "cutting")
            if row is None:
                row = _row(c, s.replacement.c.id == identity)
                return row if row and row.state == "cutting" else None
            note = f"replacement of {row.name}"
            number = add_release(c, row.app, _driver_of(row), note, digest=row.digest)
            c.execute(update(s.replacement).where(s.replacement.c.id == identity).values(release_seq=number))
            return _row(c, s.replacement.c.id == identity)

    def undo_replacement(self, identity: str, why: str) -> bool:
        """Give an open replacement the state `failed`, and release the code of the running version again if the code
        of the new one was released. False if it is not open."""
        with self.begin() as c:
            row = _move(c, identity, "failed", why=why)
            if row and row.release_seq is not None:
                note = f"replacement of {row.name} undone: {why}"
                add_release(c, row.app, _driver_of(row), note, digest=row.previous)
        return row is not None

    def is_cut_undone(self, app: str, release: int) -> bool:
        """Whether a release of an app was that of a cut, and the replacement has failed since."""
        t = s.replacement.c
        with self.begin() as c:
            return _row(c, (t.app == app) & (t.release_seq == release) & (t.state == "failed")) is not None


def fail_replacement(c: Connection, app: str, why: str) -> None:
    """Give the open replacement of an app, if there is one, the state `failed`."""
    if row := _open(c, app):
        _move(c, row.id, "failed", why=why)


def _check_can_start(c: Connection, name: str, app: str, previous: str, running: str | None) -> None:
    if other := _open(c, app):
        raise ReplacementRefused(
            f"app {app} has an open replacement, so stream {name} is not replaced",
            got=f"the replacement of {other.name}, requested by {other.actor}, is {other.state}",
            hint=f"wait until it has ended, `penstock replacements show {other.name}`; or end it, "
            f"`penstock replacements cancel {other.name}`",
        )
    if running != previous:
        raise ReplacementRefused(
            f"app {app} was released while the code of the replacement was checked, so {name} is not replaced",
            got=f"the code {(running or 'of no release')[:12]} instead of {previous[:12]}",
            hint="ask for the replacement again",
        )


def _check_can_go_back(c: Connection, name: str, digest: str) -> None:
    last = _row(c, (s.replacement.c.name == name) & s.replacement.c.state.in_(("cut", "confirmed")))
    if last is None or (last.state, last.digest) != ("cut", digest):
        raise ReplacementRefused(
            f"stream {name} cannot go back to the version before its replacement",
            got=f"it is {last.state} since" if last else "it was never replaced",
            hint=f"put the earlier code on the disk, and `penstock streams replace {name}`",
        )


def _move(
    c: Connection,
    identity: str,
    to: ReplacementState,
    of: Iterable[ReplacementState] = (),
    why: str = "",
    actor: Actor | None = None,
    columns: Mapping[str, Any] | None = None,
) -> ReplacementRow | None:
    """As `ReplacementRepository.move_replacement`; the row afterwards, or None if it has another state."""
    if to == "confirmed" and _is_followed(c, identity):
        return None
    mine = (s.replacement.c.id == identity) & s.replacement.c.state.in_(tuple(of) or BEFORE[to])
    values = bounded(s.replacement, {"state": to, "why": why, **(columns or {})}) | {"reported_at": s.now_ms()}
    if to == "cut":
        values["cut_at"] = s.now_ms()
    if to in ENDED:
        values["ended_at"] = s.now_ms()
    if not c.execute(update(s.replacement).where(mine).values(**values)).rowcount:
        return None
    row = _row(c, s.replacement.c.id == identity)
    assert row
    if to == "cut":
        # Nobody can go back behind it any more.
        t = s.replacement.c
        earlier = (t.name == row.name) & (t.state == "cut") & (t.id != identity)
        followed = {"state": "confirmed", "why": "another replacement followed", "ended_at": s.now_ms()}
        c.execute(update(s.replacement).where(earlier).values(**followed))
    if not row.is_open:
        driven = (s.stream.c.name == replacement_app(row.name)) & (s.stream.c.desired != "off")
        c.execute(update(s.stream).where(driven).values(desired="off", changed_at=s.now_ms()))
    record_action(c, actor or _driver_of(row), to, row.name, why)
    return row


def _is_followed(c: Connection, identity: str) -> bool:
    """Whether another replacement of the stream is open; none is requested before the transaction ends."""
    row = _row(c, s.replacement.c.id == identity)
    if row is None:
        return False
    locked_release(c, row.app)
    other = _open(c, row.app)
    return other is not None and other.name == row.name


def _row(c: Connection, condition: Any) -> ReplacementRow | None:
    """The newest replacement of which a condition is true."""
    query = select(s.replacement).where(condition).order_by(s.replacement.c.requested_at.desc()).limit(1)
    return first_row(ReplacementRow, c.execute(query).mappings())


def _open(c: Connection, app: str) -> ReplacementRow | None:
    return _row(c, (s.replacement.c.app == app) & s.replacement.c.state.in_(OPEN_REPLACEMENT))


def _driver_of(row: ReplacementRow) -> Actor:
    return Actor(replacement_app(row.name), "supervisor")
