"""The Prometheus endpoint: names, types and values, and an absent control database."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from penstock.catalog import build
from penstock.control import Control, ProgressRow, tables
from penstock.control.repositories.captures import CaptureRow, Captures
from penstock.control.repositories.view_instances import ViewInstanceRow, ViewInstances
from penstock.errors import ControlError, HostError
from penstock.host.ports import free_port
from penstock.monitoring.collect.samples import Sample, now_ms
from penstock.monitoring.dashboard import platform_status
from penstock.monitoring.dashboard.platform_status import PlatformStatusCache
from penstock.monitoring.dashboard.states import StateLimits
from penstock.monitoring.prometheus import PlatformCollector, exported, serve
from penstock.streams import Topic, View
from penstock.views.api.request_metrics import RequestMetrics
from tests.support.meter_control import APP, STREAM, filled

pytestmark = pytest.mark.processes

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(collector: PlatformCollector) -> str:
    port = free_port()
    stop = serve([collector], port)
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
        assert answer.status_code == 200
        return answer.text
    finally:
        stop()


def series(text: str) -> Series:
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def of(found: Series, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_streams_apps_and_drivers_are_exported(control: Control) -> None:
    text = scrape(PlatformCollector(PlatformStatusCache(filled(control))))
    found = series(text)
    here = {"stream": STREAM, "app": APP}
    assert of(found, "penstock_control_up") == 1
    exact = {
        "desired": 1, "up": 1, "batch_id": 41, "batch_duration_seconds": 0.25, "rows_per_second": 120.5,
        "rows_in_total": 1000, "rows_out_total": 900, "late_records_total": 3, "dead_letters_total": 2,
        "restarts_total": 1, "state_rows": 17, "state_bytes": 2097152,
    }  # fmt: skip
    assert {name: of(found, f"penstock_stream_{name}", **here) for name in exact} == exact
    assert 0 <= of(found, "penstock_stream_progress_age_seconds", **here) < 5
    assert 1 <= of(found, "penstock_stream_batch_age_seconds", **here) < 6
    assert 5 <= of(found, "penstock_stream_watermark_age_seconds", **here) < 10
    assert of(found, "penstock_stream_lag_records", **here, topic="clicks") == 12
    assert of(found, "penstock_stream_violations_total", **here, rule="positive", action="dead letter") == 6
    assert of(found, "penstock_stream_state", **here, state="running") == 1
    assert of(found, "penstock_stream_state", **here, state="failing") == 0
    assert of(found, "penstock_app_up", app=APP) == 1
    assert of(found, "penstock_app_wanted", app=APP) == 1
    assert of(found, "penstock_app_restarts_total", app=APP) == 0
    assert of(found, "penstock_driver_up", app=APP) == 1
    assert of(found, "penstock_app_drivers", app=APP) == 1
    assert any(name == "process_resident_memory_bytes" for name, _ in found)


def test_a_launch_creates_no_new_series(control: Control) -> None:
    before = series(scrape(PlatformCollector(PlatformStatusCache(filled(control))))).keys()
    old = control.apps()[0].incarnation
    new = control.claim(APP, old, host="h", spec_hash="s", owner="o", log="l")
    assert new
    control.report_driver_resources(new, None)
    found = series(scrape(PlatformCollector(PlatformStatusCache(control))))
    assert {key for key in found if key[0].startswith("penstock_driver")} <= before
    assert of(found, "penstock_app_drivers", app=APP) == 2


def test_captures_are_exported(control: Control) -> None:
    filled(control)
    Captures(control).report(
        CaptureRow(
            "orders", phase="reconciling", polls=7, snapshot_rows=90, snapshot_total=100, oldest_at=now_ms() - 30_000,
            skipped_until=5, dead_letter_rows={"rows": 4, "first": '{"id":7}'},
            drift={"missing": 1, "differing": 2, "extra": 3, "rows": 100, "ended": 1.5e9, "explained": True},
        )
    )  # fmt: skip
    found = series(scrape(PlatformCollector(PlatformStatusCache(control))))
    exact = {
        "polls_total": 7, "snapshot_rows": 90, "snapshot_rows_expected": 100, "ignores_open_transactions": 1,
        "compared_rows": 100,
        "compared_time_seconds": 1.5e9, "drift_explained": 1, "dead_letter_rows": 4,
    }  # fmt: skip
    assert {name: of(found, f"penstock_capture_{name}", capture="orders") for name in exact} == exact
    assert of(found, "penstock_capture_phase", capture="orders", phase="reconciling") == 1
    assert of(found, "penstock_capture_phase", capture="orders", phase="refused") == 0
    assert of(found, "penstock_capture_drift_rows", capture="orders", kind="extra") == 3
    assert 30 <= of(found, "penstock_capture_open_transaction_age_seconds", capture="orders") < 40


def test_views_are_exported_with_the_requests_of_their_instances(control: Control) -> None:
    filled(control)
    app, row = "views-1", "fleet@1"
    control.sync(build([View("fleet", Topic("agents", compacted=True), "account STRING", query_by="account")]))
    incarnation = control.claim(app, None, host="h", spec_hash="s", owner="o", log="l")
    assert incarnation
    figures = ProgressRow(row, app, incarnation, state="idle", state_rows=40, state_bytes=900, lag=3)
    control.report([replace(figures, watermark=now_ms() - 7_000)], keep=False)
    instances, counted = ViewInstances(control), RequestMetrics(["fleet"])
    instances.report(ViewInstanceRow(app, 1, incarnation, "http://127.0.0.1:1"))
    asked = {"path_params": {"view": "fleet"}, "route": SimpleNamespace(name="row"), "headers": []}
    for status, seconds in ((200, 0.003), (200, 0.004), (404, 0.3)):
        counted.take(asked, status, seconds)
    counted.take({**asked, "headers": [(b"penstock-forwarded", b"views-2")]}, 200, 40.0)
    counted.take({**asked, "path_params": {"view": "unheard-of"}}, 404, 0.0)
    counted.take({"headers": []}, 401, 0.0)
    instances.report_request_metrics(app, counted.samples())
    found = series(scrape(PlatformCollector(PlatformStatusCache(control))))
    here = {"view": "fleet", "app": app}
    exact = {"rows": 40, "bytes": 900, "lag_records": 3}
    assert {name: of(found, f"penstock_view_{name}", **here) for name in exact} == exact
    assert 7 <= of(found, "penstock_view_age_seconds", **here) < 12
    client = {**here, "route": "row", "caller": "client"}
    assert of(found, "penstock_view_requests_total", **client, status="200") == 2
    assert of(found, "penstock_view_requests_total", **client, status="404") == 1
    buckets = {"0.0025": 0, "0.005": 2, "0.25": 2, "0.5": 3, "+Inf": 3}
    assert {le: of(found, "penstock_view_request_seconds_bucket", **client, le=le) for le in buckets} == buckets
    assert of(found, "penstock_view_request_seconds_sum", **client) == pytest.approx(0.307)
    other = {**client, "caller": "instance"}
    assert of(found, "penstock_view_request_seconds_bucket", **other, le="30.0") == 0
    assert of(found, "penstock_view_request_seconds_count", **other) == 1
    nothing = {"view": "", "app": app, "caller": "client"}
    assert of(found, "penstock_view_requests_total", **nothing, route="row", status="404") == 1
    assert of(found, "penstock_view_requests_total", **nothing, route="", status="401") == 1
    assert {name for name, _ in found if name.startswith("penstock_")} <= exported()
    with control.begin() as c:
        c.execute(update(tables.view_instance).values(alive_at=tables.view_instance.c.alive_at - 120_000))
    gone = series(scrape(PlatformCollector(PlatformStatusCache(control))))
    assert not any(name.startswith("penstock_view_request") for name, _ in gone)


def test_sinks_are_exported(control: Control) -> None:
    def sink(**given: Any) -> Series:
        incarnation = control.apps()[0].incarnation
        assert incarnation
        store = {
            "destination": "elasticsearch:tests",
            "written": 40,
            "conflicts": 7,
            "bytes": 900,
            "written_per_s": 2.5,
        }
        row = ProgressRow(STREAM, APP, incarnation, store=store | {"retried": 3, "refused": 1, "waits": 2}, **given)
        control.report([row], keep=False)
        return series(scrape(PlatformCollector(PlatformStatusCache(control))))

    assert not any(
        name.startswith("penstock_sink")
        for name, _ in series(scrape(PlatformCollector(PlatformStatusCache(filled(control)))))
    )
    here = {"stream": STREAM, "app": APP}
    exact = {
        "store_away_seconds": 0, "written_total": 40, "conflicts_total": 7, "retried_total": 3, "refused_total": 1,
        "bytes_total": 900, "waits_total": 2, "written_per_second": 2.5,
    }  # fmt: skip
    well = sink(state="running")
    assert {name: of(well, f"penstock_sink_{name}", **here) for name in exact} == exact
    away = sink(state="waiting", error="nobody there", error_at=now_ms() - 90_000)
    assert 90 <= of(away, "penstock_sink_store_away_seconds", **here) < 100
    failing = sink(state="failing", error="not let in")
    assert ("penstock_sink_store_away_seconds", frozenset(here.items())) not in failing, "nobody knows"


def test_backfills_are_exported(control: Control) -> None:
    filled(control)
    for day, rows in ((1, 900), (2, 0)):
        control.begin_backfill(f"orders {day}", name="orders", target="orders", owner="me", files=24, rows=rows)
        control.report_backfill(f"orders {day}", files_done=day, rows_done=50, rate=2.5, remaining_ms=day * 1500)
    control.report_backfill("orders 2", state="waiting", why="for its target")
    control.begin_backfill("years", name="years", target="orders", owner="me", files=3)
    control.end_backfill("years", "failed", "no such bucket")
    found = series(scrape(PlatformCollector(PlatformStatusCache(control))))
    exact = {
        "running": 2, "waiting": 1, "failed": 0, "silent": 0, "files": 48, "files_done": 3, "rows": 900,
        "rows_done": 100, "rows_per_second": 5, "remaining_seconds": 3,
    }  # fmt: skip
    assert {name: of(found, f"penstock_backfill_{name}", backfill="orders") for name in exact} == exact
    ended = {name: value for (name, labels), value in found.items() if ("backfill", "years") in labels}
    assert {name.removeprefix("penstock_backfill_"): value for name, value in ended.items()} == {
        "running": 0, "waiting": 0, "failed": 1, "silent": 0,
    }  # fmt: skip


def test_the_exposition_is_valid(control: Control) -> None:
    sampled = {m: Sample(m, 1.0, now_ms()) for m in ("cpu.broker", "memory.broker", "dbWaitTime", "diskBusy.vda")}
    text = scrape(PlatformCollector(PlatformStatusCache(filled(control)), lambda: sampled))
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert family.type in ("gauge", "counter")
        assert (family.type == "counter") == all(s.name.endswith("_total") for s in family.samples)
        assert re.fullmatch(r"(penstock|process)_[a-z_]+", family.name)
    names = {name for name, _ in series(text) if name.startswith("penstock_")}
    assert names <= exported()
    assert {n for n in exported() if n.startswith(("penstock_stream", "penstock_app", "penstock_driver"))} <= names
    if promtool := shutil.which("promtool"):
        done = subprocess.run([promtool, "check", "metrics"], check=False, input=text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_fresh_samples_are_exported_in_base_units(control: Control) -> None:
    sampled = {
        "memory.broker": Sample("memory.broker", 2.0, now_ms()),
        "dbWaitTime": Sample("dbWaitTime", 5.0, now_ms()),
        "cpu.gone": Sample("cpu.gone", 1.0, now_ms() - 61_000),
        "stateRows.x": Sample("stateRows.x", 1.0, now_ms()),
    }
    found = series(scrape(PlatformCollector(PlatformStatusCache(filled(control)), lambda: sampled, keep=60)))
    assert of(found, "penstock_part_memory_bytes", part="broker") == 2 * 1024 * 1024
    assert of(found, "penstock_control_round_trip_seconds") == pytest.approx(0.005)
    assert not any(name == "penstock_part_cpu_cores" for name, _ in found)


def test_an_absent_database_is_a_metric_not_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    away = PlatformStatusCache(Control(f"mysql+pymysql://penstock:secret@127.0.0.1:{free_port()}/x"), keep=0)
    collector = PlatformCollector(away, lambda: {"cpuBusy": Sample("cpuBusy", 0.5, now_ms())})
    found = series(scrape(collector))
    assert {name: value for (name, _), value in found.items() if name.startswith("penstock")} == {
        "penstock_control_up": 0,
        "penstock_machine_cpu_busy_ratio": 0.5,
    }
    scrape(collector)
    assert caplog.text.count("scrapes are without streams") == 1
    assert "secret" not in caplog.text


def test_an_old_report_is_down_and_a_stream_without_one_too(control: Control) -> None:
    filled(control)
    stale = series(scrape(PlatformCollector(PlatformStatusCache(control, StateLimits(stuck_ms=-1, fresh_ms=-1)))))
    assert of(stale, "penstock_stream_up", stream=STREAM, app=APP) == 0
    assert of(stale, "penstock_app_up", app=APP) == 0
    incarnation = control.apps()[0].incarnation
    assert incarnation
    control.report([ProgressRow(STREAM, APP, incarnation, state="failing", error="boom")], keep=False)
    failing = series(scrape(PlatformCollector(PlatformStatusCache(control))))
    assert of(failing, "penstock_stream_up", stream=STREAM, app=APP) == 0
    assert of(failing, "penstock_stream_state", stream=STREAM, app=APP, state="failing") == 1
    with control.engine.begin() as c:
        c.execute(tables.progress.delete())
    found = series(scrape(PlatformCollector(PlatformStatusCache(control))))
    assert of(found, "penstock_stream_up", stream=STREAM, app=APP) == 0
    assert not any(name == "penstock_stream_batch_id" for name, _ in found)


def test_concurrent_scrapes_read_the_database_once(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, moment = [], 0.0
    real = platform_status.read_status

    def counted(control: Control, limits: StateLimits) -> platform_status.PlatformStatus:
        reads.append(moment)
        if moment > 5:
            raise ControlError("away")
        return real(control, limits)

    monkeypatch.setattr(platform_status, "read_status", counted)
    shared = PlatformStatusCache(filled(control), keep=1.0, clock=lambda: moment)
    threads = [threading.Thread(target=shared.read) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    moment = 0.9
    shared.read()
    assert reads == [0.0]
    moment = 6.0
    for _ in range(2):
        with pytest.raises(ControlError):
            shared.read()
    assert reads == [0.0, 6.0]
    moment = 0.0
    shared.invalidate()
    assert shared.read().streams[0].batch_id == 41


def test_a_used_port_is_an_error(control: Control) -> None:
    collector = PlatformCollector(PlatformStatusCache(filled(control)))
    port = free_port()
    stop = serve([collector], port)
    try:
        with pytest.raises(HostError, match=f"127.0.0.1:{port}.*PENSTOCK_METRICS_PORT"):
            serve([collector], port)
    finally:
        stop()
