"""What the operator page and `penstock streams` show: the data model, made out of the control database.

`read` fetches, `overview` is pure. Times are epoch ms by the database's clock, ages are ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from penstock.control.api import AppRow, Control, Desired, DriverRow, ProgressRow
from penstock.control.captures import CaptureRow, Captures
from penstock.settings import Settings
from penstock.supervision.supervise import START_TIMEOUT

State = Literal["running", "idle", "loading", "starting", "draining", "failing", "hung", "down", "unknown", "stopped"]

# Worst first: the state of an app whose driver is well is that of its worst stream.
STATES: dict[State, str] = {
    "hung": "The driver is there but has shown no sign of life for longer than it may; the supervisor kills it.",
    "down": "Wanted, but no driver runs; the supervisor launches the next one.",
    "failing": "The query ended with an error and is tried again; the last error says why.",
    "unknown": "Nothing was heard lately; it may well be running, and is not taken for dead.",
    "starting": "Wanted; its driver is being launched, or has not finished the first batch.",
    "loading": "Its tables are read to the ends that their topics had; batches begin after that.",
    "draining": "Told to stop, or to make room for a release; it finishes its batch.",
    "running": "Batches are committed.",
    "idle": "Running, with nothing to read.",
    "stopped": "Not wanted, and not running.",
}


@dataclass(frozen=True)
class Limits:
    """stuck_ms: silence of a driver after which it is hung, start_ms: the same while it is being launched;
    fresh_ms: age up to which a figure is current."""

    stuck_ms: int = 30_000
    start_ms: int = 180_000
    fresh_ms: int = 10_000

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        # Five reports may fail to arrive before a figure is called old: less would flicker at each slow commit.
        fresh = max(10.0, 5 * settings.progress_every)
        starting = max(START_TIMEOUT, settings.stuck_after)  # as the supervisor has it
        return cls(int(settings.stuck_after * 1000), int(starting * 1000), int(fresh * 1000))


@dataclass(frozen=True)
class Snapshot:
    """What was read from the control database, `now` first, so that no age is shown too young."""

    now: int
    apps: list[AppRow]
    desired: dict[str, dict[str, Desired]]
    """app -> stream -> on | off"""
    drivers: dict[str, DriverRow]
    """by incarnation; the current one of each app, where it has one"""
    progress: dict[str, ProgressRow]
    actions: list[Mapping[str, Any]] = field(default_factory=list)
    beats: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    captures: dict[str, CaptureRow] = field(default_factory=dict)


def read(control: Control, *, actions: int = 50) -> Snapshot:
    """Read all the page needs; ControlError when the database is away."""
    now = control.now()
    apps = control.apps()
    drivers = {row.incarnation: row for row in control.drivers()}
    for app in apps:
        if app.incarnation and app.incarnation not in drivers and (row := control.driver(app.incarnation)):
            drivers[row.incarnation] = row
    return Snapshot(
        now,
        apps,
        {app.name: control.desired(app.name) for app in apps},
        drivers,
        control.progress(),
        control.actions(actions),
        control.beats(),
        Captures(control).rows(),
    )


@dataclass(frozen=True)
class TopicView:
    name: str
    lag: int | None
    partitions: int
    offsets: dict[str, int]


@dataclass(frozen=True)
class StreamView:
    name: str
    app: str
    desired: Desired
    state: State
    why: str
    stale: bool
    """The figures are older than they should be for a stream that is wanted."""
    reported_age_ms: int | None = None
    batch_id: int | None = None
    batch_age_ms: int | None = None
    batch_ms: int | None = None
    rows_per_s: float | None = None
    """None where nothing is known to be read now"""
    rows_in: int = 0
    rows_out: int = 0
    late: int = 0
    dead: int = 0
    lag: int | None = None
    watermark: int | None = None
    watermark_age_ms: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    restarts: int = 0
    error: str | None = None
    error_age_ms: int | None = None
    topics: list[TopicView] = field(default_factory=list)


@dataclass(frozen=True)
class DriverView:
    incarnation: str
    host: str
    pid: int | None
    state: str
    release_seq: int
    owner: str
    log: str
    up_ms: int
    beat_age_ms: int
    ended_age_ms: int | None
    reason: str | None


@dataclass(frozen=True)
class AppView:
    name: str
    state: State
    why: str
    desired: Desired
    release_seq: int
    restarts: int
    driver: DriverView | None
    streams: list[StreamView]


@dataclass(frozen=True)
class Totals:
    """Over wanted streams whose figures are current; late, dead and restarts over all streams."""

    streams: int
    wanted: int
    healthy: int
    rows_per_s: float
    lag: int
    watermark_age_ms: int | None
    state_bytes: int
    late: int
    dead: int
    restarts: int


@dataclass(frozen=True)
class Freshness:
    """old: `no`, `some` (of the wanted streams) or `all`; message: a sentence for the reader, empty for `no`."""

    old: Literal["no", "some", "all"]
    message: str
    newest: int | None
    newest_age_ms: int | None


@dataclass(frozen=True)
class Overview:
    now: int
    apps: list[AppView]
    totals: Totals
    freshness: Freshness
    actions: list[Mapping[str, Any]]
    beats: list[Mapping[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def overview(snap: Snapshot, limits: Limits) -> Overview:
    """The page's data model: every app and stream with its state and the reason for it."""
    apps = [_app(snap, app, limits) for app in snap.apps]
    streams = [stream for app in apps for stream in app.streams]
    beats: list[Mapping[str, Any]] = [
        {**beat, "topic": name, "age_ms": max(0, snap.now - beat["at"])} for name, beat in sorted(snap.beats.items())
    ]
    actions: list[Mapping[str, Any]] = [
        {**action, "age_ms": max(0, snap.now - action["at"])} for action in snap.actions
    ]
    return Overview(snap.now, apps, _totals(apps, streams), _freshness(snap, streams), actions, beats)


