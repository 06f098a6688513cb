"""Values of a registry's formats, given as fields."""

from __future__ import annotations

import pytest

from penstock.errors import DeclarationError
from penstock.model.avro import Avro
from penstock.model.topic import Topic
from penstock.testing.registry_values import RegistryTopics
from tests.support.avro_cases import field, logical, optional, record, schema_text
from tests.support.registry_formats import protobuf

SCHEMA = schema_text(
    [
        field("count", optional("int")),
        field("names", optional({"type": "map", "values": "long"})),
        field("place", optional(record("Place", field("number", "int")))),
        field("day", optional(logical("int", "date"))),
        field("tags", optional({"type": "array", "items": "string"})),
        field("share", optional("double")),
    ]
)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ({"count": 1.5}, r"count: 1\.5 \(it is no whole number\)"),
        ({"names": "north"}, r"names: 'north' \(it has no fields\)"),
        ({"names": {"north": 0.5}}, "names: .* no whole number"),
        ({"place": []}, r"place: \[\] \(it has no fields\)"),
        ({"place": {1: 2}}, r"place: .* \(no fields 1\)"),
        ({"day": 5}, "day: 5"),
        ({"tags": "north"}, r"tags: 'north' \(it is no list\)"),
        ({"tags": {"north": 1}}, r"tags: .* \(it is no list\)"),
        ({"share": "much"}, "share: 'much'"),
        ({1: 2}, "1; hint: the fields are count, names, place, day, tags, share"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value: dict[str, object], got: str) -> None:
    topics = RegistryTopics({"shops": Topic("shops", schema=Avro(SCHEMA))})
    with pytest.raises(DeclarationError, match=f"a value does not fit the schema of its topic; got: {got}"):
        topics.to_bytes("shops", value)


def test_a_whole_number_with_a_fraction_of_zero_is_one() -> None:
    topics = RegistryTopics({"shops": Topic("shops", schema=Avro(SCHEMA))})
    text = topics.text(topics.to_bytes("shops", {"count": 2.0})) or ""
    assert text.startswith('{"count":2,"names":null,')


@pytest.mark.parametrize(
    ("share", "shown"),
    [(float("nan"), '"NaN"'), ("NaN", '"NaN"'), ("-Infinity", '"-Infinity"'), (None, "null"), (0.5, "0.5")],
)
def test_a_number_that_is_not_finite_is_no_null(share: object, shown: str) -> None:
    topics = RegistryTopics({"shops": Topic("shops", schema=Avro(SCHEMA))})
    assert (topics.expected({"share": share}, ["shops"]) or "").endswith(f'"share":{shown}}}')


ORDER = protobuf("int64 id = 1; optional string shop = 2; google.protobuf.Timestamp at = 3; repeated int32 ns = 4;")


def test_fields_of_protobuf_are_those_of_its_json() -> None:
    topics = RegistryTopics({"orders": Topic("orders", schema=ORDER)})
    value = topics.to_bytes("orders", {"id": "7", "shop": None, "at": "2026-01-31T12:00:00Z", "ns": [1, 2]})
    assert value
    # The message is the second one of its file.
    assert value[:7] == b"\x00\x00\x00\x00\x01\x02\x02"
    assert topics.text(value) == '{"id":"7","at":"2026-01-31T12:00:00Z","ns":[1,2]}'
    assert topics.expected({"id": 7, "at": "2026-01-31T12:00:00Z", "ns": [1, 2]}, ["orders"]) == topics.text(value)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ({"id": "many"}, "got: .*id"),
        ({"at": "noon"}, "got: .*at"),
        ({"ns": 1}, "got: .*ns"),
        ({"number": 1}, "got: number; hint: the fields are id, shop, at, ns"),
    ],
)
def test_a_value_that_is_no_message_is_refused(value: dict[str, object], got: str) -> None:
    topics = RegistryTopics({"orders": Topic("orders", schema=ORDER)})
    with pytest.raises(DeclarationError, match=f"a value does not fit the schema of its topic; {got}"):
        topics.to_bytes("orders", value)
