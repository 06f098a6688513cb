"""Values of a registry's formats, given as fields."""

from __future__ import annotations

import pytest

from penstock.errors import DeclarationError
from penstock.model.avro import Avro
from penstock.model.topic import Topic
from penstock.testing.registry_values import RegistryTopics
from tests.support.avro_cases import field, logical, optional, record, schema_text

SCHEMA = schema_text(
    [
        field("count", optional("int")),
        field("names", optional({"type": "map", "values": "long"})),
        field("place", optional(record("Place", field("number", "int")))),
        field("day", optional(logical("int", "date"))),
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
        ({1: 2}, "1; hint: the fields are count, names, place, day"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value: dict[str, object], got: str) -> None:
    topics = RegistryTopics({"shops": Topic("shops", schema=Avro(SCHEMA))})
    with pytest.raises(DeclarationError, match=f"a value does not fit the schema of its topic; got: {got}"):
        topics.to_bytes("shops", value)


def test_a_whole_number_with_a_fraction_of_zero_is_one() -> None:
    topics = RegistryTopics({"shops": Topic("shops", schema=Avro(SCHEMA))})
    assert topics.text(topics.to_bytes("shops", {"count": 2.0})) == ('{"count":2,"names":null,"place":null,"day":null}')
