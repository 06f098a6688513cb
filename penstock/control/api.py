"""Every read and write of the control database goes through `Control`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, RowMapping, create_engine, delete, func, insert, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from penstock.catalog import Catalog
from penstock.control import schema as s
from penstock.errors import ControlError, LeaseHeld, LeaseLost
from penstock.settings import settings

HISTORY_MS = 24 * 3600 * 1000
Desired = Literal["on", "off"]
T = TypeVar("T")


@dataclass(frozen=True)
class Actor:
    """Who acts, and from where: `cli`, `airflow`, `page` or `supervisor`."""

    name: str
    source: str


@dataclass(frozen=True)
class DriverRow:
    incarnation: str
    app: str
    host: str
    pid: int | None
    pid_started: float | None
    release_seq: int
    spec_hash: str
    owner: str
    state: str
    launched_at: int
    beat_at: int
    ended_at: int | None
    reason: str | None
    log: str


@dataclass(frozen=True)
class AppRow:
    name: str
    release_seq: int
    incarnation: str | None
    restarts: int


@dataclass(frozen=True)
class Lease:
    name: str
    holder: str
    epoch: int
    expires_at: int


@dataclass
class ProgressRow:
    """One stream's figures, as the driver reports them; times are epoch ms, rows are counts since the first start."""

    name: str
    app: str
    incarnation: str
    state: str = "starting"
    reported_at: int = 0
    batch_id: int | None = None
    batch_at: int | None = None
    batch_ms: int | None = None
    rows_per_s: float = 0.0
    rows_in: int = 0
    rows_out: int = 0
    late: int = 0
    dead: int = 0
    watermark: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    lag: int | None = None
    topics: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    error: str | None = None
    error_at: int | None = None


