"""Releases of apps, and the snapshots of code that they run."""

from __future__ import annotations

from sqlalchemy import Connection, delete, exists, insert, select, union, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, insert_if_new, rows
from penstock.control.repositories.actions import is_recorded, record_action
from penstock.control.rows import OPEN_REPLACEMENT, Actor, ReleaseRow
from penstock.errors import ReleaseRefused

PART_SIZE = 60_000
"""Bytes of an archive in a row."""
UNUSED_MS = 3_600_000
"""Age from which a snapshot that no release names is removed: a release is checked before it is recorded."""


class ReleaseRepository(ControlDatabase):
    """Releases, newest first, and snapshots by digest."""

    def release(self, app: str, actor: Actor, detail: str = "", request: str = "", digest: str | None = None) -> int:
        """Ask for a driver of a new release; the running driver drains first.

        Args:
            app: The app.
            actor: Who asks for it.
            detail: Recorded with the action.
            request: Request id; a request that was done is not done again.
            digest: Of the snapshot that it runs; by default that of the last release.

        Returns:
            The number of the release.

        Raises:
            ReleaseRefused: A new version of one of its streams is being built.
        """
        with self.begin() as c:
            # Two attempts of the same request wait here for each other, and for one that starts a replacement.
            last, _ = locked_release(c, app)
            if is_recorded(c, request):
                return last
            refuse_while_replaced(c, app)
            return add_release(c, app, actor, detail, request, digest)

    def check_can_release(self, app: str) -> None:
        """Raises ReleaseRefused if a new version of a stream of the app is being built."""
        with self.begin() as c:
            refuse_while_replaced(c, app)

    def record_first_code(self, app: str, number: int, digest: str, actor: Actor) -> None:
        """Record the code of a release that had none when its driver was launched."""
        r = s.release.c
        with self.begin() as c:
            c.execute(update(s.app).where(s.app.c.name == app, s.app.c.digest.is_(None)).values(digest=digest))
            same = (r.app == app) & (r.number == number)
            if c.execute(update(s.release).where(same, r.digest.is_(None)).values(digest=digest)).rowcount:
                return
            if not c.execute(select(exists().where(same))).scalar():
                c.execute(insert(s.release).values(_row(app, number, digest, actor, "first launch")))

    def release_refused(self, app: str, actor: Actor, why: str) -> None:
        """Record that a release was refused which the app needs, because its driver lacks a desired stream."""
        with self.begin() as c:
            c.execute(update(s.app).where(s.app.c.name == app).values(refused_at=s.now_ms(), refused=why))
            record_action(c, actor, "refuse", app, why)

    def releases(self, app: str | None = None) -> list[ReleaseRow]:
        """Releases of an app or of all, newest first."""
        query = select(s.release).order_by(s.release.c.at.desc(), s.release.c.number.desc())
        if app is not None:
            query = query.where(s.release.c.app == app)
        with self.begin() as c:
            return rows(ReleaseRow, c.execute(query).mappings())

    def store_snapshot(self, digest: str, archive: bytes) -> None:
        """Store the archive of a snapshot, whole or not at all, unless it is there."""
        t = s.code_snapshot
        with self.begin() as c:
            if c.execute(update(t).where(t.c.digest == digest).values(used_at=s.now_ms())).rowcount:
                return
            for part, start in enumerate(range(0, len(archive), PART_SIZE)):
                content = archive[start : start + PART_SIZE]
                if not insert_if_new(c, t, digest=digest, part=part, content=content, used_at=s.now_ms()):
                    return  # another process has stored it in the meantime

    def use_snapshot(self, digest: str) -> None:
        """Keep a snapshot for UNUSED_MS more, though no release names it."""
        t = s.code_snapshot
        with self.begin() as c:
            c.execute(update(t).where(t.c.digest == digest).values(used_at=s.now_ms()))

    def snapshot_archive(self, digest: str) -> bytes:
        """The archive of a snapshot; empty if there is none."""
        t = s.code_snapshot.c
        with self.begin() as c:
            return b"".join(c.execute(select(t.content).where(t.digest == digest).order_by(t.part)).scalars())

    def remove_snapshot(self, digest: str) -> None:
        """Remove the archive of a snapshot, so that it can be stored again."""
        with self.begin() as c:
            c.execute(delete(s.code_snapshot).where(s.code_snapshot.c.digest == digest))

    def prune_releases(self, app: str, keep: int) -> set[str]:
        """Remove releases of an app that are neither among the last `keep` nor run, and snapshots that none names.

        Returns:
            Digests of the snapshots that are left.
        """
        r, d, t = s.release.c, s.driver.c, s.code_snapshot
        with self.begin() as c:
            runs = select(d.release_seq).where(d.app == app, d.state != "ended")
            last = c.execute(select(s.app.c.release_seq).where(s.app.c.name == app)).scalar_one_or_none() or 0
            old = (r.app == app) & (r.number <= last - keep) & r.number.not_in(runs)
            c.execute(delete(s.release).where(old))
            new, kept = s.replacement.c, s.replacement.c.state.in_((*OPEN_REPLACEMENT, "cut"))
            named = union(
                select(r.digest).where(r.digest.is_not(None)),
                select(d.spec_hash).where(d.state != "ended"),
                select(new.digest).where(kept),
                select(new.previous).where(kept),
            )
            unused = t.c.digest.not_in(named) & (t.c.used_at < s.now_ms() - UNUSED_MS)
            c.execute(delete(t).where(unused))
            return set(c.execute(select(t.c.digest).distinct()).scalars())


def locked_release(c: Connection, app: str) -> tuple[int, str | None]:
    """The number and the code of an app's last release; the app's row is locked until the transaction ends."""
    mine = s.app.c.name == app
    # SQLite has no FOR UPDATE, but an update that changes nothing keeps others out too.
    c.execute(update(s.app).where(mine).values(restarts=s.app.c.restarts))
    last = c.execute(select(s.app.c.release_seq, s.app.c.digest).where(mine)).one()
    return int(last.release_seq), last.digest


def refuse_while_replaced(c: Connection, app: str) -> None:
    """Raises ReleaseRefused if a new version of a stream of the app is being built."""
    t = s.replacement.c
    query = select(t.name, t.state).where(t.app == app, t.state.in_(OPEN_REPLACEMENT))
    if row := c.execute(query).first():
        raise ReleaseRefused(
            f"app {app} is not released while a stream of it is replaced",
            got=f"the replacement of {row.name} is {row.state}",
            hint=f"wait until it has ended, `penstock replacements show {row.name}`; or end it, "
            f"`penstock replacements cancel {row.name}`",
        )


def add_release(
    c: Connection, app: str, actor: Actor, detail: str = "", request: str = "", digest: str | None = None
) -> int:
    """Add a release of an app, as `ReleaseRepository.release` does, and return its number."""
    last, last_digest = locked_release(c, app)
    number, code = last + 1, digest or last_digest
    mine = s.app.c.name == app
    c.execute(update(s.app).where(mine).values(release_seq=number, digest=code, refused_at=None, refused=None))
    c.execute(insert(s.release).values(_row(app, number, code, actor, detail)))
    record_action(c, actor, "release", app, detail or f"release {number}", request)
    return number


def _row(app: str, number: int, digest: str | None, actor: Actor, note: str) -> dict[str, object]:
    return {
        "app": app, "number": number, "digest": digest, "at": s.now_ms(), "actor": actor.name, "source": actor.source,
        "note": note,
    }  # fmt: skip
