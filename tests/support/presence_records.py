"""Columns of the folds of presence, and probes that count."""

from __future__ import annotations

from typing import Any

from tests.support import presence_model as model


def strong(history: model.History) -> list[dict[str, Any]]:
    known = history.thresholds
    return [p for p in history.probes if p["business"] in known and p["signal"] >= known[p["business"]]]


PROBE = "device STRING, business STRING, timestamp BIGINT"
CONTACT = "device STRING, contact STRING, business STRING, type STRING, timestamp BIGINT"
NAMED = "device STRING, business STRING, since BIGINT, timestamp BIGINT, contact STRING, record_offset BIGINT"
COUNTED = "business STRING, contact STRING, device STRING, timestamp BIGINT, count BIGINT"
