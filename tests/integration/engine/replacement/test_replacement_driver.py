"""A running stream is replaced by real drivers, which supervisors launch, while records come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.model.declaration import replacement_app
from penstock.supervision.release import start_replacement
from penstock.testing import read
from tests.support.replaced_app import APP, ME, NAME, STREAM, ReplacedApp, replaced_app, sending
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture
def app(fresh_broker: Broker, tmp_path: Path) -> Iterator[ReplacedApp]:
    """Its control database is its own: an app goes on with the code that was released."""
    with (
        MariaDB(home=tmp_path / "mariadb", port=free_port()) as mariadb,
        replaced_app(fresh_broker, mariadb, tmp_path) as made,
    ):
        yield made


def rows(bootstrap: str) -> list[dict[str, int]]:
    return [json.loads(record.key or "") | json.loads(record.value or "") for record in read(bootstrap, NAME)]


@pytest.mark.long
@pytest.mark.parametrize("kill", [False, True], ids=["", "killed"])
def test_a_stream_is_replaced_while_it_runs(app: ReplacedApp, broker: Broker, kill: bool) -> None:
    def written() -> int:
        app.tick()
        return len(rows(broker.bootstrap))

    with sending(broker.bootstrap) as sent:
        wait_until(lambda: written() > 5, 120, every=2.0, what="windows are emitted")
        app.file.write_text(STREAM.format(more=", sum(amount) AS amount"))
        start_replacement(app.control, APP, NAME, ME, {"cut": "manual"})
        app.wait("following")
        if kill:
            app.kill(replacement_app(NAME))
            before = app.replacement().reported_at
            wait_until(lambda: app.replacement().reported_at > before, 240, every=0.5, what="it goes on")
        wait_until(lambda: app.replacement().figures.get("compared", 0) > 0, 60, every=0.5, what="it compares")
        assert app.control.request_cut(app.replacement().id, ME)
        row = app.wait("cut")
        count = written()
        wait_until(lambda: written() > count + 5, 120, every=2.0, what="the new version emits windows")
    windows = sorted(rows(broker.bootstrap), key=lambda window: window["second"])
    seconds = [window["second"] for window in windows]
    assert len(seconds) == len(set(seconds)), "no window is emitted twice"
    assert set(range(seconds[0], seconds[-1] + 1)) & sent.keys() <= set(seconds), "none is left out"
    assert {window["second"]: window["orders"] for window in windows} == {second: sent[second] for second in seconds}
    newer = [window["second"] for window in windows if "amount" in window]
    assert newer == seconds[-len(newer) :]
    assert row.figures["different"] > 0
    assert row.figures["only_new"] == row.figures["only_running"] == 0
    assert app.replacement().figures["pause_ms"] > 0
    launches = [str(action["detail"]) for action in app.control.actions(1000) if action["verb"] == "launch"]
    assert sum(detail.startswith("standby") for detail in launches) == 1, "the next driver was ready before the cut"
