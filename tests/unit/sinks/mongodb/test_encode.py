"""Encodes rows in columns as documents of MongoDB."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, cast

import bson
import pyarrow as pa
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64

from penstock.errors import DeclarationError, SinkError
from penstock.sinks.mongodb.collections import collection_schema
from penstock.sinks.mongodb.config import LIMITS, MongoDB
from penstock.sinks.mongodb.encode import DocumentHeader, check_type, encode_documents

EXACT: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
TIME = pa.timestamp("us", "UTC")


def documents(rows: list[Any], kind: pa.DataType) -> list[Any]:
    """Each row's document, or why it is none."""
    made = encode_documents(pa.array(rows, kind), [DocumentHeader(f"{n}", n) for n in range(len(rows))])
    return [one.error or bson.decode(one.document, EXACT) for one in made]


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.bool_(), True, True),
        (pa.int32(), 5, 5),
        (pa.int64(), 5, Int64(5)),
        (pa.int64(), 2**63 - 1, Int64(2**63 - 1)),
        (pa.float64(), -math.inf, -math.inf),
        (pa.float32(), 0.5, 0.5),
        (pa.decimal128(38, 2), Decimal("-12.50"), Decimal128("-12.50")),
        (pa.binary(), b"\x00\xff", b"\x00\xff"),
        (pa.string(), "é\0日", "é\0日"),
        (pa.date32(), date(1969, 12, 31), DatetimeMS(-86_400_000)),
        (pa.date32(), -100_000_000, DatetimeMS(-100_000_000 * 86_400_000)),
        (TIME, datetime(2026, 1, 1, 0, 0, 0, 1999, tzinfo=UTC), DatetimeMS(1_767_225_600_001)),
        (TIME, -1, DatetimeMS(-1)),
        (TIME, 2**62, DatetimeMS(2**62 // 1000)),
        (pa.timestamp("us"), 2**62, DatetimeMS(2**62 // 1000)),
        (pa.list_(pa.int64()), [1, None], [Int64(1), None]),
        (pa.map_(pa.string(), TIME), [("k", 1000)], {"k": DatetimeMS(1)}),
        (pa.map_(pa.int32(), pa.int32()), [(1, 2)], {"1": 2}),
        (pa.struct([("x", pa.struct([]))]), {"x": {}}, {"x": {}}),
    ],
)
def test_types_keep_their_meaning(kind: pa.DataType, value: Any, stored: Any) -> None:
    """In nested places, beside NULL, and in a slice of a larger array as well."""
    whole = pa.struct([("v", kind), ("l", pa.list_(pa.struct([("v", kind)])))])
    rows = [{"v": value, "l": [{"v": value}, None]}, {"v": None, "l": None}, None, {"v": value, "l": []}]
    wanted = [
        {"_id": "0", "v": stored, "l": [{"v": stored}, None], "_v": 0},
        {"_id": "1", "v": None, "l": None, "_v": 1},
        {"_id": "2", "_v": 2},
        {"_id": "3", "v": stored, "l": [], "_v": 3},
    ]
    found = documents(rows, whole)
    assert found == wanted
    assert type(found[0]["v"]) is type(stored)
    made = encode_documents(pa.array(rows, whole)[3:], [DocumentHeader("3", 3)])
    assert bson.decode(made[0].document, EXACT) == wanted[3]


def test_nan_is_stored() -> None:
    assert math.isnan(documents([{"v": math.nan}], pa.struct([("v", pa.float64())]))[0]["v"])


def test_one_wrong_row_is_refused_and_no_other() -> None:
    kind = pa.struct([("d", pa.decimal128(38, 0)), ("m", pa.map_(pa.string(), pa.int32()))])
    rows: list[Any] = [{"d": Decimal(n), "m": [("k", n)]} for n in range(1000)]
    rows[3] = {"d": Decimal("1" * 35), "m": None}
    rows[500] = {"d": None, "m": [("a.b", 1)]}
    rows[501] = {"d": None, "m": [("$a", 1)]}
    rows[999] = {"d": None, "m": [("", 1)]}
    found = documents(rows, kind)
    assert {n: said for n, said in enumerate(found) if isinstance(said, str)} == {
        3: "a number has more than 34 digits",
        500: "no document of MongoDB: field name 'a.b'",
        501: "no document of MongoDB: field name '$a'",
        999: "no document of MongoDB: a field without a name",
    }


def test_text_that_is_not_utf8_is_refused() -> None:
    raw = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    made = encode_documents(pa.StructArray.from_arrays([text], ["v"]), [DocumentHeader(f"{n}", n) for n in range(3)])
    assert [one.error for one in made] == ["", "a text is not UTF-8", ""]


def test_the_largest_document_is_stored_and_a_larger_one_refused() -> None:
    kind = pa.struct([("v", pa.large_string())])
    room = LIMITS.document_bytes - len(
        encode_documents(pa.array([{"v": ""}], kind), [DocumentHeader("0", 0)])[0].document
    )
    large, larger, largest = documents([{"v": "x" * n} for n in (room, room + 1, 100 * 2**20)], kind)
    assert len(large["v"]) == room
    assert larger == "the document has 16777217 bytes, MongoDB takes 16777216"
    assert "104857" in largest


def test_ten_thousand_fields_are_stored() -> None:
    kind = pa.struct([(f"f{n}", pa.int32()) for n in range(10_000)])
    check_type(kind, "mongodb:d.c")
    [found] = documents([{f"f{n}": n for n in range(10_000)}], kind)
    assert len(found) == 10_002


# As Spark sends one.
VARIANT = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={b"variant": b"true"})])


