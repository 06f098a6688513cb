"""Whether another driver of an app may start beside the running one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from penstock.engine.driver import StreamDriver
from penstock.settings import settings


@pytest.mark.parametrize(
    ("master", "active", "mebibytes", "obstacle"),
    [
        ("local[2]", True, 1536, ""),
        ("local[2]", True, 1535, "this host has 1535 MiB of memory left, and one more driver needs 1536 MiB"),
        ("local[2]", False, 1536, "none of its streams runs"),
        ("spark://host:7077", True, 1536, "its cluster would have to run both drivers"),
    ],
)
def test_a_standby_needs_room(
    monkeypatch: pytest.MonkeyPatch, master: str, active: bool, mebibytes: int, obstacle: str
) -> None:
    monkeypatch.setenv("PENSTOCK_DRIVER_MEMORY", "1g")
    settings.cache_clear()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=mebibytes << 20))
    driver: Any = StreamDriver.__new__(StreamDriver)
    driver._spark = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    driver._runs = {"s": SimpleNamespace(active=active)}
    assert driver.standby_obstacle() == obstacle
    settings.cache_clear()
