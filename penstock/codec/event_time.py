"""Event times that DuckDB computes when records are decoded, in SQL."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.codec.json_sql import quote_name
from penstock.model.schema import Field

TIMESTAMP_CALL = re.compile(
    r"\s*timestamp_(seconds|millis|micros)\s*\(\s*`?([A-Za-z_][A-Za-z0-9_]*)`?\s*\)\s*", re.IGNORECASE
)
MICROS_PER_UNIT = {"seconds": 1_000_000, "millis": 1_000, "micros": 1}
# The years 1 to 9999, in microseconds: what lies beyond is no time. Nanoseconds taken for milliseconds are beyond.
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999


def event_time_sql(event_time: str, fields: Sequence[Field]) -> str | None:
    """An event time of the form `timestamp_millis(field)` in SQL of DuckDB, epoch microseconds, NULL where there is
    none; None for an expression of any other form."""
    by_name = {f.name.lower(): f for f in fields}
    if not fields:
        return "_clock" if event_time.strip() == "timestamp" else None
    found = TIMESTAMP_CALL.fullmatch(event_time)
    if (
        found
        and (field := by_name.get(found[2].lower()))
        and field.type.kind in ("bigint", "int", "smallint", "tinyint")
    ):
        factor = MICROS_PER_UNIT[found[1].lower()]
        n = quote_name(field.name)
        inside = f"{n} BETWEEN {-(-FIRST // factor)} AND {LAST // factor}"
        return f"CASE WHEN {inside} THEN {n}::BIGINT * {factor} END"
    field = by_name.get(event_time.strip().strip("`").lower())
    if field and field.type.kind == "timestamp":
        return f"epoch_us({quote_name(field.name)})"
    return None


def null_outside_calendar(micros: str) -> str:
    """BIGINT: epoch microseconds, NULL for what is no time of the calendar."""
    return f"CASE WHEN {micros} BETWEEN {FIRST} AND {LAST} THEN {micros} END"


def clamp_to_calendar(micros: str) -> str:
    """BIGINT: epoch microseconds, the nearest of the calendar."""
    return f"CASE WHEN {micros} < {FIRST} THEN {FIRST} WHEN {micros} > {LAST} THEN {LAST} ELSE {micros} END"


def window_number(event_time: str, micros: int) -> str:
    """BIGINT: which window of a length a TIMESTAMPTZ lies in, also before 1970: for combiners to group by."""
    at = f"epoch_us({event_time})"
    # Integers are divided towards zero.
    return f"({at} // {micros} - ({at} % {micros} < 0)::BIGINT)"
