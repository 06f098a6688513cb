"""The dashboard and the alert rules name what is exported, and alert when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from penstock.devstack import debian_packages
from penstock.errors import HostError
from penstock.monitoring.prometheus import exported

pytestmark = pytest.mark.processes

DOCKER = Path(__file__).parents[3] / "docker"
RULES = DOCKER / "prometheus" / "rules.yml"


@pytest.fixture(scope="module")
def promtool() -> Callable[..., None]:
    """Runs Prometheus's own tool, of Debian's package where none is installed; the test fails if it does."""
    found = shutil.which("promtool")
    if not found:
        if not debian_packages.is_available():
            pytest.skip("promtool comes from Debian's packages, and there is no apt-get here")
        try:
            found = str(debian_packages.ensure_unpacked("prometheus", ["prometheus"]) / "usr" / "bin" / "promtool")
        except HostError as e:
            pytest.skip(str(e))

    def run(*arguments: object) -> None:
        done = subprocess.run([found, *map(str, arguments)], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCKER / "grafana" / "penstock.json").read_text())
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def rules() -> dict[str, str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def named(expression: str) -> set[str]:
    return set(re.findall(r"\bpenstock_\w+", expression))


def test_the_dashboard_uses_only_exported_metrics() -> None:
    found = set().union(*map(named, expressions()))
    assert found <= exported()
    queries = [v["definition"] for v in dashboard()["templating"]["list"] if "definition" in v]
    assert set().union(*map(named, queries)) <= exported()


def test_the_dashboard_shows_every_metric_of_the_streams() -> None:
    missing = {n for n in exported() if n.startswith("penstock_stream")} - set().union(*map(named, expressions()))
    assert missing == set()


def test_panels_have_distinct_ids_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_rules_use_only_exported_metrics() -> None:
    for alert, expression in rules().items():
        assert named(expression) <= exported(), alert
        assert named(expression) or alert == "PenstockMeterDown"


def test_the_rules_and_the_configuration_are_valid(promtool: Callable[..., None]) -> None:
    promtool("check", "config", DOCKER / "prometheus" / "prometheus.yml")


def test_the_expressions_of_the_dashboard_are_valid(promtool: Callable[..., None], tmp_path: Path) -> None:
    plain = [e.replace("$__rate_interval", "1m").replace("$stream", ".*") for e in expressions()]
    recorded = [{"record": f"panel_{i}", "expr": e} for i, e in enumerate(plain)]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    promtool("check", "rules", path)


FAULT = '{kind="stream", name="bundles", app="metrics", state="failing", page="#/streams/bundles"}'
STREAM = '{stream="minutes", app="metrics"}'
TOPIC = '{stream="minutes", app="metrics", topic="receipts"}'
SINK = '{stream="search", app="sinks"}'
SUNK = '{stream="search", app="sinks", topic="orders"}'
HEALTHY = {
    'up{job="penstock"}': "1+0x60",
    "penstock_control_up": "1+0x60",
    f"penstock_stream_desired{STREAM}": "1+0x60",
    f"penstock_stream_up{STREAM}": "1+0x60",
    f"penstock_stream_lag_records{TOPIC}": "20000-10x60",
    f"penstock_stream_batch_age_seconds{STREAM}": "2+0x60",
    f"penstock_stream_watermark_age_seconds{STREAM}": "3630+0x60",
    f"penstock_stream_late_records_total{STREAM}": "5+0x60",
    f"penstock_stream_dead_letters_total{STREAM}": "5+0x60",
    f"penstock_stream_desired{SINK}": "1+0x60",
    f"penstock_stream_up{SINK}": "1+0x60",
    f"penstock_stream_lag_records{SUNK}": "20000-10x60",
    f"penstock_stream_rows_per_second{SINK}": "100+0x60",
    f"penstock_stream_batch_age_seconds{SINK}": "2+0x60",
    f"penstock_stream_dead_letters_total{SINK}": "5+0x60",
    f"penstock_sink_store_away_seconds{SINK}": "0+0x60",
    f"penstock_sink_written_total{SINK}": "0+6000x60",
    f"penstock_sink_retried_total{SINK}": "0+500x60",
    'penstock_app_restarts_total{app="metrics"}': "1+0x60",
    'penstock_capture_phase{capture="orders", phase="refused"}': "0+0x60",
    'penstock_capture_drift_rows{capture="orders", kind="missing"}': "0+0x60",
    'penstock_capture_drift_rows{capture="orders", kind="extra"}': "5+0x60",
    'penstock_capture_drift_rows{capture="altered", kind="differing"}': "7+0x60",
    'penstock_capture_drift_explained{capture="orders"}': "0+0x60",
    'penstock_capture_drift_explained{capture="altered"}': "1+0x60",
    'penstock_capture_dead_letter_rows{capture="orders"}': "0+0x60",
    'penstock_capture_open_transaction_age_seconds{capture="orders"}': "2+0x60",
    'penstock_capture_ignores_open_transactions{capture="orders"}': "0+0x60",
    'penstock_backfill_failed{backfill="orders"}': "0+0x60",
    'penstock_backfill_silent{backfill="orders"}': "0+0x60",
    "penstock_kafka_under_replicated_partitions": "0+0x60",
    "penstock_machine_disk_free_bytes": "5e9+0x60",
    'penstock_probe_failed{probe="kafka"}': "0+0x60",
}
BROKEN = {
    "PenstockMeterDown": {'up{job="penstock"}': "0+0x60"},
    "PenstockControlDown": {"penstock_control_up": "0+0x60"},
    "PenstockFault": {f"penstock_fault_seconds{FAULT}": "400+60x60"},
    "PenstockStreamDown": {f"penstock_stream_up{STREAM}": "0+0x60"},
    "PenstockRestartLoop": {'penstock_app_restarts_total{app="metrics"}': "0+1x60"},
    "PenstockLagGrowing": {f"penstock_stream_lag_records{TOPIC}": "20000+10x60"},
    "PenstockBatchOld": {f"penstock_stream_batch_age_seconds{STREAM}": "60+60x60"},
    "PenstockWatermarkOld": {f"penstock_stream_watermark_age_seconds{STREAM}": "3600+60x60"},
    "PenstockWatermarkAhead": {f"penstock_stream_watermark_age_seconds{STREAM}": "-240+0x60"},
    "PenstockLateRecords": {f"penstock_stream_late_records_total{STREAM}": "5+1x60"},
    "PenstockDeadLetters": {f"penstock_stream_dead_letters_total{STREAM}": "5+1x60"},
    "PenstockLostRecords": {f"penstock_stream_lost_records_total{STREAM}": "5+1x60"},
    # Then the sink is not up either, commits nothing, and its lag grows.
    "PenstockSinkStoreAway": {
        f"penstock_sink_store_away_seconds{SINK}": "0+60x60",
        f"penstock_stream_up{SINK}": "0+0x60",
        f"penstock_stream_batch_age_seconds{SINK}": "0+60x60",
        f"penstock_stream_lag_records{SUNK}": "0+6000x60",
        f"penstock_stream_rows_per_second{SINK}": "0+0x60",
        f"penstock_sink_written_total{SINK}": "6000+0x60",
        f"penstock_sink_retried_total{SINK}": "500+0x60",
    },
    "PenstockSinkRetries": {f"penstock_sink_retried_total{SINK}": "0+700x60"},
    "PenstockSinkDeadLetters": {f"penstock_stream_dead_letters_total{SINK}": "5+1x60"},
    "PenstockSinkBehind": {f"penstock_stream_lag_records{SUNK}": "40000+0x60"},
    "PenstockCaptureRefused": {'penstock_capture_phase{capture="orders", phase="refused"}': "1+0x60"},
    "PenstockCaptureDrift": {'penstock_capture_drift_rows{capture="orders", kind="missing"}': "1+0x60"},
    "PenstockCaptureAside": {'penstock_capture_dead_letter_rows{capture="orders"}': "1+0x60"},
    "PenstockCaptureLongTransaction": {'penstock_capture_ignores_open_transactions{capture="orders"}': "1+0x60"},
    "PenstockBackfillFailed": {'penstock_backfill_failed{backfill="orders"}': "1+0x60"},
    "PenstockBackfillSilent": {'penstock_backfill_silent{backfill="orders"}': "1+0x60"},
    "PenstockKafkaUnderReplicated": {"penstock_kafka_under_replicated_partitions": "1+0x60"},
    "PenstockDiskFilling": {"penstock_machine_disk_free_bytes": "1e9+0x60"},
    "PenstockProbeFailing": {'penstock_probe_failed{probe="kafka"}': "1+0x60"},
}


def test_every_rule_has_a_case() -> None:
    assert set(rules()) == set(BROKEN)


def test_fixes_of_sink_alerts_are_those_of_the_docs() -> None:
    """The docs say NAME where an alert has the name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    told = {rule["alert"]: rule["annotations"] for group in groups for rule in group["rules"]}
    cures = {name: said for name, said in told.items() if name.startswith("PenstockSink")}
    assert {said["docs"] for said in cures.values()} == {"docs/operations.md#sinks"}
    section = (DOCKER.parent / "docs" / "operations.md").read_text().partition("\n## Sinks\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if line[:1] == "|"]
    said = {row[0].strip(" `"): row[-1].removesuffix(" |") for row in rows[2:]}
    assert said == {name: given["fix"].replace("{{ $labels.stream }}", "NAME") for name, given in cures.items()}


def test_each_alert_fires_for_its_fault_alone(promtool: Callable[..., None], tmp_path: Path) -> None:
    cases = []
    for fault in (None, *BROKEN):
        given = HEALTHY | (BROKEN[fault] if fault else {})
        cases.append(
            {
                "name": fault or "healthy",
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in given.items()],
                # One expression for all alerts: which of them fire, without their labels.
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": "45m",
                        "exp_samples": [{"labels": f'{{alertname="{fault}"}}', "value": 1}] if fault else [],
                    }
                ],
            }
        )
    path = tmp_path / "cases.yml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}, sort_keys=False)
    )
    promtool("test", "rules", path)
