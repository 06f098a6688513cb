"""What a topic takes, and what is left of a record that it does not take."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock.kafka.dead_letters import printable
from penstock.kafka.limits import ProducerRecord, SizeLimit, producer_timestamp, record_digest

NOISE = random.Random(0).randbytes(2_000_000)


@pytest.mark.parametrize(
    ("limit", "value", "taken"),
    [
        (SizeLimit("t"), NOISE[:1_048_000], True),
        (SizeLimit("t"), NOISE[:1_048_588], False),
        (SizeLimit("t"), b"abc" * 1_000_000, True),
        (SizeLimit("t", compressed=False), b"abc" * 1_000_000, False),
        (SizeLimit("t", 2_100_000), NOISE, True),
    ],
)
def test_the_packed_size_decides_where_the_broker_keeps_it(limit: SizeLimit, value: bytes, taken: bool) -> None:
    assert limit.accepts(ProducerRecord("t", None, value)) is taken
    rows = pa.table({"key": ["k", None], "value": pa.array([b"small", value])})
    assert limit.oversized_rows(rows) == ({} if taken else {1: len(value)})


@pytest.mark.parametrize(
    ("key", "value", "cut"),
    [(b"key", NOISE[:9000], b"value"), (NOISE[:9000], b"v", b"key"), (NOISE[:9000], NOISE[:9000], b"key, value"),
     (None, NOISE[:9000], b"value"), (NOISE[:9000], None, b"key")],
)  # fmt: skip
def test_what_is_cut_says_what_it_was(key: bytes | None, value: bytes | None, cut: bytes) -> None:
    limit = SizeLimit("t", 4000)
    was = ProducerRecord("t", key, value, (("penstock.reason", b"no"),))
    now = limit.truncate(was)
    assert limit.accepts(now)
    whole = (key or b"") + (value or b"")
    assert dict(now.headers) == {
        "penstock.reason": b"no",
        "penstock.size": str(len(whole)).encode(),
        "penstock.sha256": record_digest(key, value).encode(),
        "penstock.cut": cut,
    }
    assert (now.key is None, now.value is None) == (key is None, value is None)
    assert (key or b"").startswith(now.key or b"")
    assert (value or b"").startswith(now.value or b"")
    assert now.size > 3900 or cut == b"key"


def test_what_fits_is_left_alone() -> None:
    message = ProducerRecord("t", b"k", b"v" * 3000, (("h", b"x"),))
    assert SizeLimit("t", 4000).truncate(message) is message


@pytest.mark.parametrize(
    ("value", "header", "cut"),
    [
        (b"v", NOISE[:5000], b"headers"),
        (b"abc" * 9000, NOISE[:5000], b"headers"),
        (NOISE[:9000], NOISE[:2000], b"value, headers"),
        (NOISE[:9000], b"small", b"value"),
    ],
)
def test_large_headers_of_the_record_are_left_out_and_those_that_say_what_it_was_stay(
    value: bytes, header: bytes, cut: bytes
) -> None:
    limit = SizeLimit("t", 4000)
    now = limit.truncate(ProducerRecord("t", b"k", value, (("own", header), ("penstock.reason", b"no"))))
    assert limit.accepts(now)
    assert (now.key, value.startswith(now.value or b"")) == (b"k", True)
    assert (now.value == value) is (b"value" not in cut)
    headers = dict(now.headers)
    assert ("own" in headers) is (b"headers" not in cut)
    assert (headers["penstock.reason"], headers["penstock.cut"]) == (b"no", cut)
    assert headers["penstock.sha256"] == record_digest(b"k", value).encode()


def test_a_large_header_is_left_out_whatever_its_name() -> None:
    limit = SizeLimit("t", 4000)
    now = limit.truncate(ProducerRecord("t", b"k", b"v", (("penstock.x", NOISE[:5000]), ("penstock.reason", b"no"))))
    assert limit.accepts(now)
    assert [name for name, _ in now.headers] == ["penstock.reason", "penstock.size", "penstock.sha256", "penstock.cut"]


def test_a_limit_below_what_headers_take_leaves_headers_alone() -> None:
    now = SizeLimit("t", 100).truncate(ProducerRecord("t", b"key", b"value"))
    assert (now.key, now.value) == (b"", b"")


def test_a_shown_text_is_text_alone() -> None:
    assert printable(b"a\x1b[31m\n\xff\xe2\x80\xae\xc3\xbc", 100) == r"a\x1b[31m\n\xff\u202eü"
    assert printable(None, 9) == "(none)"
    assert printable("x" * 20, 10) == "x" * 9 + "…"


def test_the_time_by_which_a_record_is_written_again() -> None:
    """A client takes 0 for now, and a record without a time says -1."""
    assert [producer_timestamp(at) for at in (-1, 0, 1, 1_700_000_000_000)] == [0, 1, 1, 1_700_000_000_000]
