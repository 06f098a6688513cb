"""Protobuf that the official runtime wrote is read, and what is written is read by it; all else has a reason."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import permutations
from random import Random
from typing import Any, cast

import pyarrow as pa
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from penstock.codec.arrow_types import arrow_type
from penstock.codec.protobuf import (
    MessageIndexes,
    ProtobufDecoder,
    ProtobufText,
    read_indexes,
    written_indexes,
)
from penstock.codec.protobuf_encoder import MessageEncoder
from penstock.codec.registry_values import RegistryValues
from penstock.errors import UnknownSchema
from penstock.model.protobuf import Protobuf
from penstock.model.types import Type
from penstock.registry import client
from penstock.registry.client import WriterSchema
from penstock.registry.wire_format import HEADER_BYTES, header
from tests.support.protobuf_cases import EVERYTHING, schema, value, value_of
from tests.support.random_cases import tries
from tests.support.schema_evolution import as_dicts

ALL = Protobuf(EVERYTHING, message="Everything")
MESSAGE = {
    "id": "5", "i": -3, "u": 2**32 - 1, "big": 2**64 - 1, "f": 1.5, "d": -2.25, "z": True, "s": "x", "y": "AP8=",
    "color": "BLUE", "note": "", "inner": {"n": 1}, "items": [{"n": 2, "o": "y"}, {}], "colors": ["BLUE", "RED"],
    "counts": {"a": 1}, "inners": {"k": {"n": 4}}, "at": "2026-02-03T04:05:06.789Z", "took": "1.5s",
    "wrapped": "0", "text": "", "second": 0,
}  # fmt: skip
READ = {
    "id": 5, "i": -3, "u": 2**32 - 1, "big": Decimal(2**64 - 1), "f": 1.5, "d": -2.25, "z": True, "s": "x",
    "y": b"\x00\xff", "color": "BLUE", "note": "", "inner": {"n": 1, "o": None},
    "items": [{"n": 2, "o": "y"}, {"n": 0, "o": None}], "colors": ["BLUE", "RED"], "counts": [("a", 1)],
    "inners": [("k", {"n": 4, "o": None})], "at": datetime(2026, 2, 3, 4, 5, 6, 789000, UTC), "took": 1_500_000,
    "wrapped": Decimal(0), "text": "", "first": None, "second": 0,
}  # fmt: skip
RECORD: Any = arrow_type(Type("struct", fields=ALL.fields))


def decoder(of: Protobuf, **known: str) -> ProtobufDecoder:
    return ProtobufDecoder(RegistryValues(of, tuple((int(name[1:]), text) for name, text in known.items())))


def message(written: dict[str, Any]) -> Any:
    return ParseDict(written, GetMessageClass(ALL.descriptor)())


TIMES = Protobuf(
    """
    syntax = "proto3";
    import "google/protobuf/duration.proto";
    import "google/protobuf/timestamp.proto";
    message Inner { google.protobuf.Timestamp at = 1; }
    message Times {
      google.protobuf.Duration took = 1;
      repeated google.protobuf.Duration all = 2;
      map<string, google.protobuf.Timestamp> by = 3;
      Inner inner = 4;
      repeated Inner inners = 5;
    }
    """,
    message="Times",
)


@pytest.mark.parametrize("seconds", [315_576_000_001, -315_576_000_001, 2**62, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("place", ["took", "all", "by", "inner", "inners"])
def test_a_time_out_of_its_range_is_refused_at_any_depth(seconds: int, place: str) -> None:
    def times(seconds: int) -> bytes:
        of: Any = GetMessageClass(TIMES.descriptor)()
        targets = {
            "took": lambda: of.took, "all": of.all.add, "by": lambda: of.by["k"], "inner": lambda: of.inner.at,
            "inners": lambda: of.inners.add().at,
        }  # fmt: skip
        targets[place]().seconds = seconds
        return value_of(TIMES, of)

    rows, errors = decoder(TIMES, _1=TIMES.text).decode(pa.array([times(5), times(seconds), None, times(-5)]))
    reason = "not Protobuf of schema id 1: a Timestamp or Duration is out of its range"
    assert errors.to_pylist() == [None, reason, None, None]
    assert rows.is_valid().to_pylist() == [True, False, False, True]
    assert rows[0].as_py()[place] is not None


def test_every_type_is_read_and_written() -> None:
    values = [value(ALL, MESSAGE), None, value(ALL, {})]
    rows, errors = decoder(ALL, _1=EVERYTHING).decode(pa.array(values))
    assert errors.to_pylist() == [None, None, None]
    assert rows.to_pylist()[:2] == [READ, None]
    written = MessageEncoder(ALL).encode(rows).to_pylist()
    parsed = [None if one is None else read(one) for one in written]
    assert parsed == [message(MESSAGE), None, message({})]
    sliced = MessageEncoder(ALL).encode(rows[2:]).to_pylist()
    assert sliced == written[2:]


def read(written: bytes) -> Any:
    indexes = written_indexes(ALL.descriptor)
    assert written.startswith(indexes)
    return GetMessageClass(ALL.descriptor).FromString(written[len(indexes) :])


def test_an_unknown_value_of_an_enum_is_its_number_and_written_as_it() -> None:
    of = message({"id": 1})
    of.color = 77
    rows, _ = decoder(ALL, _1=EVERYTHING).decode(pa.array([value_of(ALL, of)]))
    assert rows[0].as_py()["color"] == "77"
    assert read(MessageEncoder(ALL).encode(rows)[0].as_py()).color == 77


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("id", None, "field id is NULL, which"),
        ("items", None, "field items is NULL, which"),
        ("items", [None], r"field items\[\] is NULL, which"),
        ("items", [{"n": None, "o": None}], r"field items\[\].n is NULL, which"),
        ("counts", [("a", None)], r"field counts\[\] is NULL, which"),
        ("color", "GREEN", "field color: demo.Color has no such value"),
        ("colors", ["RED", "GREEN"], r"field colors\[\]: demo.Color has no such value"),
        ("first", "x", "more than one field of oneof choice has a value: first, second"),
        ("big", Decimal(-1), "field big: "),
        ("u", 2**32, "field u: "),
    ],
)
def test_what_a_message_cannot_hold_is_refused(name: str, changed: Any, said: str) -> None:
    records = pa.array([READ, {**READ, name: changed}], RECORD)
    with pytest.raises(ValueError, match=said):
        MessageEncoder(ALL).encode(records)


def test_a_null_struct_has_no_fields_to_look_at() -> None:
    records = pa.array([{**READ, "inner": None, "at": None}, READ], RECORD)
    first, second = (read(one or b"") for one in MessageEncoder(ALL).encode(records).to_pylist())
    assert not first.HasField("inner")
    assert not first.HasField("at")
    assert second == message(MESSAGE)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids that were looked up: 2 is Avro, 3 none, 4 no file, 5 has the message at another index."""
    seen: list[int] = []

    def schema_of(number: int, _: object) -> WriterSchema:
        seen.append(number)
        if number == 3:
            raise UnknownSchema("no such id")
        moved = EVERYTHING.replace("message First", "message Zero { string x = 1; } message First")
        return WriterSchema({2: "{}", 4: "message {"}.get(number, moved), "AVRO" if number == 2 else "PROTOBUF")

    monkeypatch.setattr(client, "schema_of", schema_of)
    return seen