# States


def _driver_state(app: AppRow, driver: DriverRow | None, wanted: bool, now: int, limits: Limits) -> tuple[State, str]:
    """State of an app's driver; `running` says no more than that it lives and is the right one."""
    if driver is None:
        return ("down", "no driver was launched yet") if wanted else ("stopped", "not wanted")
    if driver.state == "ended":
        since = duration(max(0, now - (driver.ended_at or driver.beat_at)))
        if not wanted:
            return "stopped", f"its driver ended {since} ago"
        if driver.release_seq < app.release_seq:
            return "starting", f"the driver of release {driver.release_seq} has drained; the next one follows"
        return "down", f"its driver ended {since} ago" + (f": {first_line(driver.reason)}" if driver.reason else "")
    silent = max(0, now - driver.beat_at)
    if silent > (limits.start_ms if driver.state == "launching" else limits.stuck_ms):
        return "hung", f"its driver on {host_name(driver)} has shown no sign of life for {duration(silent)}"
    if driver.state == "launching":
        return "starting", f"its driver was launched {duration(max(0, now - driver.launched_at))} ago"
    if silent > limits.fresh_ms:
        return "unknown", f"its driver was last heard {duration(silent)} ago"
    if driver.release_seq < app.release_seq:
        return "draining", f"release {app.release_seq} follows as soon as release {driver.release_seq} has drained"
    if driver.state == "draining":
        return "draining", "its driver drains"
    return "running", ""


def _stream_state(
    desired: Desired,
    driver_state: tuple[State, str],
    driver: DriverRow | None,
    row: ProgressRow | None,
    now: int,
    limits: Limits,
) -> tuple[State, str]:
    of_app, why = driver_state
    current = row is not None and driver is not None and row.incarnation == driver.incarnation
    reported = row.state if row is not None and current else None
    if desired == "off":
        if of_app in ("stopped", "down", "starting") or reported in (None, "stopped"):
            return "stopped", ""
        return (of_app, why) if of_app in ("hung", "unknown") else ("draining", "stopped by an operator")
    if of_app != "running" or row is None:
        return (of_app, why) if of_app != "running" else ("starting", "its driver has not begun it yet")
    if reported in (None, "starting", "stopped"):
        return "starting", "its driver has not finished its first batch yet"
    age = max(0, now - row.reported_at)
    if age > limits.fresh_ms:
        return "unknown", f"its driver lives, but has not reported on it for {duration(age)}"
    if reported == "failing":
        return "failing", first_line(row.error) if row.error else "no error was reported"
    if reported == "loading":
        read = sum(sum(topic["offsets"].values()) for topic in row.topics.values())
        return "loading", f"{read:,} of {read + (row.lag or 0):,} records of its tables are read"
    return ("idle", "") if reported == "idle" else ("running", "")


def _app(snap: Snapshot, app: AppRow, limits: Limits) -> AppView:
    desired = snap.desired.get(app.name, {})
    wanted = "on" in desired.values()
    driver = snap.drivers.get(app.incarnation) if app.incarnation else None
    of_driver = _driver_state(app, driver, wanted, snap.now, limits)
    streams = [_stream(snap, app.name, name, want, of_driver, driver, limits) for name, want in sorted(desired.items())]
    state, why = of_driver
    if state == "running":
        active = [s.state for s in streams if s.state != "stopped"]
        state = min(active, key=list(STATES).index) if active else "draining"
        why = "" if active else "all its streams are stopped; its driver ends by itself"
    return AppView(
        app.name,
        state,
        why,
        "on" if wanted else "off",
        app.release_seq,
        app.restarts,
        _driver(driver, snap.now) if driver else None,
        streams,
    )


