"""Backfills on the operator page: the form that starts one, those that wait in Airflow, and errors as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import View
from tests.browser.layout import OVERLAPS
from tests.browser.scene import FAILED, REFUSED, RUNNING

pytestmark = pytest.mark.browser
Visit = Callable[..., View]
QUEUED = {
    "dag_id": "backfill_order-replay",
    "dag_run_id": "manual__2",
    "state": "queued",
    "queued_at": "2026-01-02T03:04:05Z",
}
PAUSED = {**QUEUED, "dag_id": "backfill_first-year", "dag_run_id": "manual__3", "queued_at": None}


class Airflow:
    """Airflow's API as the page asks it, with the runs and DAGs of a test."""

    def __init__(self, *runs: dict[str, Any], paused: str = "") -> None:
        self.runs, self.paused = list(runs), paused
        self.started: list[Any] = []

    def answer(self, route: Route) -> None:
        request = route.request
        if request.method == "POST":
            self.started.append((request.url.rpartition("/dags/")[2], request.post_data_json))
            route.fulfill(json={"dag_run_id": "manual__9"}, status=200)
        elif "/dagRuns" in request.url:
            route.fulfill(json={"dag_runs": self.runs, "total_entries": len(self.runs)})
        else:
            route.fulfill(json={"dags": [{"dag_id": self.paused, "is_paused": True}], "total_entries": 1})

    def __call__(self, page: Page) -> None:
        page.route(re.compile("/api/v2/dags"), self.answer)


def test_a_run_is_started_by_a_form(visit: Visit, screenshots: Path) -> None:
    from airflow.api_fastapi.core_api.datamodels.dag_run import TriggerDAGRunPostBody

    airflow = Airflow()
    view = visit(at="backfills", before=airflow)
    view.frame.get_by_role("button", name="Start order-replay").click()
    dialog = view.frame.get_by_role("dialog", name="Start order-replay")
    yesterday = (datetime.now(UTC) - timedelta(days=1)).replace(hour=0, minute=0)
    expect(dialog.get_by_label("From")).to_have_value(yesterday.strftime("%Y-%m-%dT%H:%M"))
    expect(dialog.get_by_label("Target topic")).to_have_value("orders")
    dialog.get_by_label("From").fill(datetime.now(UTC).strftime("%Y-%m-%dT00:00"))
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.get_by_role("alert")).to_have_text("Not started: the interval is empty. To must be after From.")
    assert airflow.started == []
    dialog.get_by_label("From").fill("2026-01-01T00:00")
    dialog.get_by_label("To", exact=True).fill("2026-01-02T06:30")
    dialog.get_by_label("Dry run").check()
    view.page.screenshot(path=screenshots / "backfill-form.png")
    assert dialog.evaluate(OVERLAPS) == []
    dialog.get_by_role("button", name="Start").click()
    expect(dialog).to_have_count(0)
    expect(view.frame.locator("#toast")).to_have_text("order-replay is started as manual__9.")
    [(path, body)] = airflow.started
    assert path == "backfill_order-replay/dagRuns"
    assert TriggerDAGRunPostBody(**body).logical_date
    assert body["conf"] == {
        "begin": "2026-01-01T00:00:00Z", "end": "2026-01-02T06:30:00Z", "target": "orders", "dry_run": True,
        "unclosed": False, "again": False,
    }  # fmt: skip
    # Without a target it is the one that is declared.
    view.frame.get_by_role("button", name="Start order-replay").click()
    dialog.get_by_label("Target topic").fill("")
    dialog.get_by_role("button", name="Start").click()
    expect(dialog).to_have_count(0)
    assert "target" not in airflow.started[1][1]["conf"]
    assert view.troubles == []


def test_what_airflow_refuses_is_shown_in_the_form(visit: Visit) -> None:
    # Nobody has made the DAG in this Airflow.
    view = visit(at="backfills")
    view.frame.get_by_role("button", name="Start order-replay").click()
    dialog = view.frame.get_by_role("dialog")
    dialog.get_by_role("button", name="Start", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text(re.compile("Not started: .*order-replay"))


def test_queued_runs_say_what_they_wait_for(visit: Visit) -> None:
    running = {**QUEUED, "dag_run_id": "manual__1", "state": "running"}
    view = visit(at="backfills", before=Airflow(running, QUEUED, PAUSED, paused="backfill_first-year"))
    rows = view.frame.locator("#queued tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="manual__2")).to_contain_text("for its run manual__1, which is running")
    expect(rows.filter(has_text="manual__3")).to_contain_text("its DAG is paused")
    assert view.troubles == []


def test_airflow_is_asked_for_queued_runs_as_it_understands_it(visit: Visit) -> None:
    view = visit(at="backfills")
    expect(view.frame.locator("tr.run").first).to_be_visible()
    expect(view.frame.locator("#queued")).to_be_empty()
    assert [url for url in view.requests if "/api/v2/dags/~/dagRuns?" in url]
    assert view.troubles == []


def test_the_whole_reason_of_a_run_is_unfolded(visit: Visit) -> None:
    view = visit(at="backfills", before=Airflow())
    failed = view.frame.locator("tr.run").filter(has=view.frame.locator(f'[title="{FAILED}"]'))
    expect(failed.locator("pre")).to_be_hidden()
    failed.get_by_text("The whole reason").click()
    expect(failed.locator("pre")).to_have_text(REFUSED)
    well = view.frame.locator("tr.run").filter(has=view.frame.locator(f'[title="{RUNNING}"]'))
    expect(well.get_by_text("The whole reason")).to_be_hidden()
    assert view.frame.locator("#view").evaluate(OVERLAPS) == []
