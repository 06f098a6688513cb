"""Sessions that rules of alerts select."""

from __future__ import annotations

SESSION = (
    "account STRING, active_rules ARRAY<STRUCT<rule: BIGINT, selection: BIGINT>>, rule BIGINT, selection BIGINT, "
    "enabled BOOLEAN, window_start BIGINT, window_end BIGINT, value DOUBLE, timestamp BIGINT"
)
T, LENGTH, LATE = 1_700_000_040_000, 60_000, 500
