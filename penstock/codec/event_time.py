"""DuckDB SQL of event times."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.codec.json_sql import quote_name
from penstock.model.types import Field

TIMESTAMP_CALL = re.compile(
    r"\s*timestamp_(seconds|millis|micros)\s*\(\s*(`[^`]+`|[A-Za-z_][A-Za-z0-9_]*)\s*\)\s*", re.IGNORECASE
)
MICROS_PER_UNIT = {"seconds": 1_000_000, "millis": 1_000, "micros": 1}
# The years 1 to 9999 in microseconds; other times are invalid, e.g. nanoseconds that are taken for milliseconds.
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999


def event_time_sql(event_time: str, fields: Sequence[Field]) -> str | None:
    """BIGINT: an event time like `timestamp_millis(field)` in epoch microseconds, NULL if it is invalid.

    None for an expression of any other form.
    """
    by_name = {f.name.lower(): f for f in fields}
    if not fields:
        return "_clock" if event_time.strip() == "timestamp" else None
    call = TIMESTAMP_CALL.fullmatch(event_time)
    field = by_name.get(call[2].strip("`").lower()) if call else None
    if call and field and field.type.kind in ("bigint", "int", "smallint", "tinyint"):
        factor = MICROS_PER_UNIT[call[1].lower()]
        column = quote_name(field.name)
        in_calendar = f"{column} BETWEEN {-(-FIRST // factor)} AND {LAST // factor}"
        return f"CASE WHEN {in_calendar} THEN {column}::BIGINT * {factor} END"
    field = by_name.get(event_time.strip().strip("`").lower())
    if field and field.type.kind == "timestamp":
        return f"epoch_us({quote_name(field.name)})"
    return None


def null_outside_calendar(micros: str) -> str:
    """BIGINT: epoch microseconds, NULL if they are outside of the years 1 to 9999."""
    return f"CASE WHEN {micros} BETWEEN {FIRST} AND {LAST} THEN {micros} END"


def clamp_to_calendar(micros: str) -> str:
    """BIGINT: epoch microseconds, clamped to the years 1 to 9999."""
    return f"CASE WHEN {micros} < {FIRST} THEN {FIRST} WHEN {micros} > {LAST} THEN {LAST} ELSE {micros} END"


def window_number(event_time: str, micros: int) -> str:
    """BIGINT: the number of the window of a TIMESTAMPTZ, for combiners to group by; negative before 1970."""
    at = f"epoch_us({event_time})"
    # DuckDB divides integers towards zero.
    return f"({at} // {micros} - ({at} % {micros} < 0)::BIGINT)"
