"""Counts of the violations of a stream's expectations, by rule and minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.model.expectation import Expectation

Counts = dict[str, Any]
MINUTE_MS = 60_000
# Minutes that are kept.
MINUTES = 60


def declared_counts(expectations: Sequence[Expectation], before: Counts | None) -> Counts | None:
    """The counts of the rules that a stream declares, as they stand; None if it declares none.

    A rule whose action has changed is counted anew: what was kept before is no dead letter.
    """
    counts: Counts = {}
    for rule in expectations:
        known = (before or {}).get(rule.name)
        fresh: Counts = {"action": rule.on_violation, "violations": 0, "minutes": {}}
        counts[rule.name] = known if known and known["action"] == rule.on_violation else fresh
    return counts or None


def add_violations(counts: Counts | None, violations: Mapping[str, int], now_ms: int) -> Counts | None:
    """The counts with the violations of a batch that is committed now."""
    if counts is None:
        return None
    minute, added = now_ms // MINUTE_MS, dict(counts)
    for name, count in violations.items():
        if count and name in added:
            minutes = {at: n for at, n in added[name]["minutes"].items() if int(at) > minute - MINUTES}
            minutes[str(minute)] = minutes.get(str(minute), 0) + count
            added[name] = {**added[name], "violations": added[name]["violations"] + count, "minutes": minutes}
    return added