def test_what_is_no_message_has_a_reason_and_rejects_no_other(lookups: list[int]) -> None:
    good = message({"id": 7}).SerializeToString()
    wrong = {
        header(1) + b"\x02\x02\xff": "not Protobuf of schema id 1: unexpected EOF in varint",
        header(1) + b"\x02\x02" + good + b"\x42\x01\xff": "not Protobuf of schema id 1: invalid UTF-8",
        header(1) + b"\x02\x02" + good + b"\x42\x05x": "not Protobuf of schema id 1: unexpected EOF",
        header(1) + b"\x02\x02\x42" + b"\xff" * 9 + b"\x01": "not Protobuf of schema id 1: a length is too large",
        header(1) + b"\x00" + good: "not demo.Everything: schema id 1 has demo.First",
        header(1) + b"\x02\x0e" + good: "not demo.Everything: schema id 1 has no message at 7",
        header(1) + b"\x04\x02\x00": "not demo.Everything: schema id 1 has demo.Everything.Inner",
        header(1): "not Protobuf of schema id 1: it ends before its message",
        header(1) + b"\x04\x02": "not Protobuf of schema id 1: it ends before its message",
        header(1) + b"\x02\x80": "not Protobuf of schema id 1: it ends before its message",
        header(1) + b"\xff" * 9: "not Protobuf of schema id 1: the indexes of its message are broken",
        header(1) + b"\x01" + good: "not Protobuf of schema id 1: the indexes of its message are broken",
        header(2) + b"\x00": "schema id 2 is no Protobuf schema: it is AVRO",
        header(3) + b"\x00": "schema id 3 is not in the registry",
        b"{}": "not in the wire format of a schema registry: it begins with 0x7b7d",
        b"": "not in the wire format of a schema registry: it is empty",
    }
    kept = [header(1) + b"\x02\x02" + good, header(5) + b"\x02\x04" + good, header(1) + b"\x02\x02"]
    values = [*kept, None, *wrong, header(4) + b"\x00", *kept]
    decode = decoder(ALL, _1=EVERYTHING).decode
    for _ in range(2):
        rows, errors = decode(pa.array(values, pa.binary()))
        reasons: list[Any] = errors.to_pylist()
        ids = [row and row["id"] for row in rows.to_pylist()]
        assert ids == [7, 7, 0, *[None] * (len(wrong) + 2), 7, 7, 0]
        assert reasons[4 : 4 + len(wrong)] == [*wrong.values()]
        assert reasons[4 + len(wrong)].startswith("schema id 4 is no Protobuf schema: line 1: ")
        assert reasons[:4] == [None] * 4
        assert reasons[-3:] == [None] * 3
    assert sorted(set(lookups)) == [2, 3, 4, 5]
    assert [lookups.count(number) for number in (2, 4, 5)] == [1, 1, 1]


