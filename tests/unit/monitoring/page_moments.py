"""What the operator page's answers are made of: moments of a few or of many streams, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.control import Desired, ProgressRow
from penstock.monitoring.dashboard.data_flow import DataFlow
from penstock.monitoring.dashboard.declarations import Declarations
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.page_data import PageData
from penstock.monitoring.dashboard.platform_status import PlatformStatus
from penstock.monitoring.dashboard.snapshot import Snapshot
from penstock.monitoring.dashboard.states import StateLimits
from penstock.monitoring.dashboard.under_way import late_streams, under_way
from tests.unit.monitoring.overviews import APP, NOW, driver, row


def declared(*rows: Mapping[str, Any], edges: list[tuple[str, str]] | None = None) -> Declarations:
    """Declarations with a graph of `kind name` pairs."""
    plain = {"app": "metrics", "behind_ms": 0, "location": "jobs/a.py:1", "reads": [], "writes": [], "runs": True}
    names = sorted({end for edge in edges or () for end in edge})
    nodes = [dict(zip(("kind", "name"), name.split(" "), strict=True)) for name in names]
    graph = [{"source": names.index(a), "target": names.index(b)} for a, b in edges or ()]
    return Declarations(
        {one["name"]: {**plain, **one} for one in rows}, {}, DataFlow.of({"nodes": nodes, "edges": graph})
    )


def moment(
    rows: list[ProgressRow],
    declarations: Declarations | None = None,
    falls: Mapping[str, float] | None = None,
    **more: Any,
) -> PageData:
    """The present moment with some streams, each app with a driver that works."""
    desired: dict[str, dict[str, Desired]] = {}
    for one in rows:
        desired.setdefault(one.app, {})[one.name] = "on"
    apps = [replace(APP, name=name, incarnation=f"d-{name}") for name in sorted(desired)]
    drivers = {f"d-{name}": driver(incarnation=f"d-{name}", app=name) for name in desired}
    progress = {one.name: replace(one, incarnation=f"d-{one.app}") for one in rows}
    snap = Snapshot(NOW, apps, desired, drivers, progress, **more)
    status = PlatformStatus(snap, overview(snap, StateLimits()), StateLimits())
    late = late_streams(status.streams)
    return PageData(status, declarations, "0" * 64, under_way(status.view, late, falls or {}), {})


def many(count: int) -> list[ProgressRow]:
    """Streams in apps of fifty; every seventh fails."""
    return [
        row(
            name=f"stream-{n:05}", app=f"app-{n // 50:03}", state="running" if n % 7 else "failing",
            error=None if n % 7 else "x" * 4000, error_at=NOW - 1000,
        )
        for n in range(count)
    ]  # fmt: skip
