"""What a case of documents sends to its sink; Spark is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.model.avro import Avro
from penstock.model.topic import Topic
from penstock.registry.wire_format import schema_id
from penstock.testing import documents
from penstock.testing.case_file import DocumentCase
from penstock.testing.registry_values import RegistryTopics
from penstock.testing.topics import Record
from tests.chaos.projects import other_project
from tests.support.avro_cases import field, logical, schema_text

SCHEMA = schema_text([field("id", "long"), field("name", "string"), field("at", logical("long", "timestamp-millis"))])
MODULE = f"""from penstock.streams import Avro, Input, Stateless, Stream, Topic, TopicOutput
SHOPS = Topic("shops", schema=Avro({SCHEMA!r}))
STREAM = Stream("copies", "shop", {{"rows": Input(SHOPS, event_time="at")}}, lambda rows: rows,
                TopicOutput(Topic("copies"), value="name"), Stateless())
"""
SINK = (
    "UPSERT INTO mongodb.shop.shops READ shops EVENT TIME at KEY (id) TOMBSTONES IGNORE AS SELECT id, name FROM shops"
)


class Sent(Exception):
    """The records are known."""


def sent(project: Path, monkeypatch: pytest.MonkeyPatch, value: dict[str, Any]) -> list[Record]:
    for name, text in {"jobs/shop/copies.py": MODULE, "sql/sinks/shops.sql": SINK}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)

    def frames(_spark: object, _sink: object, **records: list[Record]) -> None:
        raise Sent(*records.values())

    monkeypatch.setattr(documents, "frames", frames)
    case = DocumentCase.model_validate({"sink": "shops", "send": [{"value": value}]})
    with other_project(project, {}), pytest.raises(Sent) as e:
        documents.check_documents(case, "shops.yaml: one", project, None)  # type: ignore[arg-type]
    records: list[Record] = e.value.args[0]
    return records


def test_fields_of_a_topic_of_avro_are_sent_in_the_wire_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [record] = sent(tmp_path, monkeypatch, {"id": 1, "name": "north", "at": 0})
    assert record.value_bytes is not None
    assert schema_id(record.value_bytes) == 1


def test_fields_that_do_not_fit_are_refused_with_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeclarationError, match=r"^shops.yaml: one: a value does not fit the schema .* got: town"):
        sent(tmp_path, monkeypatch, {"id": 1, "town": "north"})
    topics = RegistryTopics({"shops": Topic("shops", schema=Avro(SCHEMA))})
    with pytest.raises(DeclarationError, match=r"^step 2: a value does not fit the schema of its topic; got: id: 'x'"):
        topics.expected({"id": "x", "name": "north", "at": 0}, ["shops"], "step 2")
