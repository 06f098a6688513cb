"""Check-ins of agents, and what is assigned to them."""

from __future__ import annotations

from typing import Any

T = 1_700_000_000_000
CHECK_IN = (
    "agent STRING, account STRING, platform STRING, version STRING, labels MAP<STRING,STRING>, timestamp BIGINT, "
    "written_at BIGINT, record_offset BIGINT"
)


def check_in(agent: str, at: int, account: str = "1", **labels: str) -> dict[str, Any]:
    """at: ms after T."""
    said = {"agent": agent, "account": account, "platform": "linux", "version": "1.2", "labels": labels or None}
    return {**said, "timestamp": T + at}


def state(row: dict[str, Any]) -> dict[str, Any]:
    names = ("agent", "account", "platform", "version", "labels", "timestamp", "online", "since")
    labels = row["labels"]
    return {name: row[name] for name in names} | {"labels": None if labels is None else dict(labels)}


ASSIGNED = (
    "agent STRING, account STRING, online BOOLEAN, tests ARRAY<STRUCT<id: BIGINT, name: STRING, kind: STRING, "
    "target: STRING, every_seconds: BIGINT>>, version BIGINT, digest STRING, record_offset BIGINT, timestamp BIGINT"
)
