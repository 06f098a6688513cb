"""Records that differ from the expected ones are told in a table."""

from __future__ import annotations

import json

import pytest

from penstock.testing.row_diff import diff, is_close


def test_equal_rows_in_any_order_are_no_difference() -> None:
    assert diff([("a", "1"), ("b", "2"), ("a", "1")], [("a", "1"), ("a", "1"), ("b", "2")]) == ""


def test_missing_unexpected_and_different_rows_are_side_by_side() -> None:
    actual = [("same", "0"), ("north", "7.0"), ("east", "1.0"), (None, None)]
    expected = [("same", "0"), ("north", "6.5"), ("south", "2.0")]
    assert diff(actual, expected) == (
        "            key    expected  actual\n"
        "different   north  6.5       7.0\n"
        "missing     south  2.0       -\n"
        "unexpected  east   -         1.0\n"
        "unexpected  null   -         null"
    )


def test_a_row_that_comes_twice_is_unexpected_once() -> None:
    assert diff([("a", "1"), ("a", "1")], [("a", "1")]).splitlines()[1:] == ["unexpected  a    -         1"]


def test_long_rows_are_below_each_other() -> None:
    long = '{"text":"' + "x" * 70 + '"}'
    assert diff([("a", "1")], [("a", long)]) == f"different\n    key      a\n    expected {long}\n    actual   1"
    assert diff([("a", "1")], [], "value").splitlines()[0].split() == ["value", "expected", "actual"]


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"total": 2, "more": 1}, ", in total, more"),
        ({}, ", in the order or form of fields"),
    ],
)
def test_fields_of_long_rows_that_differ_are_named(change: dict[str, int], fields: str) -> None:
    row = {"text": "x" * 70, "total": 1}
    expected, actual = json.dumps(row), json.dumps(row | change, separators=(",", ":"))
    assert diff([("a", actual)], [("a", expected)]).splitlines()[0] == f"different{fields}"


@pytest.mark.parametrize(
    ("one", "other", "close"),
    [
        ('{"a":0.30000000000000004}', '{"a":0.3}', True),
        ('{"a":1.0E10}', '{"a":10000000000.0}', True),
        ('{"a":0.3}', '{"a":0.31}', False),
        ('{"a":2.0}', '{"a":2}', False),
        ('{"a": 2}', '{"a":2}', False),
        ('{"a":1,"b":2}', '{"b":2,"a":1}', False),
        ('{"a":[0.1]}', '{"a":[0.1,0.2]}', False),
        (None, None, True),
        (None, "null", False),
        ('{"ip":"10.0.0.10"}', '{"ip":"10.0.0.1"}', False),
        ('{"version":"2.10"}', '{"version":"2.1"}', False),
        (r'{"a":"\" 2.10"}', r'{"a":"\" 2.1"}', False),
        ('{"2.10":0.3}', '{"2.1":0.3}', False),
        ('{"ip":"10.0.0.1","a":0.30000000000000004}', '{"ip":"10.0.0.1","a":0.3}', True),
        ("10.0.0.10", "10.0.0.1", False),
        ("of version 2.10", "of version 2.1", False),
        ("-0.5", "0.5", False),
    ],
)
def test_only_last_digits_of_numbers_may_differ(one: str | None, other: str | None, close: bool) -> None:
    assert is_close(one, other) == is_close(other, one) == close
