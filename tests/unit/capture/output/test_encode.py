"""What a column's value looks like in a record."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from penstock.capture.output.encode import EncodingError, digest, encode


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1, "1"),
        (-(2**63), "-9223372036854775808"),
        (2**64 - 1, "18446744073709551615"),
        (2**64, '"18446744073709551616"'),
        (Decimal("12.30"), '"12.30"'),
        (Decimal("-0.000000000000000000000000000001"), '"-0.000000000000000000000000000001"'),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        (float("nan"), '"NaN"'),
        (float("-inf"), '"-Infinity"'),
        ("grün\n", '"grün\\n"'),
        (date(2026, 2, 28), '"2026-02-28"'),
        (datetime(2026, 2, 28, 23, 59, 59, 120000), '"2026-02-28T23:59:59.120000"'),
        (datetime(2026, 2, 28), '"2026-02-28T00:00:00.000000"'),
        (datetime(2026, 3, 1, 1, tzinfo=timezone(timedelta(hours=2))), '"2026-02-28T23:00:00.000000Z"'),
        (datetime(1970, 1, 1, tzinfo=UTC), '"1970-01-01T00:00:00.000000Z"'),
        (time(1, 2, 3), '"01:02:03.000000"'),
        (timedelta(hours=1, microseconds=5), '"01:00:00.000005"'),
        (-timedelta(hours=838, minutes=59, seconds=59), '"-838:59:59.000000"'),
        (-timedelta(microseconds=1), '"-00:00:00.000001"'),
        (b"\x00\xff", '"AP8="'),
        (memoryview(b"ab"), '"YWI="'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        ([1, Decimal("2.0"), None], '[1,"2.0",null]'),
    ],
)
def test_each_type_has_one_form(value: Any, text: str) -> None:
    assert encode(["x"], [(value,)]) == [f'{{"x":{text}}}'.encode()]


def test_columns_keep_their_order_and_rows_theirs() -> None:
    assert encode(["c", "a"], [(3, "x"), (2**70, None), (1, "y")]) == [
        b'{"c":3,"a":"x"}', b'{"c":"1180591620717411303424","a":null}', b'{"c":1,"a":"y"}',
    ]  # fmt: skip


@pytest.mark.parametrize("value", [object(), time(1, tzinfo=UTC), complex(1)])
def test_what_has_no_form_is_refused_with_its_column(value: Any) -> None:
    with pytest.raises(EncodingError, match="column odd has a type that cannot be captured"):
        encode(["fine", "odd"], [(1, None), (1, value)])


def test_a_digest_tells_values_apart() -> None:
    assert digest(b"a") == digest(b"a") != digest(b"b")
    assert len(digest(b"a")) == 8
