"""Suffixes of indexes and collections."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.model.sink import Unit
from penstock.sinks.core.suffixes import end_of_suffix, micros, suffixed_name


@pytest.mark.parametrize(
    ("unit", "suffix", "end"),
    [
        ("hour", "2026.12.31.23", datetime(2027, 1, 1, tzinfo=UTC)),
        ("day", "2028.02.28", datetime(2028, 2, 29, tzinfo=UTC)),
        ("month", "2026.12", datetime(2027, 1, 1, tzinfo=UTC)),
        ("year", "2026", datetime(2027, 1, 1, tzinfo=UTC)),
        ("day", "2026.02.30", None),
        ("day", "2026.2.3", None),
        ("day", "2026.02", None),
        ("month", "2026.02.03", None),
        ("year", "old1", None),
        ("year", "２０２６", None),
        ("year", "9999", None),
        ("month", "9999.12", None),
        ("day", "9999.12.31", None),
    ],
)
def test_a_suffix_says_when_its_time_is_over(unit: Unit, suffix: str, end: datetime | None) -> None:
    assert end_of_suffix(suffix, unit) == end


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        ("hour", "c-2026.11.22.10"),
        ("day", "c-2026.11.22"),
        ("month", "c-2026.11"),
        ("year", "c-2026"),
        (None, "c"),
    ],
)
def test_the_name_of_the_index_or_collection_for_a_time(unit: Unit | None, name: str) -> None:
    assert suffixed_name("c", unit, micros(datetime(2026, 11, 22, 10, 30, tzinfo=UTC))) == name
