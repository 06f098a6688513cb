"""Suffixes of indexes and collections: one for each hour, day, month or year, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from penstock.model.sink import Unit

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FORMATS: dict[Unit, str] = {"year": "%Y", "month": "%Y.%m", "day": "%Y.%m.%d", "hour": "%Y.%m.%d.%H"}
SUFFIX = re.compile(r"[0-9]{4}(\.[0-9]{2}){0,3}")
# An index or collection for every wrong time would overload a store.
YEARS = (1970, 2199)


def micros(time: datetime) -> int:
    """µs since 1970."""
    return (time - EPOCH) // timedelta(microseconds=1)


FIRST_US, END_US = (micros(datetime(year, 1, 1, tzinfo=UTC)) for year in (YEARS[0], YEARS[1] + 1))


def suffix_error(at_us: int | None) -> str:
    """Why a row of that time can have no suffix; empty if it can."""
    if at_us is None:
        return "its time is NULL"
    return "" if FIRST_US <= at_us < END_US else f"its time is outside of {YEARS[0]} to {YEARS[1]}"


def suffixed_name(name: str, unit: Unit | None, at_us: int | None) -> str:
    """The name of the index or collection for a row of that time, which `suffix_error` accepts; `name` without unit."""
    if not unit:
        return name
    assert at_us is not None
    return f"{name}-{(EPOCH + timedelta(microseconds=at_us)).strftime(FORMATS[unit])}"


def end_of_suffix(suffix: str, unit: Unit) -> datetime | None:
    """The end of the time that a suffix stands for; None if it is not a suffix of that unit."""
    if not SUFFIX.fullmatch(suffix):
        return None
    try:
        start = datetime.strptime(suffix, FORMATS[unit]).replace(tzinfo=UTC)
        if unit == "year":
            return start.replace(year=start.year + 1)
        if unit == "month":
            return (start + timedelta(days=31)).replace(day=1)
        return start + (timedelta(days=1) if unit == "day" else timedelta(hours=1))
    except (ValueError, OverflowError):
        return None  # not a date, or its end is not: an index of somebody else
