"""The expectations of a stream and their violations, as its driver reported them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.monitoring.dashboard.model import ExpectationView

MINUTE_MS = 60_000


def expectation_views(reported: Mapping[str, Any] | None, now: int) -> list[ExpectationView]:
    """The rules by name. reported: see `ProgressRow`; now: epoch ms."""
    views = []
    for name, counts in sorted((reported or {}).items()):
        minutes = sorted((int(minute) * MINUTE_MS, n) for minute, n in counts["minutes"].items())
        recent = [(at, n) for at, n in minutes if at > now - 60 * MINUTE_MS]
        views.append(ExpectationView(name, counts["action"], counts["violations"], sum(n for _, n in recent), recent))
    return views
