"""An InfluxDB of one's own, where it can be had, and rows as its writer gets them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.devstack.servers.influxdb import InfluxDBServer
from penstock.errors import HostError
from penstock.host.ports import free_port
from tests.support.http_client import HTTP


@contextmanager
def server(folder: Path) -> Iterator[InfluxDBServer]:
    """Runs in a folder; skips the test where Debian's package cannot be had."""
    part = InfluxDBServer(folder, port=free_port(2))
    try:
        part.command()
    except HostError as e:
        pytest.skip(f"InfluxDB cannot be had here: {e}")
    with part:
        yield part


def asked(influx: InfluxDBServer, text: str, database: str, **params: str) -> dict[str, Any]:
    """The result of a statement: its `series`, if there are any, or an `error`. params: more of the request."""
    given = {"q": text, "db": database, "epoch": "ms", **params}
    answer = HTTP.post(f"{influx.url}/query", params=given, timeout=10)
    result: dict[str, Any]
    [result] = answer.raise_for_status().json()["results"]
    return result


def row(
    version: int = 1, *, deleted: bool = False, refused: bytes | None = None, offset: int | None = None, **doc: Any
) -> dict[str, Any]:
    """offset: of its record; None for a record of its own."""
    given = {"version": version, "deleted": deleted, "refused": refused, "at": doc.get("at"), "doc": doc}
    return given if offset is None else {**given, "offset": offset}


def documents(*rows: dict[str, Any], **types: Any) -> pa.Table:
    """Rows as `DocumentOutput.columns` gives them.

    types: of the columns of the SELECT; a row has NULL in what it leaves out."""
    count = len(rows)
    columns: dict[str, Any] = {
        "id": pa.array([b"id"] * count, pa.binary()),
        "version": pa.array([r["version"] for r in rows], pa.int64()),
        "deleted": pa.array([r["deleted"] for r in rows], pa.bool_()),
        "at": pa.array([r["at"] for r in rows], pa.timestamp("us", "UTC")),
        "refused": pa.array([r["refused"] for r in rows], pa.binary()),
        "topic": pa.array(["topic"] * count, pa.string()),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array([r.get("offset", n) for n, r in enumerate(rows)], pa.int64()),
        "doc": pa.array([r["doc"] for r in rows], pa.struct(list(types.items()))),
    }
    return pa.table(columns)