def test_what_the_official_runtime_reads_is_read_with_equal_values() -> None:
    random, whole = Random(7), message(MESSAGE).SerializeToString()
    texts = [b"", whole]
    for _ in range(tries(300)):
        data = bytearray(whole)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(data))
            data[at : at + random.randint(0, 1)] = random.randbytes(random.randint(0, 2))
        texts.append(bytes(data))
    prefix = value(ALL, {})
    rows, errors = decoder(ALL, _1=EVERYTHING).decode(pa.array([prefix + text for text in texts]))
    names, structs = ("id", "i", "u", "big", "z", "s", "y"), cast("pa.StructArray", rows)
    records = pa.RecordBatch.from_struct_array(structs)
    columns = zip(*(records[name].to_pylist() for name in names), strict=True)
    count = 0
    for text, read_values, error in zip(texts, columns, errors.to_pylist(), strict=True):
        try:
            official = GetMessageClass(ALL.descriptor).FromString(text)
        except DecodeError:
            continue
        count += 1
        assert error is None, text.hex()
        assert [*read_values] == [getattr(official, name) for name in names], text.hex()
    assert count > len(texts) // 50


def test_joined_messages_are_read_as_the_official_runtime_reads_them() -> None:
    parts: list[dict[str, Any]] = [
        {"first": "x"}, {"second": 2}, {"counts": {"a": 1, "b": 5}}, {"counts": {"a": 2}},
        {"inner": {"n": 1, "o": "x"}}, {"inner": {"n": 2}}, {"items": [{"n": 1}]}, {"inners": {"k": {"n": 1}}},
        {"inners": {"k": {"o": "y"}}}, {"wrapped": "7"}, {"colors": ["BLUE"]}, {"at": "1970-01-01T00:00:05Z"},
    ]  # fmt: skip
    texts = [b"".join(message(part).SerializeToString() for part in pair) for pair in permutations(parts, 2)]
    # A map without a value for a key.
    texts.append(b"\x82\x01\x03\x0a\x01k")
    officials = [GetMessageClass(ALL.descriptor).FromString(text).SerializeToString() for text in texts]
    prefix, decode = value(ALL, {}), decoder(ALL, _1=EVERYTHING).decode
    rows, errors = decode(pa.array([prefix + text for text in texts]))
    assert errors.null_count == len(texts)
    # The official runtime writes maps in any order.
    read_officials, _ = decode(pa.array([prefix + text for text in officials]))
    assert as_dicts(rows.to_pylist()) == as_dicts(read_officials.to_pylist())
    choices = [(row["first"], row["second"]) for row in rows.to_pylist()[:2] if row]
    assert choices == [(None, 2), ("x", None)]


def test_what_the_official_runtime_merges_is_found_at_any_depth() -> None:
    inner = "message A { oneof o { int32 a = 1; int32 b = 2; } map<string, int32> m = 3; }"
    of = schema(
        f"{inner} message L {{ repeated A items = 1; map<string, A> named = 2; A one = 3; }} repeated L ls = 1;"
    )
    both, twice = b"\x08\x01\x10\x02", b"\x1a\x05\x0a\x01k\x10\x01" * 2

    def within(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    texts = [
        within(1, within(number, data if number != 2 else within(1, b"x") + within(2, data)))
        for number in (1, 2, 3)
        for data in (both, twice)
    ]
    texts += [b"", within(1, within(1, b"\x08\x01"))]
    officials = [GetMessageClass(of.descriptor).FromString(text).SerializeToString() for text in texts]
    assert [text != official for text, official in zip(texts, officials, strict=True)] == [True] * 6 + [False] * 2
    prefix, decode = value(of, {}), decoder(of, _1=of.text).decode
    rows, errors = decode(pa.array([prefix + text for text in texts]))
    assert errors.null_count == len(texts)
    # The official runtime writes maps in any order.
    read_officials, _ = decode(pa.array([prefix + text for text in officials]))
    assert as_dicts(rows.to_pylist()) == as_dicts(read_officials.to_pylist())


@pytest.mark.parametrize("path", [(0,), (1,), (63,), (64,), (1, 0), (3, 200, 5)])
def test_indexes_are_zigzag_varints(path: tuple[int, ...]) -> None:
    # As Confluent's serialiser for Python writes them.
    from io import BytesIO

    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

    stream = BytesIO()
    ProtobufSerializer._encode_varints(stream, list(path), zigzag=True)
    data = stream.getvalue()
    assert read_indexes(data + b"more") == MessageIndexes(path, len(data))
    for length in range(len(data)):
        needed = read_indexes(data[:length])
        assert isinstance(needed, int)
        assert length < needed <= len(data)


def test_values_are_shown_as_protobufs_json() -> None:
    shown = ProtobufText(EVERYTHING).as_json(value(ALL, {"id": "5", "color": "BLUE"})[HEADER_BYTES:])
    assert shown == b'{"id":"5","color":"BLUE"}'
