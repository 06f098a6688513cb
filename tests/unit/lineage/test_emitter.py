"""Events are sent by OpenLineage's client, whose own configuration says where to; nothing waits for a receiver."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState

from penstock.errors import MissingExtra, SettingError
from penstock.host.ports import free_port
from penstock.lineage import emitter
from penstock.lineage.emitter import LineageEmitter, open_emitter
from tests.support.caches import clear_caches
from tests.support.http_receiver import receiver
from tests.support.wait import wait_until

RUN_ID = "0199b1f0-0000-7000-8000-000000000000"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Lineage is on, and nothing else says where events go."""
    monkeypatch.setenv("PENSTOCK_LINEAGE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    clear_caches()
    # The client puts aliases of its variables into the environment.
    with patch.dict(os.environ):
        yield
    clear_caches()


def event(number: int) -> RunEvent:
    return RunEvent(
        eventTime="2026-01-01T00:00:00Z", run=Run(RUN_ID), job=Job("tests", f"job-{number}"), eventType=RunState.OTHER
    )


def opened() -> LineageEmitter:
    made = open_emitter()
    assert made is not None
    return made


def use_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    transport = {"type": "http", "url": url, "timeout": 2, "retry": {"total": 0}}
    for name, value in transport.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name.upper()}", text)


def test_it_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_LINEAGE")
    clear_caches()
    assert open_emitter() is None


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "openlineage"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openlineage", None)
    with pytest.raises(MissingExtra, match=r"pip install 'penstock\[lineage\]'"):
        open_emitter()


def test_without_a_transport_it_says_what_to_set() -> None:
    with pytest.raises(SettingError, match=r"has no transport.*hint: set OPENLINEAGE_URL"):
        open_emitter()


def test_a_transport_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "pigeon")
    with pytest.raises(SettingError, match=r"configuration is not valid.*pigeon"):
        open_emitter()


def test_events_go_to_a_file_in_their_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    config = tmp_path / "openlineage-of-tests.yml"
    config.write_text(f"transport: {{type: file, log_file_path: {path}, append: true}}")
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(config))
    made = opened()
    for number in range(20):
        made.emit(lambda number=number: event(number))  # type: ignore[misc]
    made.close(10)
    names = [json.loads(line)["job"]["name"] for line in path.read_text().splitlines()]
    assert names == [f"job-{number}" for number in range(20)]


@pytest.mark.processes
def test_events_go_to_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as server:
        monkeypatch.setenv("OPENLINEAGE_URL", server.url)
        made = opened()
        made.emit(lambda: event(1))
        made.close(10)
        assert [path for path, _ in server.posted] == ["/api/v1/lineage"]
        assert server.events[0]["job"]["name"] == "job-1"


@pytest.mark.processes
def test_a_receiver_that_hangs_delays_nobody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(emitter, "CAPACITY", 3)
    with receiver() as server:
        server.answers.clear()
        use_url(monkeypatch, server.url)
        made = opened()
        made.emit(lambda: event(0))
        wait_until(lambda: server.posted, 10, what="the first event has arrived")
        for number in range(1, 11):
            made.emit(lambda number=number: event(number))  # type: ignore[misc]
        made.close(0.2)
        assert made._thread.is_alive(), "it waits for the receiver"
        warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "penstock" in r.name]
        assert ["are dropped" in text for text in warnings] == [True, False]
        assert "4 OpenLineage events are not sent" in warnings[1]
        server.answers.set()
        made._thread.join(10)
        # Those that waited were sent, and the others were dropped.
        assert [e["job"]["name"] for e in server.events] == ["job-0", "job-1", "job-2", "job-3"]


@pytest.mark.processes
def test_a_receiver_that_refuses_is_reported_once_until_it_takes_events(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock")
    use_url(monkeypatch, "http://127.0.0.1:1")
    made = opened()
    for number in range(4):
        made.emit(lambda number=number: event(number))  # type: ignore[misc]
    wait_until(lambda: "cannot be sent, and wait" in caplog.text, 10, what="it is reported")
    with receiver() as server:
        server.status = lambda body: 422 if b"job-1" in body or b"job-2" in body else 200
        made._client.transport.url = server.url  # type: ignore[attr-defined]
        made.close(10)
        assert [e["job"]["name"] for e in server.events] == ["job-0", "job-1", "job-2", "job-3"], "none is lost"
    texts = [r.getMessage() for r in caplog.records if r.name == "penstock.lineage.emitter"]
    assert "hint: " in texts[0]
    assert texts[1] == "OpenLineage events are sent again; 0 were dropped"
    assert "left out" in texts[2]
    assert len(texts) == 3, "once for both"


@pytest.mark.processes
def test_a_receiver_that_is_down_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the client's own retries, which log each of them."""
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{free_port()}")
    made = opened()
    made.emit(lambda: event(1))
    wait_until(lambda: "cannot be sent, and wait" in caplog.text, 60, what="it is reported")
    made.close(0)
    made._thread.join(60)
    assert not made._thread.is_alive()
    assert {r.name for r in caplog.records if r.levelname == "WARNING"} == {"penstock.lineage.emitter"}


@pytest.mark.processes
def test_an_event_that_cannot_be_made_ends_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(path), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    made = opened()
    made.emit(lambda: event(1 // 0))
    made.emit(lambda: event(1))
    made.close(10)
    assert [json.loads(line)["job"]["name"] for line in path.read_text().splitlines()] == ["job-1"]