class Control:
    """The control database behind one URL.

    Every method is one short transaction and raises ControlError when the database is away: a caller that cannot
    reach it knows nothing, and must not take unknown for dead.
    """

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        options: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 2, "max_overflow": 4, "pool_recycle": 1800}
        if parsed.get_backend_name() in ("mysql", "mariadb"):
            # A hung database must not hang the driver's lease keeper with it.
            options["connect_args"] = {"connect_timeout": 3, "read_timeout": 5, "write_timeout": 5}
            options["isolation_level"] = "READ COMMITTED"
        if parsed.get_backend_name() == "sqlite":
            options = {"connect_args": {"timeout": 10}}
        self.place = parsed.render_as_string(hide_password=True)
        self.engine = create_engine(parsed, **options)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """One transaction; what the database refuses is a ControlError."""
        try:
            with self.engine.begin() as c:
                yield c
        except SQLAlchemyError as e:
            cause = getattr(e, "orig", None) or e
            raise ControlError(
                "the control database did not do what was asked",
                got=f"{type(cause).__name__}: {cause} at {self.place}",
                fix="see that it runs (`penstock doctor`); `penstock migrate` creates missing tables",
            ) from e

    def migrate(self) -> None:
        """Create what is missing; never drops anything."""
        with self.begin() as c:
            s.metadata.create_all(c)

    def now(self) -> int:
        """The database's clock, epoch ms."""
        with self.begin() as c:
            return int(c.execute(select(s.now_ms())).scalar_one())

    # Declared and desired

    def sync(self, catalog: Catalog) -> None:
        """Bring declared apps, streams and captures in; a new one is wanted on. Undeclared ones are forgotten."""
        with self.begin() as c:
            apps = set(c.execute(select(s.app.c.name)).scalars())
            for name in catalog.apps.keys() - apps:
                insert_if_new(c, s.app, name=name, release_seq=0, restarts=0)
            known: dict[str, str] = {r.name: r.app for r in c.execute(select(s.stream.c.name, s.stream.c.app))}
            for stream in catalog.supervised.values():
                if stream.name not in known:
                    insert_if_new(c, s.stream, name=stream.name, app=stream.app, desired="on")
                elif known[stream.name] != stream.app:
                    c.execute(update(s.stream).where(s.stream.c.name == stream.name).values(app=stream.app))
            gone = known.keys() - catalog.supervised.keys()
            if gone:
                c.execute(delete(s.stream).where(s.stream.c.name.in_(gone)))
                c.execute(delete(s.progress).where(s.progress.c.name.in_(gone)))
            lost = apps - catalog.apps.keys()
            if lost:
                c.execute(delete(s.app).where(s.app.c.name.in_(lost)))

    def desired(self, app: str | None = None) -> dict[str, Desired]:
        """Desired state by stream, of one app or of all."""
        query = select(s.stream.c.name, s.stream.c.desired).order_by(s.stream.c.name)
        if app is not None:
            query = query.where(s.stream.c.app == app)
        with self.begin() as c:
            return {r.name: r.desired for r in c.execute(query)}

    def set_desired(self, streams: Iterable[str], state: Desired, actor: Actor, detail: str = "") -> None:
        """Want streams on or off; recorded as the actor's start or stop."""
        names = list(streams)
        with self.begin() as c:
            for name in names:
                c.execute(update(s.stream).where(s.stream.c.name == name).values(desired=state))
                record_action(c, actor, "start" if state == "on" else "stop", name, detail)

    def release(self, app: str, actor: Actor, detail: str = "") -> int:
        """Ask for a new driver from the code as it stands; the running one drains first. Returns the release."""
        with self.begin() as c:
            c.execute(update(s.app).where(s.app.c.name == app).values(release_seq=s.app.c.release_seq + 1))
            seq = c.execute(select(s.app.c.release_seq).where(s.app.c.name == app)).scalar_one()
            record_action(c, actor, "release", app, detail or f"release {seq}")
            return int(seq)

    def app(self, name: str) -> AppRow | None:
        with self.begin() as c:
            return _one(AppRow, c.execute(select(s.app).where(s.app.c.name == name)).mappings().first())

    def apps(self) -> list[AppRow]:
        with self.begin() as c:
            return rows(AppRow, c.execute(select(s.app).order_by(s.app.c.name)).mappings())

    # Drivers

    def claim(self, app: str, expected: str | None, **values: Any) -> str | None:
        """Claim the right to launch an app's driver: the incarnation to launch, or None if somebody was faster.

        expected: the incarnation this decision was based on; a launch under any other one is refused.
        """
        incarnation = uuid.uuid4().hex
        with self.begin() as c:
            is_expected = s.app.c.incarnation.is_(None) if expected is None else s.app.c.incarnation == expected
            won = c.execute(
                update(s.app)
                .where(s.app.c.name == app, is_expected)
                .values(
                    incarnation=incarnation,
                    restarts=s.app.c.restarts + (0 if expected is None else 1),
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
                    beat_at=s.now_ms(),
                    **values,
                )
            )
        return incarnation

    def give_back(self, app: str, incarnation: str, holder: str) -> None:
        """Leave the app to the driver that holds its leases: this incarnation was launched beside a live one."""
        with self.begin() as c:
            mine = (s.app.c.name == app) & (s.app.c.incarnation == incarnation)
            c.execute(update(s.app).where(mine).values(incarnation=holder))

    def driver(self, incarnation: str) -> DriverRow | None:
        with self.begin() as c:
            row = c.execute(select(s.driver).where(s.driver.c.incarnation == incarnation)).mappings().first()
        return _one(DriverRow, row)

    def drivers(self, *, live: bool = True) -> list[DriverRow]:
        """Drivers that have not ended, or the last hundred of all."""
        query = select(s.driver).order_by(s.driver.c.launched_at.desc()).limit(100)
        if live:
            query = query.where(s.driver.c.state != "ended")
        with self.begin() as c:
            return rows(DriverRow, c.execute(query).mappings())

    def driver_set(self, incarnation: str, **values: Any) -> None:
        with self.begin() as c:
            c.execute(update(s.driver).where(s.driver.c.incarnation == incarnation).values(**values))

    def driver_running(self, incarnation: str) -> None:
        """Say that a driver's session is up; its first sign of life."""
        self.driver_set(incarnation, state="running", beat_at=s.now_ms())

    def driver_beat(self, incarnation: str) -> None:
        """Say that the driver is alive, its JVM included."""
        self.driver_set(incarnation, beat_at=s.now_ms())

    def driver_ended(self, incarnation: str, reason: str) -> None:
        """Mark a driver as ended; the first reason stands."""
        with self.begin() as c:
            c.execute(
                update(s.driver)
                .where(s.driver.c.incarnation == incarnation, s.driver.c.state != "ended")
                .values(state="ended", ended_at=s.now_ms(), reason=reason[:4000])
            )

    # Leases

    def lease_take(self, name: str, holder: str, ttl: float, *, dead: Sequence[str] = ()) -> Lease:
        """Take the lease of a stream's checkpoint, if it is free, run out, or its holder is known to be dead.

        ttl: seconds. dead: incarnations whose processes are gone for certain. LeaseHeld if another has it.
        """
        with self.begin() as c:
            values = {"holder": holder, "expires_at": s.now_ms() + int(ttl * 1000)}
            free = (s.lease.c.expires_at < s.now_ms()) | s.lease.c.holder.in_([holder, *dead])
            won = c.execute(
                update(s.lease).where(s.lease.c.name == name, free).values(**values, epoch=s.lease.c.epoch + 1)
            ).rowcount
            if not won:
                won = insert_if_new(c, s.lease, name=name, epoch=1, **values)
            row = c.execute(select(s.lease).where(s.lease.c.name == name)).mappings().one()
        held = _one(Lease, row)
        assert held is not None
        if not won:
            raise LeaseHeld(
                f"another driver holds the lease of stream {name}",
                holder=held.holder,
                got=f"driver {held.holder}, until {held.expires_at} (epoch ms)",
                fix="nothing, if that driver runs; it is taken over by itself once the lease runs out",
            )
        return held

    def lease_renew(self, names: Iterable[str], holder: str, ttl: float) -> None:
        """Renew leases; LeaseLost if any of them is no longer the holder's."""
        wanted = list(names)
        if not wanted:
            return
        with self.begin() as c:
            mine = s.lease.c.name.in_(wanted) & (s.lease.c.holder == holder)
            c.execute(update(s.lease).where(mine).values(expires_at=s.now_ms() + int(ttl * 1000)))
            kept = set(c.execute(select(s.lease.c.name).where(mine)).scalars())
        if lost := sorted(set(wanted) - kept):
            raise LeaseLost("another driver took over", got=", ".join(lost), fix="this driver ends by itself")

    def lease_drop(self, names: Iterable[str], holder: str) -> None:
        with self.begin() as c:
            c.execute(delete(s.lease).where(s.lease.c.name.in_(list(names)), s.lease.c.holder == holder))

    def leases(self) -> dict[str, Lease]:
        with self.begin() as c:
            return {lease.name: lease for lease in rows(Lease, c.execute(select(s.lease)).mappings())}

    # Progress

    def report(self, rows: Iterable[ProgressRow], *, keep: bool) -> None:
        """Upsert the progress of streams; with keep, add each to the history that feeds the charts."""
        with self.begin() as c:
            now = c.execute(select(s.now_ms())).scalar_one()
            for row in rows:
                values = {**asdict(row), "reported_at": now}
                name = values.pop("name")
                if not c.execute(update(s.progress).where(s.progress.c.name == name).values(**values)).rowcount:
                    insert_if_new(c, s.progress, name=name, **values)
                if keep:
                    c.execute(
                        insert(s.history).values(
                            name=name,
                            at=now,
                            batch_age_ms=None if row.batch_at is None else max(0, now - row.batch_at),
                            watermark_age_ms=None if row.watermark is None else now - row.watermark,
                            **{
                                k: values[k]
                                for k in (
                                    "rows_per_s", "batch_ms", "lag", "state_rows", "state_bytes",
                                    "rows_in", "rows_out", "late", "dead", "restarts",
                                )
                            },
                        )
                    )  # fmt: skip
            if keep:
                c.execute(delete(s.history).where(s.history.c.at < now - HISTORY_MS))

    def progress(self, app: str | None = None) -> dict[str, ProgressRow]:
        query = select(s.progress)
        if app is not None:
            query = query.where(s.progress.c.app == app)
        with self.begin() as c:
            return {row.name: row for row in rows(ProgressRow, c.execute(query).mappings())}

    def history(self, since_ms: int, name: str | None = None) -> list[Mapping[str, Any]]:
        """Rows of the history with `at` later than since_ms, oldest first."""
        query = select(s.history).where(s.history.c.at > since_ms).order_by(s.history.c.at)
        if name is not None:
            query = query.where(s.history.c.name == name)
        with self.begin() as c:
            return [dict(row) for row in c.execute(query).mappings()]

    # Actions and beats

    def record(self, actor: Actor, verb: str, target: str, detail: str = "") -> None:
        with self.begin() as c:
            record_action(c, actor, verb, target, detail)

    def actions(self, limit: int = 50) -> list[Mapping[str, Any]]:
        """What was done, newest first: at, actor, source, verb, target, detail."""
        query = select(s.action).order_by(s.action.c.id.desc()).limit(limit)
        with self.begin() as c:
            return [dict(row) for row in c.execute(query).mappings()]

    def beat_sent(self, topic: str, at_ms: int, partitions: int, sender: str) -> None:
        values = {"at": at_ms, "partitions": partitions, "sender": sender}
        with self.begin() as c:
            if not c.execute(update(s.beat).where(s.beat.c.name == topic).values(**values)).rowcount:
                insert_if_new(c, s.beat, name=topic, **values)

    def beats(self) -> dict[str, Mapping[str, Any]]:
        with self.begin() as c:
            return {row["name"]: dict(row) for row in c.execute(select(s.beat)).mappings()}

    def restarts_since(self, since_ms: int, app: str) -> int:
        """How many drivers of an app were launched since then."""
        query = select(func.count()).where(s.driver.c.app == app, s.driver.c.launched_at > since_ms)
        with self.begin() as c:
            return int(c.execute(query).scalar_one())


def record_action(c: Connection, actor: Actor, verb: str, target: str, detail: str) -> None:
    c.execute(
        insert(s.action).values(
            at=s.now_ms(),
            actor=actor.name[:200],
            source=actor.source,
            verb=verb,
            target=target,
            detail=detail[:4000] or None,
        )
    )


def insert_if_new(c: Connection, table: Any, **values: Any) -> int:
    """Insert a row unless its key is there; 1 if it was inserted."""
    try:
        with c.begin_nested():
            return int(c.execute(insert(table).values(**values)).rowcount)
    except IntegrityError:
        return 0


def _one(kind: type[T], row: RowMapping | None) -> T | None:
    if row is None:
        return None
    return kind(**{f.name: row[f.name] for f in fields(kind)})  # type: ignore[arg-type]


def rows(kind: type[T], found: Iterable[RowMapping]) -> list[T]:
    return [made for row in found if (made := _one(kind, row)) is not None]


@cache
def connect(url: str | None = None) -> Control:
    """The control database of this process, or the one behind a URL."""
    return Control(url or settings().control)
