"""An InfluxDB of one's own, where it can be had."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.errors import LocalError
from penstock.local.influxdb import InfluxDB
from penstock.machine.process import free_port


@contextmanager
def server(folder: Path) -> Iterator[InfluxDB]:
    """Runs in a folder; skips the test where Debian's package cannot be had."""
    part = InfluxDB(folder, port=free_port(2))
    try:
        part.command()
    except LocalError as e:
        pytest.skip(f"InfluxDB cannot be had here: {e}")
    with part:
        yield part


def asked(influx: InfluxDB, text: str, database: str, **params: str) -> dict[str, Any]:
    """The result of a statement: its `series`, if there are any, or an `error`. params: more of the request."""
    given = {"q": text, "db": database, "epoch": "ms", **params}
    answer = httpx.post(f"{influx.url}/query", params=given, timeout=10)
    result: dict[str, Any]
    [result] = answer.raise_for_status().json()["results"]
    return result
