"""The state of an app's driver and of a stream, and its reason. Times are epoch ms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.control import AppRow, Desired, DriverRow, ProgressRow
from penstock.monitoring.humanize import duration, first_line, host_name
from penstock.settings import Settings
from penstock.supervision.decision.decide import START_TIMEOUT

State = Literal[
    "running", "idle", "loading", "starting", "draining", "queued", "waiting", "failing", "blocked", "hung", "down",
    "unknown", "replacing", "stopped",
]  # fmt: skip

# Worst first: an app whose driver runs has the state of its worst stream.
STATES: dict[State, str] = {
    "hung": "The driver has not reported for too long; the supervisor kills and replaces it.",
    "down": "Its desired state is on, but no driver runs, or the driver does not know it; the supervisor launches the "
    "next one.",
    "failing": "The query ended with an error and is retried, or waits for the broker, or the release that contains "
    "the stream was refused; the last error says why.",
    "blocked": "It stopped by itself, because to continue would lose data or produce incorrect output; the reason says "
    "what, and which command continues.",
    "waiting": "Its store is down, is slow or asks to wait; the stream keeps its offsets and continues by itself.",
    "queued": "Its driver runs without an executor, because the cluster has too few free cores or too little memory; "
    "it continues by itself.",
    "unknown": "There is no recent report; it may be running.",
    "starting": "Its driver is being launched, or has not finished the first batch.",
    "replacing": "Its new version is about to write in its place; it starts with the state of that.",
    "loading": "Its tables are read to the end of their topics; batches start after that.",
    "draining": "It stops after the current batch, or is replaced by a release once the next driver is ready.",
    "running": "Batches are committed.",
    "idle": "Running without new records.",
    "stopped": "Its desired state is off, and it does not run.",
}
# What to do in each state; the same sentences as in docs/operations.md.
REMEDIES = {
    "running": "",
    "idle": "",
    "starting": "wait some seconds",
    "replacing": "wait; `penstock replacements show NAME` says how far it is",
    "loading": "wait",
    "draining": "wait; killed after `PENSTOCK_DRAIN_TIMEOUT`",
    "queued": "add workers to the cluster, or let the app use less (`PENSTOCK_APP_CORES`, `PENSTOCK_EXECUTOR_MEMORY`)",
    "waiting": "check that its store runs and that the driver can reach it",
    "failing": "read *last error*",
    "blocked": "read *last error*: it says which command continues",
    "hung": "nothing: the driver is killed and replaced",
    "down": "check in Airflow whether the DAG `streams_<app>` is paused, or waits between attempts",
    "unknown": "check that the control database is reachable",
    "stopped": "",
}
# Errors of a stream in these states are past.
HEALTHY_STATES: tuple[State, ...] = ("running", "idle")


@dataclass(frozen=True)
class StateLimits:
    """stuck_ms: silence of a driver after which it is hung, start_ms: the same while it is being launched;
    fresh_ms: age up to which a figure is current."""

    stuck_ms: int = 30_000
    start_ms: int = 180_000
    fresh_ms: int = 10_000

    @classmethod
    def of(cls, settings: Settings) -> StateLimits:
        # A report is old once five were missed: with fewer, each slow commit would look old.
        fresh = max(10.0, 5 * settings.progress_every)
        starting = max(START_TIMEOUT, settings.stuck_after)  # as in the supervisor
        return cls(int(settings.stuck_after * 1000), int(starting * 1000), int(fresh * 1000))


def driver_state(
    app: AppRow, driver: DriverRow | None, wanted: bool, now: int, limits: StateLimits, changed_at: int = 0
) -> tuple[State, str]:
    """State of an app's driver; `running` means only that it is alive and of the current release.

    changed_at: when the desired state of one of its streams was last set; 0 if unknown.
    """
    if driver is None and not wanted:
        return "stopped", "its desired state is off"
    if driver is None:
        is_new = now - changed_at <= limits.start_ms
        return "starting" if is_new else "down", "no driver was launched yet"
    if driver.state == "ended":
        since = duration(max(0, now - (driver.ended_at or driver.alive_at)))
        if not wanted:
            return "stopped", f"its driver ended {since} ago"
        if driver.release_seq < app.release_seq:
            return "starting", f"the driver of release {driver.release_seq} has drained; the next one is launched"
        return "down", f"its driver ended {since} ago" + (f": {first_line(driver.reason)}" if driver.reason else "")
    silent = max(0, now - driver.alive_at)
    if silent > (limits.start_ms if driver.state == "launching" else limits.stuck_ms):
        return "hung", f"its driver on {host_name(driver)} has not reported for {duration(silent)}"
    if driver.state == "launching":
        return "starting", f"its driver was launched {duration(max(0, now - driver.launched_at))} ago"
    if silent > limits.fresh_ms:
        return "unknown", f"its driver last reported {duration(silent)} ago"
    if driver.state == "queued":
        return "queued", driver.reason or "it waits for executors"
    if driver.release_seq < app.release_seq:
        if driver.state != "draining" and app.standby_for == app.release_seq:
            return "draining", f"it works until the driver of release {app.release_seq}, which starts, is ready"
        return "draining", f"release {app.release_seq} starts when release {driver.release_seq} has drained"
    if driver.state == "draining":
        return "draining", "its driver drains"
    return "running", ""


@dataclass(frozen=True)
class UnreportedStream:
    """A stream with desired state on that its app's driver does not know. Times are epoch ms.

    Attributes:
        since: when it was declared or started; None if unknown.
        refused_at: when the release that contains it was refused.
        refused: why.
    """

    since: int | None
    refused_at: int | None
    refused: str | None


def stream_state(
    desired: Desired,
    driver_state: tuple[State, str],
    driver: DriverRow | None,
    row: ProgressRow | None,
    now: int,
    limits: StateLimits,
    unreported: UnreportedStream | None = None,
) -> tuple[State, str]:
    """State of a stream and the reason for it. unreported: if its driver does not know it."""
    app_state, why = driver_state
    current = row is not None and driver is not None and row.incarnation == driver.incarnation
    reported = row.state if row is not None and current else None
    if desired == "off":
        if app_state in ("stopped", "down", "starting") or reported in (None, "stopped"):
            return "stopped", ""
        return (app_state, why) if app_state in ("hung", "unknown") else ("draining", "stopped by an operator")
    if app_state == "running" and unreported is not None and (result := _unreported_state(unreported, now, limits)):
        return result
    if app_state != "running" or row is None:
        return (app_state, why) if app_state != "running" else ("starting", "its driver has not started it yet")
    if reported in (None, "starting", "stopped"):
        return "starting", "its driver has not finished its first batch yet"
    age = max(0, now - row.reported_at)
    if age > limits.fresh_ms:
        return "unknown", f"its driver runs, but has not reported on it for {duration(age)}"
    if reported in ("failing", "blocked"):
        state: State = "failing" if reported == "failing" else "blocked"
        return state, first_line(row.error) if row.error else "no error was reported"
    if reported == "waiting":
        since = duration(max(0, now - (row.error_at or now)))
        return "waiting", f"for {since}: {first_line(row.error) if row.error else 'no reason was reported'}"
    if reported == "replacing":
        return "replacing", "its new version takes its place"
    if reported == "loading":
        read = sum(sum(topic["offsets"].values()) for topic in row.topics.values())
        of = "" if row.lag is None else f" of {read + row.lag:,}"
        return "loading", f"{read:,}{of} records of its tables are read"
    return ("idle" if reported == "idle" else "running"), _open_transaction(row)


def _unreported_state(of: UnreportedStream, now: int, limits: StateLimits) -> tuple[State, str] | None:
    if of.refused_at is not None:
        ago = duration(max(0, now - of.refused_at))
        return "failing", f"the release that contains it was refused {ago} ago: {first_line(of.refused)}"
    if now - (of.since or 0) > limits.start_ms:
        return "down", "its driver does not know it; release its app"
    return None


def _open_transaction(row: ProgressRow) -> str:
    """The open transaction that hides records from a stream, if any."""
    for topic, figures in row.topics.items():
        for partition, at in figures.get("open", {}).items():
            return f"{topic}[{partition}] cannot be read from offset {at:,}: a producer's transaction is open"
    return ""