def _driver(row: DriverRow, now: int) -> DriverView:
    return DriverView(
        row.incarnation,
        host_name(row),
        row.pid,
        row.state,
        row.release_seq,
        row.owner,
        row.log,
        max(0, (row.ended_at or now) - row.launched_at),
        max(0, now - row.beat_at),
        None if row.ended_at is None else max(0, now - row.ended_at),
        row.reason,
    )


def _stream(
    snap: Snapshot,
    app: str,
    name: str,
    desired: Desired,
    of_driver: tuple[State, str],
    driver: DriverRow | None,
    limits: Limits,
) -> StreamView:
    row = snap.progress.get(name)
    state, why = _stream_state(desired, of_driver, driver, row, snap.now, limits)
    if row is None:
        return StreamView(name, app, desired, state, why, stale=False)
    age = max(0, snap.now - row.reported_at)
    stale = desired == "on" and age > limits.fresh_ms
    watermark = row.watermark or None  # 0 is Spark's "none yet", not the year 1970
    return StreamView(
        name,
        app,
        desired,
        state,
        why,
        stale=stale,
        reported_age_ms=age,
        batch_id=row.batch_id,
        batch_age_ms=None if row.batch_at is None else max(0, snap.now - row.batch_at),
        batch_ms=row.batch_ms,
        rows_per_s=None if stale or state in ("stopped", "down", "hung") else row.rows_per_s,
        rows_in=row.rows_in,
        rows_out=row.rows_out,
        late=row.late,
        dead=row.dead,
        lag=row.lag,
        watermark=watermark,
        watermark_age_ms=None if watermark is None else snap.now - watermark,
        state_rows=row.state_rows,
        state_bytes=row.state_bytes,
        restarts=row.restarts,
        error=row.error,
        error_age_ms=None if row.error_at is None else max(0, snap.now - row.error_at),
        topics=[_topic(topic, known) for topic, known in sorted((row.topics or {}).items())],
    )


def _topic(name: str, known: Mapping[str, Any]) -> TopicView:
    offsets = {str(p): int(o) for p, o in sorted((known.get("offsets") or {}).items(), key=lambda i: int(i[0]))}
    return TopicView(name, known.get("lag"), len(offsets), offsets)


def _totals(apps: list[AppView], streams: list[StreamView]) -> Totals:
    wanted = [s for s in streams if s.desired == "on"]
    current = [s for s in wanted if s.reported_age_ms is not None and not s.stale]
    return Totals(
        streams=len(streams),
        wanted=len(wanted),
        healthy=sum(s.state in ("running", "idle") for s in wanted),
        rows_per_s=sum(s.rows_per_s or 0.0 for s in current),
        lag=sum(s.lag or 0 for s in current),
        watermark_age_ms=max((s.watermark_age_ms for s in current if s.watermark_age_ms is not None), default=None),
        state_bytes=sum(s.state_bytes or 0 for s in current),
        late=sum(s.late for s in streams),
        dead=sum(s.dead for s in streams),
        restarts=sum(a.restarts for a in apps),
    )


def _freshness(snap: Snapshot, streams: list[StreamView]) -> Freshness:
    seen = [row.reported_at for row in snap.progress.values()]
    newest = max(seen, default=None)
    age = None if newest is None else max(0, snap.now - newest)
    expected = [s for s in streams if s.desired == "on" and s.reported_age_ms is not None]
    old = [s for s in expected if s.stale]
    if not old or age is None:
        return Freshness("no", "", newest, age)
    if len(old) == len(expected):
        youngest = min(s.reported_age_ms or 0 for s in old)
        return Freshness(
            "all", f"No wanted stream has reported for {duration(youngest)}; its last figures are shown.", newest, age
        )
    names = ", ".join(f"{s.name} ({duration(s.reported_age_ms or 0)})" for s in old)
    return Freshness("some", f"Old figures, with the time since the last report: {names}.", newest, age)


# Words


def host_name(row: DriverRow) -> str:
    """The host's name alone; a driver row tells boots and containers of one host apart."""
    return row.host.partition("/")[0]


def duration(ms: int) -> str:
    """A time span in its two largest units: `850 ms`, `12 s`, `4 min 10 s`, `3 h 5 min`, `2 d 1 h`."""
    if ms < 1000:
        return f"{ms} ms"
    seconds = ms // 1000
    for unit, size, smaller, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // small
            return f"{seconds // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def first_line(text: str | None, width: int = 200) -> str:
    """The first line of a text that is not empty, cut to a width."""
    line = next((line.strip() for line in (text or "").splitlines() if line.strip()), "")
    return line if len(line) <= width else line[: width - 1] + "…"
