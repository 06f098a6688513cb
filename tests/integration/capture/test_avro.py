"""A capture of a real MariaDB writes Avro: Confluent's deserialiser reads from the topic what the table has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer

from penstock.capture.output.encode import EncodingError
from penstock.capture.polling.poller import Poller
from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.errors import PenstockError, SchemaNotRegistered
from penstock.model.topic import DEAD_LETTERS
from penstock.registry import client
from penstock.settings import settings
from penstock.testing import read
from tests.support.avro_cases import field, logical, optional, schema_text
from tests.support.captures import Source, polled, until
from tests.support.schema_registry import close_clients

pytestmark = pytest.mark.integration

FIELDS = [
    field("id", "long"), field("name", optional("string")), field("gone", "boolean"),
    field("changed", optional(logical("long", "timestamp-micros"))),
]  # fmt: skip
Rows = dict[int, str | None]


@pytest.fixture
def avro_source(
    source: Source, schema_registry: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Source]:
    monkeypatch.setenv("PENSTOCK_SCHEMA_REGISTRY_URL", schema_registry.url)
    settings.cache_clear()
    yield source
    close_clients()


def declared(source: Source, fields: list[Any] = FIELDS) -> str:
    """The capture's declaration, with the file of its schema."""
    (source.folder / "rows.avsc").write_text(schema_text(fields))
    return source.declared().replace(" FROM mysql", " AS AVRO 'rows.avsc' FROM mysql", 1)


def register(source: Source, fields: list[Any] = FIELDS) -> None:
    client.register(f"{source.name}-value", schema_text(fields), "AVRO")


def in_topic(source: Source) -> Rows:
    """The names of the newest rows, by id; each value has to be Avro of the registry."""
    newest: dict[int, bytes | None] = {}
    for record in read(source.broker.bootstrap, source.name):
        newest[int(str(record.key).removeprefix('{"id":').removesuffix("}"))] = record.value_bytes
    with closing(SchemaRegistryClient({"url": os.environ["PENSTOCK_SCHEMA_REGISTRY_URL"]})) as registry:
        read_value = AvroDeserializer(registry)
        rows: dict[int, Any] = {key: read_value(value, None) for key, value in newest.items() if value is not None}
    changed = dict(source.rows(f"SELECT id, changed FROM {source.name}"))
    assert all(row["id"] == key and row["changed"].replace(tzinfo=None) == changed[key] for key, row in rows.items())
    return {key: row["name"] for key, row in rows.items()}


def in_table(source: Source) -> Rows:
    return dict(source.rows(f"SELECT id, name FROM {source.name} WHERE NOT gone"))


def is_compared(poller: Poller) -> bool:
    return not poller.position.reconcile


def test_snapshot_polls_deletes_and_reconcile(avro_source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source = avro_source
    monkeypatch.setattr("penstock.capture.snapshot.snapshot.SnapshotRun.LARGE", 100)
    monkeypatch.setattr("penstock.capture.session.CaptureSession.PAGE", 50)
    monkeypatch.setenv("PENSTOCK_SNAPSHOT_READERS", "2")
    settings.cache_clear()
    source.sql(f"INSERT INTO {source.name} (name, gone) SELECT NULLIF(seq, 7), seq % 10 = 0 FROM seq_1_to_200")
    text = declared(source)
    with pytest.raises(SchemaNotRegistered, match="penstock streams release"):
        source.opened(text)
    assert client.subject_schemas(f"{source.name}-value", "AVRO") == {}
    register(source)
    poller = source.opened(text)
    polled(poller)
    assert in_topic(source) == in_table(source)
    assert len(in_topic(source)) == 180
    source.sql(
        f"UPDATE {source.name} SET name = 'other' WHERE id % 9 = 0",
        f"UPDATE {source.name} SET gone = 1 WHERE id = 1",
        f"DELETE FROM {source.name} WHERE id = 2",
        f"INSERT INTO {source.name} (id, name) VALUES (1000, 'Zoë')",
    )
    poller.compare("asked for")
    until(poller, partial(is_compared, poller), "table and topic are compared")
    polled(poller, 2)
    assert in_topic(source) == in_table(source)
    assert poller.position.last_reconcile.extra == 1
    written = poller.metrics.written
    poller.compare("asked for")
    until(poller, partial(is_compared, poller), "nothing differs")
    assert poller.metrics.written == written


def test_all_rows_are_written_again_by_another_schema(avro_source: Source) -> None:
    source = avro_source
    source.sql(f"INSERT INTO {source.name} (name) SELECT seq FROM seq_1_to_20")
    poller = source.poller()
    polled(poller)
    source.close(poller)
    # The first one after JSON, the second one after Avro.
    for fields in (FIELDS, [*FIELDS[:1], field("name", optional("string"), default=None), *FIELDS[2:]]):
        register(source, fields)
        poller = source.opened(declared(source, fields))
        until(poller, partial(is_compared, poller), "all rows are written again")
        assert in_topic(source) == in_table(source)
        assert poller.metrics.written == 20
        assert poller.position.last_reconcile.explained
        source.close(poller)


def test_a_column_that_does_not_fit_is_refused_before_anything_is_written(avro_source: Source) -> None:
    source = avro_source
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b')")
    fields = [FIELDS[0], field("name", optional("int")), *FIELDS[2:]]
    register(source, fields)
    poller = source.opened(declared(source, fields))
    with pytest.raises(EncodingError, match="column name has a type that its Avro field cannot have; got: str for int"):
        polled(poller)
    source.close(poller)
    client.register("fewer", schema_text(FIELDS[:3]), "AVRO")
    text = declared(source, FIELDS[:3]).replace("'rows.avsc'", "'rows.avsc' SUBJECT fewer")
    with pytest.raises(PenstockError, match="column changed is no field"):
        polled(source.opened(text, "snapshot"))
    assert read(source.broker.bootstrap, source.name) == []


def test_a_value_that_does_not_fit_is_a_dead_letter(avro_source: Source) -> None:
    source = avro_source
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), (NULL), ('c')")
    fields = [FIELDS[0], field("name", "string"), *FIELDS[2:]]
    register(source, fields)
    poller = source.opened(declared(source, fields))
    polled(poller)
    assert in_topic(source) == {1: "a", 3: "c"}
    assert (len(poller.session.oversized), poller.metrics.dead_letters) == (1, 1)
    letters = [one for one in read(source.broker.bootstrap, DEAD_LETTERS.name) if one.key == '{"id":2}']
    assert [dict(one.headers)["penstock.reason"] for one in letters if source.name in str(one.headers)] == [
        "field name is NULL, and no union with null"
    ]
    source.sql(f"UPDATE {source.name} SET name = 'b' WHERE id = 2")
    polled(poller, 2)
    assert in_topic(source) == in_table(source)
    assert len(poller.session.oversized) == 0
