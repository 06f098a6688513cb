"""Criteria, pages and counts of a view at the ends of the calendar and of numbers."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.views.api import query as view_query
from penstock.views.api.query import Counts, Search
from tests.support.view_stores import found, kept


def test_a_step_that_begins_before_the_calendar_is_named_by_its_first_moment(tmp_path: Path) -> None:
    """0001-01-01 is what Go writes for no time at all, and a Monday: weeks from 1970 on begin on Thursdays."""
    first, last = "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"
    store = kept(tmp_path, "at TIMESTAMP", ("at",), {"at": first}, {"at": "1969-12-31T23:00:00Z"}, {"at": last})
    steps = {
        7 * 86_400_000: [(first, 1), ("1969-12-25T00:00:00.000000Z", 1), ("9999-12-30T00:00:00.000000Z", 1)],
        1 << 53: [(first, 2), ("1970-01-01T00:00:00.000000Z", 1)],
    }
    for step, wanted in steps.items():
        asked = Counts(by=["at"], per={"at": step})
        query = view_query.counts_sql(store.layout, asked)
        column = store.layout.by["at"]
        assert (
            sorted((view_query.to_json_value(column, at), n) for at, n in store.read(query.sql(), query.parameters))
            == wanted
        )


def test_pages_go_on_behind_the_greatest_numbers(tmp_path: Path) -> None:
    most = sys.float_info.max
    for column, numbers in (("DOUBLE", [-most, -1.5e308, 0.0, 1.5e308, most]), ("FLOAT", [-3.4e38, 0.0, 3.4e38])):
        store = kept(tmp_path / column, f"x {column}", ("x",), *({"x": x} for x in numbers))
        for at, x in enumerate(numbers):
            assert found(store, {"x": x}) == [str(at)]
            page = view_query.make_cursor(store.layout, Search(order="x"), x, str(at))
            assert found(store, {}, order="x", cursor=page) == [str(n) for n in range(at + 1, len(numbers))]
