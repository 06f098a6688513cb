"""Overviews of one app with one stream, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.control import AppRow, Desired, DriverRow, ProgressRow
from penstock.monitoring.dashboard.model import Overview
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.snapshot import Snapshot
from penstock.monitoring.dashboard.states import State, StateLimits

NOW = 1_800_000_000_000
APP = AppRow("metrics", release_seq=0, incarnation="d1", restarts=2)
DRIVER = DriverRow(
    incarnation="d1", app="metrics", host="pond/5d1c/4026531836", pid=7, pid_started=1.0, release_seq=0, spec_hash="x",
    owner="o", state="running", launched_at=NOW - 60_000, alive_at=NOW - 1_000, ended_at=None, reason=None, log="/l",
)  # fmt: skip
ROW = ProgressRow(
    "bundles", "metrics", "d1", state="running", reported_at=NOW - 1_500, batch_id=9, batch_at=NOW - 2_000,
    batch_ms=300, rows_per_s=120.0, rows_in=1000, rows_out=40, late=3, dead=1, watermark=NOW - 9_000, state_rows=5,
    state_bytes=500, lag=17, topics={"receipts": {"lag": 17, "offsets": {"10": 5, "2": 4}}}, restarts=1,
)  # fmt: skip


def seen(
    *,
    app: AppRow = APP,
    driver: DriverRow | None = DRIVER,
    row: ProgressRow | None = ROW,
    desired: Mapping[str, Desired] | None = None,
    before: Mapping[str, int] | None = None,
    changed: int | None = None,
) -> Overview:
    wanted: dict[str, Desired] = dict(desired or {"bundles": "on"})
    drivers = {driver.incarnation: driver} if driver else {}
    progress = {row.name: row} if row else {}
    known = {} if before is None else {"bundles": before}
    times = {name: changed for name in wanted if changed is not None}
    snapshot = Snapshot(NOW, [app], {app.name: wanted}, drivers, progress, before=known, changed=times)
    return overview(snapshot, StateLimits())


def state_of(view: Overview, name: str = "bundles") -> tuple[State, str]:
    stream = next(s for s in view.apps[0].streams if s.name == name)
    return stream.state, stream.why


def driver(**changes: Any) -> DriverRow:
    return replace(DRIVER, **changes)


def row(**changes: Any) -> ProgressRow:
    return replace(ROW, **changes)


OFF: dict[str, Desired] = {"bundles": "off"}
ENDED = driver(state="ended", ended_at=NOW - 4_000, reason="exit code 137\nsecond line")
