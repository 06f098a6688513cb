"""What the views of the operator page are answered: bounded pages of the present moment, and search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from sqlalchemy import insert

from penstock.control import Control, FaultRow, tables
from penstock.control.repositories.apps import DeclaredApps
from penstock.control.repositories.captures import CaptureRow
from penstock.monitoring.dashboard.answers import archives_views, dead_letters, parts, streams
from penstock.monitoring.dashboard.answers.paging import PAGE
from penstock.monitoring.dashboard.answers.summary import summary
from penstock.monitoring.dashboard.under_way import read_lag_falls
from tests.unit.monitoring.overviews import NOW, row
from tests.unit.monitoring.page_moments import declared, many, moment

STORE = {"destination": "elasticsearch:shops", "written": 3}


def names(answer: Mapping[str, Any]) -> list[str]:
    return [stream["name"] for app in answer["apps"] for stream in app["streams"]]


def test_only_what_is_shown_is_sent() -> None:
    data = moment(many(1_000))
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
    message = moment([*old, fresh]).view.freshness.message
    assert message.endswith("stream-00009 (1 min), and 390 more.")


def test_a_page_past_the_end_is_the_last_one() -> None:
    data = moment(many(205))
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
    found = streams.stream_list(moment(many(100)), q, app, state, 1)
    assert (found["matching"], len(names(found))) == (matching, matching)
    assert found["app_names"] == ["app-000", "app-001"]


def test_a_row_has_what_is_declared_and_not_what_is_long() -> None:
    rows = [row(), row(name="kept", app="archives", error="e" * 900, state="failing")]
    data = moment(
        rows, declared({"name": "bundles", "kind": "stream", "behind_ms": 7_000}, {"name": "kept", "kind": "archive"})
    )
    [kept], [bundles] = (app["streams"] for app in streams.stream_list(data, "", "", "", 1)["apps"])
    assert (bundles["behind_ms"], bundles["replaceable"], kept["replaceable"]) == (7_000, True, False)
    assert bundles["topics"] == [{"name": "receipts", "lag": 17, "partitions": 2}]
    assert not {"gaps", "expectations"} & bundles.keys()
    assert len(kept["error"]) == 501
    assert summary(data)["totals"]["watermark_age_ms"] == 9_000
    only = moment([row()], declared({"name": "bundles", "kind": "stream", "behind_ms": 7_000}))
    assert summary(only)["totals"]["watermark_age_ms"] == 2_000


def test_a_fault_says_what_it_affects_once_that_is_known() -> None:
    edges = [("stream bundles", "topic t")] + [("topic t", f"stream reader-{n}") for n in range(9)]
    readers = [{"name": f"reader-{n}", "kind": "stream", "app": "others"} for n in range(9)]
    down = row(state="failing", error="E", error_at=NOW - 1)
    [fault] = summary(moment([down], declared({"name": "bundles", "kind": "stream"}, *readers, edges=edges)))["faults"]
    assert (fault["affects"], fault["affects_total"]) == ([f"reader-{n}" for n in range(7)], 9)
    [fault] = summary(moment([down]))["faults"]
    assert (fault["affects"], fault["affects_total"]) == ([], 0)
    data = moment([down], declared({"name": "bundles", "kind": "stream"}, *readers, edges=edges))
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
    counted = moment([*rows, row(name="shops-2", app="sinks", store=STORE, **failing)]).common["attention"]
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
    found = summary(moment(rows, falls={"behind": 50.0, "loads": 5.0}, captures=captures))["progress"]
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
    data = moment(rows, declared({"name": "bundles", "kind": "stream"}, edges=edges), faults=lasting)
    found = cast("dict[str, Any]", streams.stream_details(data, control, "bundles"))
    assert found["reads_from"] == [{"kind": "capture", "name": "shops", "through": "shops", "shown": False}]
    assert found["read_by"] == [{"kind": "sink", "name": "search", "through": "bundles", "shown": False}]
    assert [(fault["kind"], fault["lasted_ms"], fault["ended_at"]) for fault in found["faults"]] == [
        ("stream", 9_000, None), ("stream", 5_000, NOW - 4_000),
    ]  # fmt: skip
    assert ("streams" in found["app"], found["app"]["name"], found["stream"]["name"]) == (False, "metrics", "bundles")
    assert found["stream"]["topics"][0].offsets == {"2": 4, "10": 5}
    assert (found["declared"]["kind"], found["replacement"]) == ("stream", None)
    other = cast("dict[str, Any]", streams.stream_details(moment(rows), control, "other"))
    assert (other["declared"], other["reads_from"], other["faults"][0]["name"]) == (None, [], "other")
    assert streams.stream_details(data, control, "nobody") is None


def test_sinks_are_found_by_what_they_read_and_feed() -> None:
    edges = [("stream bundles", "topic totals"), ("topic totals", "sink search")]
    store = {"kind": "store", "name": "elasticsearch:shops"}
    sinks = ({"name": "search", "kind": "sink", "writes": [store]}, {"name": "other", "kind": "sink", "runs": False})
    rows = [row(name="search", app="sinks", store=STORE), row()]
    data = moment(rows, declared({"name": "bundles", "kind": "stream"}, *sinks, edges=edges))
    for q in ("elasticsearch:shops", "TOTALS", "bundles"):
        [sink] = parts.sink_list(data, q, 1)["sinks"]
        assert sink["name"] == "search"
    assert sink["reads_from"] == [{"kind": "stream", "name": "bundles", "through": "totals", "shown": True}]


def test_a_fault_has_the_address_of_its_view() -> None:
    failing = {"state": "failing", "error": "E", "error_at": NOW - 1}
    data = moment([row(**failing), row(name="till shops", app="captures", **failing)])
    assert {fault["name"]: fault["address"] for fault in summary(data)["faults"]} == {
        "bundles": "#/streams/bundles", "till shops": "#/captures?q=till%20shops",
    }  # fmt: skip


def test_an_app_whose_driver_drains_has_two_releases() -> None:
    data = moment([row()])
    [app] = data.view.apps
    assert (app.release_seq, app.running_release) == (0, 0)


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
    data = moment(rows, declared(*sinks))
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
    data = moment([row()], declared({"name": "replay", "kind": "backfill"}, {"name": "new", "kind": "backfill"}))
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
    assert [app["name"] for app in summary(moment(rows))["apps"]] == ["b", "a", "c"]


def test_archives_and_views_are_shown_with_what_runs_them(control: Control) -> None:
    topic = [{"kind": "topic", "name": "orders"}]
    bucket = [{"kind": "store", "name": "bucket:lake/orders"}]
    rows = [
        row(name="kept", app="archives", lag=3),
        row(name="fleet@1", app="views-1"),
        row(name="fleet@2", app="views-2"),
    ]
    declarations = declared(
        {"name": "kept", "kind": "archive", "reads": topic, "writes": bucket, "masks": [], "table": "penstock.kept"},
        {
            "name": "off",
            "kind": "archive",
            "reads": topic,
            "writes": bucket,
            "masks": ["key HASHED"],
            "runs": False,
            "table": "lake.off",
        },
        {"name": "fleet", "kind": "view", "reads": topic, "masks": []},
        {"name": "agents", "kind": "panel"},
    )
    data = moment(rows, replace(declarations, panels={"agents": {"title": "Agents", "view": "fleet"}}))
    control.record_partitions("kept", [("2026-01-01T01", 1), ("2026-01-01T02", 1)])
    kept, off = archives_views.archive_list(data, control)["archives"]
    assert [kept[k] for k in ("table", "place", "topic", "newest_closed_hour", "state", "lag", "rows_per_s")] == [
        "penstock.kept", "bucket:lake/orders", "orders", "2026-01-01T02", "running", 3, 120.0,
    ]  # fmt: skip
    assert (off["state"], off["newest_closed_hour"], off["runs"], off["masks"]) == (None, None, False, ["key HASHED"])
    shown = archives_views.view_list(data)
    [fleet] = shown["views"]
    assert [(one["name"], one["app"], one["state"], one["rows"]) for one in fleet["instances"]] == [
        ("fleet@1", "views-1", "running", 5), ("fleet@2", "views-2", "running", 5),
    ]  # fmt: skip
    assert shown["panels"] == [{"name": "agents", "title": "Agents", "view": "fleet", "location": "jobs/a.py:1"}]
    assert fleet["panels"] == ["agents"]
    unknown = moment(rows)
    assert archives_views.archive_list(unknown, control) == {"archives": [], "archives_total": 0}
    assert archives_views.view_list(unknown) == {"views": [], "panels": []}


def test_streams_with_dead_letters_are_shown_with_those_of_the_last_hour(control: Control) -> None:
    store = {**STORE, "dead_letter_topics": ["unfit"]}
    rows = [
        row(name="none", late=0, dead=0),
        row(name="few", late=2, dead=5),
        row(name="many", late=0, dead=9, store=store),
    ]
    streams_ = {name: SimpleNamespace(name=name, app="metrics") for name in ("none", "few", "many")}
    control.sync(cast("DeclaredApps", SimpleNamespace(apps={"metrics": None}, supervised=streams_)))
    control.report(rows, keep=False)
    now = control.now()
    zeros = dict.fromkeys(("rows_per_s", "rows_in", "rows_out", "restarts"), 0)
    with control.begin() as c:
        for ago, late, dead in ((7_200_000, 0, 0), (1_800_000, 1, 3), (60_000, 2, 4)):
            c.execute(insert(tables.history).values(name="few", at=now - ago, late=late, dead=dead, **zeros))
    data = moment(rows)
    data = replace(data, status=replace(data.status, view=replace(data.view, now=now)))
    found = dead_letters.dead_letter_list(data, control, "", 1)["streams"]
    shown = [(one["name"], one["dead"], one["late"], one["dead_last_hour"], one["late_last_hour"]) for one in found]
    assert shown == [("many", 9, 0, 0, 0), ("few", 5, 2, 2, 1)]
    assert found[0]["topics"] == ["receipts-dead-letter", "unfit", "penstock.dead-letters"]
    assert dead_letters.letter_topics(data)[:2] == ["receipts-dead-letter", "unfit"]
    assert dead_letters.dead_letter_list(data, control, "MANY", 1)["matching"] == 1
    topic = [{"kind": "topic", "name": "orders"}]
    assert "orders-dead-letter" in dead_letters.all_letter_topics(
        moment(rows, declared({"name": "x", "kind": "stream", "reads": topic}))
    )


def test_a_view_of_an_instance_has_the_declaration_of_the_view(control: Control) -> None:
    edges = [("topic orders", "view fleet")]
    data = moment([row(name="fleet@1", app="views-1")], declared({"name": "fleet", "kind": "view"}, edges=edges))
    details = cast("dict[str, Any]", streams.stream_details(data, control, "fleet@1"))
    assert details["declared"]["name"] == "fleet"
    assert details["reads_from"] == [{"kind": "topic", "name": "orders", "through": "orders", "shown": False}]
