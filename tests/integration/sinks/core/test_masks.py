"""Masked documents in a store, their ids, deletes by them, and dead letters that do not hold their records."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pymongo
import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.operations.sink_preview import render_documents
from penstock.engine.operations.sink_replay import WRITTEN, replay
from penstock.kafka.dead_letters import read_dead_letters
from penstock.kafka.record_lookup import newest_records
from penstock.model.sql.sink_file import parse
from penstock.settings import settings
from penstock.sinks.core.preview import explain_sink
from penstock.sinks.core.stream import sink_stream
from penstock.streams import Stream, Topic
from penstock.testing import Record, create, read, running, send

pytestmark = pytest.mark.integration

KEY = bytes(range(40, 72))
PEOPLE = Topic("people", partitions=1, compacted=True)
SINK = """UPSERT INTO mongodb.{database}.people
READ people AS JSON (email STRING NOT NULL, card STRING, note STRING, contact STRUCT<phone: STRING>, gone BOOLEAN)
KEY (email)
UNIQUE INDEX (card)
MASK email HASHED WITH pii, card HASHED WITH pii, note DROPPED, contact.phone ENCRYPTED WITH pii
TOMBSTONES DELETE (get_json_object(string(record.key), '$.email'))
DELETED WHEN (gone AND note = 'forget me')
AS SELECT email, card, note, contact, gone FROM people"""
SECRETS = ("ann@x", "bob@x", "4111-1111-22", "555-123", "forget me")


@pytest.fixture(autouse=True)
def _keys(mongodb_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PENSTOCK_MASK_KEYS", json.dumps({"pii": base64.b64encode(KEY).decode()}))
    monkeypatch.setenv("PENSTOCK_MONGODB_URL", mongodb_url)
    settings.cache_clear()
    yield
    settings.cache_clear()


def digest(text: str) -> str:
    return hmac.digest(KEY, text.encode(), hashlib.sha256).hex()


def person(email: str, card: str, **more: object) -> Record:
    value = {"email": email, "card": card, "note": "forget me", "contact": {"phone": "555-123"}, **more}
    return Record("people", json.dumps({"email": email}), json.dumps(value))


def test_documents_ids_and_dead_letters_have_no_value(
    spark: SparkSession, fresh_broker: Broker, mongodb_url: str, tmp_path: Path
) -> None:
    bootstrap, database = fresh_broker.bootstrap, f"masks-{tmp_path.name[-12:]}"
    declared = parse(SINK.format(database=f"`{database}`"), Path("sql/sinks/people.sql"))
    plain = sink_stream(declared, {"people": PEOPLE})
    [given] = plain.sources.values()
    stream: Stream = replace(
        plain, inputs={"topic_1": replace(given, topic=replace(PEOPLE, config={"retention.ms": "-1"}))}
    )
    create(bootstrap, *stream.topics())
    explanation = explain_sink(declared, {"people": PEOPLE}, spark)
    assert [name for name, _ in explanation.fields] == ["email", "card", "contact", "gone"]
    assert any(fact.startswith("masked: email HASHED WITH pii, card HASHED") for fact in explanation.facts)
    assert KEY.hex() not in explanation.plan.lower()
    with pymongo.MongoClient(mongodb_url) as client:  # type: ignore[var-annotated]
        people = client[database]["people"]
        try:
            with running(stream, spark, bootstrap, tmp_path) as run:
                send(bootstrap, [person("ann@x", "4111-1111-22")])
                run.process_all_available()
                # The unique index refuses a card that another document has.
                send(bootstrap, [person("bob@x", "4111-1111-22")])
                run.process_all_available()
                assert run.figures.dead == 1
                [document] = people.find()
                phone = base64.b64decode(document["contact"].pop("phone"))
                assert (document["_id"], document["email"], document["card"]) == (
                    digest("ann@x"),
                    digest("ann@x"),
                    digest("4111-1111-22"),
                )
                assert phone[12:] != b"555-123"
                assert not [secret for secret in SECRETS if secret in str(document)]
                rendered = render_documents(spark, stream, newest_records(["people"], 2, bootstrap))
                assert not [secret for secret in SECRETS if secret in str(rendered.rows.to_pylist())]
                letters = list(read_dead_letters(["people-dead-letter"], bootstrap))
                assert [(letter.origin, letter.key, letter.value) for letter in letters] == [
                    (("people", 0, 1), None, None)
                ]
                [record] = read(bootstrap, "people-dead-letter")
                assert not [secret for secret in SECRETS if secret in str(record)]
                assert digest("4111-1111-22") in letters[0].reason
                # A row that DELETED WHEN names by a column that is dropped, and a tombstone of the same key.
                send(bootstrap, [person("ann@x", "4111-1111-22", gone=True)])
                run.process_all_available()
                assert not list(people.find({"_id": digest("ann@x")}))
                [again] = replay(spark, stream, letters, bootstrap)
                assert again.said == WRITTEN
                assert people.find_one({"_id": digest("bob@x")})
                send(bootstrap, [Record("people", json.dumps({"email": "bob@x"}), None)])
                run.process_all_available()
                assert not list(people.find({"_id": digest("bob@x")}))
        finally:
            client.drop_database(database)
