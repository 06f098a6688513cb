"""Threads that work beside others go on after an error that nobody foresaw."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.archive import hour_closer
from penstock.archive.hour_closer import HourCloser
from penstock.monitoring.collect import delays
from penstock.monitoring.collect.delays import Delays
from penstock.monitoring.collect.sender import Sender
from penstock.views.cluster import peers
from penstock.views.cluster.peers import InstanceDirectory


class Odd:
    """Raises what nobody foresaw, and stops its thread when it is called again."""

    def __init__(self, stop: threading.Event) -> None:
        self.calls, self._stop = 0, stop

    def __call__(self, *_: Any) -> None:
        self.calls += 1
        if self.calls > 1:
            self._stop.set()
        raise RuntimeError("odd")


def test_receipts_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender("broker:9092", "receipts")
    monkeypatch.setattr(sender, "LOOK_EVERY", 0.01)
    sender._flying = 1
    odd = Odd(sender._stop)
    monkeypatch.setattr(sender, "_pump", odd)
    sender._run()
    assert odd.calls == 2


def test_delays_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Delays("broker:9092", {"topic": "due"})
    odd = Odd(made._stop)
    monkeypatch.setattr(delays, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(delays, "Consumer", lambda _: SimpleNamespace(close=lambda: None, poll=odd))
    monkeypatch.setattr(made, "_assigned", lambda *_: set())
    made._read()
    assert odd.calls == 2


@pytest.mark.processes
def test_hours_of_an_archive_go_on_being_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = HourCloser(SimpleNamespace(), SimpleNamespace(archive="a"), SimpleNamespace(), time.time)  # type: ignore[arg-type]
    odd = Odd(made._stop)
    monkeypatch.setattr(hour_closer, "CHECK_INTERVAL", 0.01)
    monkeypatch.setattr(made, "close_due_hours", odd)
    made._run()
    assert odd.calls == 2


def test_instances_of_the_views_go_on_being_known(monkeypatch: pytest.MonkeyPatch) -> None:
    made = object.__new__(InstanceDirectory)
    made._leaving = threading.Event()
    odd = Odd(made._leaving)
    monkeypatch.setattr(peers, "REPORT_EVERY", 0.01)
    monkeypatch.setattr(made, "look", odd)
    made._look_on()
    assert odd.calls == 2