def nested(depth: int) -> pa.DataType:
    kind: pa.DataType = pa.int32()
    for _ in range(depth):
        kind = pa.struct([("a", kind)])
    return kind


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.struct([("a.b", pa.int32())]), "field name 'a.b'"),
        (pa.struct([("a", pa.list_(pa.struct([("$b", pa.int32())])))]), "field name '\\$b'"),
        (pa.struct([("a", pa.map_(pa.string(), pa.struct([("", pa.int32())])))]), "a field without a name"),
        (pa.struct([("a", pa.duration("us"))]), "a is of type duration"),
        (pa.struct([("a", pa.list_(VARIANT))]), "a is of type VARIANT"),
        (pa.struct([("a", pa.map_(pa.binary(), pa.int32()))]), "a is a map by binary"),
        (pa.struct([("a", pa.int32()), ("a", pa.int32())]), "two fields of one name"),
        (pa.struct([("_v", pa.int32())]), "_v"),
        (pa.struct([("_id", pa.int32())]), "_id"),
        (nested(LIMITS.depth + 1), "deeper than 100"),
    ],
)
def test_a_select_whose_rows_are_no_documents_is_refused(kind: pa.DataType, said: str) -> None:
    """Also by `sinks check`, before there is a batch."""
    with pytest.raises(SinkError, match=f"mongodb:d.c.*{said}"):
        check_type(kind, "mongodb:d.c")
    with pytest.raises(SinkError, match=said):
        collection_schema(MongoDB(sink="s", database="d", collection="c"), cast("pa.StructType", kind))


def test_the_deepest_document_is_stored() -> None:
    check_type(nested(LIMITS.depth), "mongodb:d.c")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"database": "a.b"}, "has '.' in it"),
        ({"database": ""}, "is empty"),
        ({"database": "é" * 32}, "longer than 63 bytes"),
        ({"collection": "$x"}, "has '\\$' in it"),
        ({"collection": "system.x"}, "begins with system."),
        ({"collection": "x.tombstones"}, "ends with .tombstones"),
        ({"collection": "c" * 235}, "longer than"),
        ({"suffix": "day", "tombstones": "mark"}, "TOMBSTONES MARK with SUFFIX"),
        ({"indexes": ((),)}, "cannot be created"),
        ({"indexes": (("a", "a"),)}, "cannot be created"),
        ({"indexes": (("a",),), "unique": (("a",),)}, "cannot be created"),
    ],
)
def test_names_that_no_server_takes(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        MongoDB(**({"sink": "s", "database": "d", "collection": "c"} | given))
