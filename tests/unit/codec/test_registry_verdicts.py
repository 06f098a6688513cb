"""Which values a schema registry makes valid, and when it must answer."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.codec import registry_verdicts
from penstock.codec.registry_verdicts import RegistryVerdicts
from penstock.errors import RegistryError
from penstock.registry import client
from penstock.registry.endpoint import RegistryEndpoint
from penstock.registry.wire_format import header
from tests.support.avro_cases import B, field, schema_text


def judged(verdicts: RegistryVerdicts, topic: str, *values: bytes | None) -> list[tuple[object, object]]:
    columns = verdicts.columns(pa.array([topic] * len(values)), pa.array(values, pa.binary()))
    return [*zip(columns["_registered"].to_pylist(), columns["_registry_error"].to_pylist(), strict=True)]


def test_a_schema_that_cannot_be_read_makes_its_values_invalid_and_fails_no_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = schema_text([B]), schema_text([field("a", "int", default="x")])
    verdicts = RegistryVerdicts(RegistryEndpoint("http://h", table=tuple(("t-value", one, "AVRO") for one in texts)))
    good, of_other = header(1) + b"\x02x", header(2) + b"\x02"
    reason = "schema id 2 is no schema that can be read"
    assert judged(verdicts, "t", good, of_other, None) == [(True, None), (True, reason), (True, None)]
    monkeypatch.setattr(client, "schema_of", None)
    assert judged(verdicts, "t", good, of_other) == [(True, None), (True, reason)], "each is looked up once"


def test_without_an_answer_values_that_may_be_of_a_new_subject_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (("t-value", schema_text([B]), "AVRO"),)
    verdicts = RegistryVerdicts(RegistryEndpoint("http://h", table=table))
    good = header(1) + b"\x02x"
    assert judged(verdicts, "t", good) == [(True, None)]

    def subjects(_: object) -> frozenset[str]:
        raise RegistryError("no answer")

    monkeypatch.setattr(client, "subjects", subjects)
    monkeypatch.setattr(registry_verdicts, "REFRESH", -1.0)
    assert judged(verdicts, "t", good) == [(True, None)], "what was registered still is"
    assert judged(verdicts, "other", b"{}") == [(False, None)], "this is of no schema"
    with pytest.raises(RegistryError):
        judged(verdicts, "other", good)
