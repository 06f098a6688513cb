"""What the views of the operator page are answered: bounded pages of the present moment, and search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import orjson
import pytest
from sqlalchemy import insert

from penstock.control import Control, Desired, FaultRow, ProgressRow, tables
from penstock.control.repositories.captures import CaptureRow
from penstock.monitoring.dashboard.answers import parts, streams
from penstock.monitoring.dashboard.answers.paging import PAGE
from penstock.monitoring.dashboard.answers.summary import summary
from penstock.monitoring.dashboard.data_flow import DataFlow
from penstock.monitoring.dashboard.declarations import Declarations
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.page_data import PageData
from penstock.monitoring.dashboard.platform_status import PlatformStatus
from penstock.monitoring.dashboard.snapshot import Snapshot
from penstock.monitoring.dashboard.states import StateLimits
from penstock.monitoring.dashboard.under_way import late_streams, read_lag_falls, under_way
from tests.unit.monitoring.overviews import APP, NOW, driver, row

STORE = {"destination": "elasticsearch:shops", "written": 3}


def declared(*rows: Mapping[str, Any], edges: list[tuple[str, str]] | None = None) -> Declarations:
    """Declarations with a graph of `kind name` pairs."""
    plain = {"app": "metrics", "behind_ms": 0, "location": "jobs/a.py:1", "reads": [], "writes": [], "runs": True}
    names = sorted({end for edge in edges or () for end in edge})
    nodes = [dict(zip(("kind", "name"), name.split(" "), strict=True)) for name in names]
    graph = [{"source": names.index(a), "target": names.index(b)} for a, b in edges or ()]
    return Declarations(
        {one["name"]: {**plain, **one} for one in rows}, {}, DataFlow.of({"nodes": nodes, "edges": graph})
    )


def seen(
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
    return PageData(status, declarations, "0" * 64, under_way(status.view, late, falls or {}))


def many(count: int) -> list[ProgressRow]:
    """Streams in apps of fifty; every seventh fails."""
    return [
        row(
            name=f"stream-{n:05}", app=f"app-{n // 50:03}", state="running" if n % 7 else "failing",
            error=None if n % 7 else "x" * 4000, error_at=NOW - 1000,
        )
        for n in range(count)
    ]  # fmt: skip


def names(answer: Mapping[str, Any]) -> list[str]:
    return [stream["name"] for app in answer["apps"] for stream in app["streams"]]


def test_only_what_is_shown_is_sent() -> None:
    data = seen(many(1_000))
    first = summary(data)
    assert (len(first["faults"]), first["faults_total"]) == (100, 143)
    assert first["totals"]["by_state"] == {"failing": 143, "running": 857}
    assert len(first["apps"]) == first["apps_total"] == 20
    assert first["apps"][0]["by_state"] == {"failing": 8, "running": 42}
    page = streams.stream_list(data, "", "", "", 1)
    assert names(page) == [f"stream-{n:05}" for n in range(PAGE)]
    assert [page[name] for name in ("page", "pages", "matching", "total")] == [1, 10, 1000, 1000]
    assert [(app["name"], app["streams_total"]) for app in page["apps"]] == [("app-000", 50), ("app-001", 50)]
    for answer in (first, page):
        assert len(orjson.dumps({**data.common, **answer}, option=orjson.OPT_NON_STR_KEYS)) < 200_000


def test_a_message_names_ten_of_those_it_is_about() -> None:
    old = [replace(one, reported_at=NOW - 60_000) for one in many(400)]
    fresh = row(name="fresh", app="fresh")
    message = seen([*old, fresh]).view.freshness.message
    assert message.endswith("stream-00009 (1 min), and 390 more.")


def test_a_page_past_the_end_is_the_last_one() -> None:
    data = seen(many(205))
    assert names(streams.stream_list(data, "", "", "", 99)) == [f"stream-{n:05}" for n in range(200, 205)]
    nothing = streams.stream_list(data, "no such", "", "", 99)
    assert [nothing[name] for name in ("page", "pages", "matching", "total")] == [1, 1, 0, 205]


@pytest.mark.parametrize(
    ("q", "app", "state", "matching"),
    [
        ("STREAM-0000", "", "", 10), ("app-001", "", "", 50), ("", "app-001", "", 50), ("", "", "failing", 15),
        ("", "app-001", "failing", 7), ("failing", "app-000", "", 8), (" 00042 ", "", "failing", 1),
        ("xxx", "", "", 15),
        ("", "no such", "", 0),
    ],
)  # fmt: skip
def test_streams_are_searched_on_the_server(q: str, app: str, state: str, matching: int) -> None:
    found = streams.stream_list(seen(many(100)), q, app, state, 1)
    assert (found["matching"], len(names(found))) == (matching, matching)
    assert found["app_names"] == ["app-000", "app-001"]


def test_a_row_has_what_is_declared_and_not_what_is_long() -> None:
    rows = [row(), row(name="kept", app="archives", error="e" * 900, state="failing")]
    data = seen(
        rows, declared({"name": "bundles", "kind": "stream", "behind_ms": 7_000}, {"name": "kept", "kind": "archive"})
    )
    [kept], [bundles] = (app["streams"] for app in streams.stream_list(data, "", "", "", 1)["apps"])
    assert (bundles["behind_ms"], bundles["replaceable"], kept["replaceable"]) == (7_000, True, False)
    assert bundles["topics"] == [{"name": "receipts", "lag": 17, "partitions": 2}]
    assert not {"gaps", "expectations"} & bundles.keys()
    assert len(kept["error"]) == 501
    assert summary(data)["totals"]["watermark_age_ms"] == 9_000
    only = seen([row()], declared({"name": "bundles", "kind": "stream", "behind_ms": 7_000}))
    assert summary(only)["totals"]["watermark_age_ms"] == 2_000


def test_a_fault_says_what_it_affects_once_that_is_known() -> None:
    edges = [("stream bundles", "topic t")] + [("topic t", f"stream reader-{n}") for n in range(9)]
    readers = [{"name": f"reader-{n}", "kind": "stream", "app": "others"} for n in range(9)]
    down = row(state="failing", error="E", error_at=NOW - 1)
    [fault] = summary(seen([down], declared({"name": "bundles", "kind": "stream"}, *readers, edges=edges)))["faults"]
    assert (fault["affects"], fault["affects_total"]) == ([f"reader-{n}" for n in range(7)], 9)
    [fault] = summary(seen([down]))["faults"]
    assert (fault["affects"], fault["affects_total"]) == ([], 0)
    data = seen([down], declared({"name": "bundles", "kind": "stream"}, *readers, edges=edges))
    [fault] = data.view.faults
    of_app = replace(data.view, faults=[replace(fault, kind="app", name="metrics")])
    [fault] = summary(replace(data, status=replace(data.status, view=of_app)))["faults"]
    assert (fault["affects"][:2], fault["affects_total"]) == (["bundles", "reader-0"], 10)


def test_faults_are_counted_by_the_view_that_shows_them() -> None:
    failing = {"state": "failing", "error": "E", "error_at": NOW - 1}
    rows = [
        row(**failing),
        row(name="tests", app="captures", **failing),
        row(name="shops", app="sinks", store=STORE, **failing),
    ]
    counted = seen([*rows, row(name="shops-2", app="sinks", store=STORE, **failing)]).common["attention"]
    assert counted == {"streams": 1, "captures": 1, "sinks": 2, "backfills": 0, "replacements": 0}


def test_what_is_under_way_says_how_far_it_is() -> None:
    rows = [
        row(name="tests", app="captures", rows_per_s=100.0), row(name="shops", app="captures"),
        row(name="loads", state="loading", lag=25, topics={"t": {"lag": 25, "offsets": {"0": 75}}}),
        row(name="behind", lag=100_000, rows_per_s=500.0), row(name="stuck", lag=90_000, rows_per_s=10.0),
        row(name="near", lag=29_999, rows_per_s=500.0),
    ]  # fmt: skip
    captures = {
        "tests": CaptureRow("tests", phase="snapshot", snapshot_rows=9_000, snapshot_total=25_000),
        "shops": CaptureRow("shops", phase="reconciling", reconcile="every day"),
    }
    found = summary(seen(rows, falls={"behind": 50.0, "loads": 5.0}, captures=captures))["progress"]
    shown = {(one.kind, one.name): (one.done, one.rate, one.remaining_ms) for one in found}
    assert shown == {
        ("reconcile", "shops"): (None, None, None),
        ("capture snapshot", "tests"): (0.36, 100.0, 160_000),
        ("loading", "loads"): (0.75, 5.0, 5_000),
        ("catching up", "behind"): (None, 500.0, 2_000_000),
        ("catching up", "stuck"): (None, 10.0, None),
    }
    assert {one.view for one in found} == {"captures", "streams"}


def test_lag_falls_by_the_history_of_the_last_minutes(control: Control) -> None:
    now = control.now()
    zeros = dict.fromkeys(("rows_per_s", "rows_in", "rows_out", "late", "dead", "restarts"), 0)
    lags = {"falls": (9_000, 3_000), "grows": (5, 900), "unknown": (9, None), "other": (9, 0)}
    with control.begin() as c:
        for name, values in lags.items():
            c.execute(insert(tables.history).values(name=name, at=now - 600_000, lag=10**9, **zeros))
            for n, lag in enumerate(values):
                c.execute(insert(tables.history).values(name=name, at=now - 60_000 + n * 60_000, lag=lag, **zeros))
        c.execute(insert(tables.history).values(name="new", at=now, lag=1, **zeros))
    assert read_lag_falls(control, ["falls", "grows", "unknown", "new"], now) == {"falls": 100.0}
    assert read_lag_falls(control, [], now) == {}


def test_a_stream_has_its_neighbours_and_faults(control: Control) -> None:
    edges = [("capture shops", "topic shops"), ("topic shops", "stream bundles"), ("stream bundles", "topic bundles"),
             ("topic bundles", "sink search")]  # fmt: skip
    at = {"since": NOW - 9_000, "app": "metrics", "state": "failing", "reason": "E"}
    with control.begin() as c:
        for kind, name in (("stream", "bundles"), ("stream", "other"), ("backfill", "bundles")):
            c.execute(insert(tables.fault).values(kind=kind, name=name, ended_at=NOW - 4_000, **at))
    lasting = [FaultRow(kind="stream", name="bundles", ended_at=None, **at)]  # type: ignore[arg-type]
    rows = [row(state="failing", error="E", error_at=NOW - 1), row(name="other")]
    data = seen(rows, declared({"name": "bundles", "kind": "stream"}, edges=edges), faults=lasting)
    found = cast("dict[str, Any]", streams.stream_details(data, control, "bundles"))
    assert found["reads_from"] == [{"kind": "capture", "name": "shops", "through": "shops"}]
    assert found["read_by"] == [{"kind": "sink", "name": "search", "through": "bundles"}]
    assert [(fault["kind"], fault["lasted_ms"], fault["ended_at"]) for fault in found["faults"]] == [
        ("stream", 9_000, None), ("stream", 5_000, NOW - 4_000),
    ]  # fmt: skip
    assert ("streams" in found["app"], found["app"]["name"], found["stream"]["name"]) == (False, "metrics", "bundles")
    assert found["stream"]["topics"][0].offsets == {"2": 4, "10": 5}
    assert (found["declared"]["kind"], found["replacement"]) == ("stream", None)
    other = cast("dict[str, Any]", streams.stream_details(seen(rows), control, "other"))
    assert (other["declared"], other["reads_from"], other["faults"][0]["name"]) == (None, [], "other")
    assert streams.stream_details(data, control, "nobody") is None


def test_sinks_are_shown_that_do_not_run() -> None:
    store = {"kind": "store", "name": "mongodb:shops"}
    rows = [row(name="search", app="sinks", store=STORE), row(name="new", app="sinks", lag=4)]
    sinks = (
        {"name": "search", "kind": "sink", "location": "sql/sinks/search.sql:1"},
        {
            "name": "off",
            "kind": "sink",
            "app": "sinks",
            "runs": False,
            "writes": [store, {"kind": "topic", "name": "t"}],
        },
        {"name": "new", "kind": "sink", "app": "sinks", "writes": [store]},
    )
    data = seen(rows, declared(*sinks))
    found = parts.sink_list(data, "", 1)["sinks"]
    shown = [
        (one["name"], one["runs"], one["state"], one["health"], one["destination"], one["stated"]) for one in found
    ]
    assert shown == [
        ("new", True, "running", "unknown", "mongodb:shops", False),
        ("off", False, None, "unknown", "mongodb:shops", False),
        ("search", True, "running", "unknown", "elasticsearch:shops", True),
    ]
    assert found[0]["lag"] == 4
    assert {one.keys() == found[0].keys() for one in found} == {True}
    assert [one["name"] for one in parts.sink_list(data, "MONGO", 1)["sinks"]] == ["new", "off"]


def test_runs_of_backfills_have_pages(control: Control) -> None:
    for n in range(PAGE + 1):
        control.begin_backfill(f"r{n:03}", name="replay", target="orders", owner="me")
    data = seen([row()], declared({"name": "replay", "kind": "backfill"}, {"name": "new", "kind": "backfill"}))
    first, second = (parts.backfill_list(data, control, page) for page in (1, 2))
    assert (first["pages"], len(first["runs"]), len(second["runs"])) == (2, PAGE, 1)
    assert not {run.run for run in first["runs"]} & {run.run for run in second["runs"]}
    last = {one["name"]: one["last_run"] for one in first["declared"]}
    assert (last["replay"].name, last["new"]) == ("replay", None)


def test_apps_that_do_not_work_are_first() -> None:
    rows = [
        row(name="a", app="a"),
        row(name="b", app="b", state="blocked", error="E", error_at=NOW - 1),
        row(name="c", app="c"),
    ]
    assert [app["name"] for app in summary(seen(rows))["apps"]] == ["b", "a", "c"]
