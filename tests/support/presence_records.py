"""Columns of the folds of presence, and probes that count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.support import presence_model as model


def strong(history: model.History) -> list[dict[str, Any]]:
    known = history.thresholds
    return [p for p in history.probes if p["business"] in known and p["signal"] >= known[p["business"]]]


def ranked(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """CRM events as the fold of contacts gets them."""
    return [
        {
            **one,
            "event": {
                "moment": one["timestamp"],
                "rank": RANKS[one["type"]],
                "contact": None if one["type"] == "removal" else one["contact"],
            },
        }
        for one in events
    ]


PROBE = "device STRING, business STRING, timestamp BIGINT"
RANKS = {"removal": 2, "change": 1, "login": 0}
CONTACT = (
    "device STRING, business STRING, type STRING, timestamp BIGINT, "
    "event STRUCT<moment: BIGINT, rank: INT, contact: STRING>"
)
NAMED = "device STRING, business STRING, since BIGINT, timestamp BIGINT, contact STRING, record_offset BIGINT"
COUNTED = "business STRING, contact STRING, device STRING, timestamp BIGINT, count BIGINT"
