"""The control database with more apps than a handful: nobody is lost behind a limit, and no look reads all rows."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import inspect

from penstock.control import Control
from penstock.monitoring.dashboard.answers import streams
from penstock.monitoring.dashboard.answers.paging import PAGE
from penstock.monitoring.dashboard.page_data import read_page_data
from penstock.monitoring.dashboard.snapshot import read
from penstock.monitoring.dashboard.states import StateLimits
from penstock.supervision.decision.facts import facts_of
from tests.bench.page import PER_APP, answers, as_json, declarations
from tests.bench.rows import Catalog, filled

MOST_BYTES = 200_000


def test_all_of_a_hundred_drivers_are_read(control: Control) -> None:
    filled(control, Catalog(1_010), history_ms=1)
    assert len(control.drivers()) == 101
    snap = read(control)
    assert len(snap.drivers) == len(snap.desired) == 101
    assert all(len(streams) == 10 for streams in snap.desired.values())
    assert {name for streams in snap.desired.values() for name in streams} == snap.progress.keys()
    for driver in control.drivers():
        control.end_driver(driver.incarnation, f"the end of {driver.app}")
    for app in ("app-00000", "app-00100"):
        found = facts_of(control, app)
        assert found is not None
        assert [d.reason for d in found.recent] == [f"the end of {app}"]


def test_what_an_app_asks_for_has_an_index(control: Control) -> None:
    with control.begin() as c:
        assert "ix_progress_app" in {index["name"] for index in inspect(c).get_indexes("progress")}


def test_of_ten_thousand_streams_only_what_is_shown_is_sent(control: Control) -> None:
    catalog = Catalog(10_000, PER_APP)
    filled(control, catalog, history_ms=1)
    data = read_page_data(control, StateLimits(), declarations(catalog), "0" * 64)
    assert (len(data.streams), len(data.view.apps)) == (10_000, 200)
    for route, answer in answers(data, control).items():
        content = answer()
        body = as_json(data, content)
        assert len(body) < MOST_BYTES, route
        shown: list[dict[str, Any]] = orjson.loads(body).get("apps", [])
        assert sum(len(app["streams"]) for app in shown if isinstance(app["streams"], list)) <= PAGE, route
        bounded = [
            len(rows) for name, rows in content.items() if isinstance(rows, list) and name not in ("app_names", "t")
        ]
        assert max(bounded, default=0) <= PAGE, route
    last = streams.stream_list(data, "", "", "", 100)
    assert [stream["name"] for app in last["apps"] for stream in app["streams"]][-1] == "stream-09999"
