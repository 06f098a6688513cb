"""The latest row of an id is written; if the store refuses it, the older ones of the batch are written instead."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pymongo import MongoClient

from penstock.devstack.servers.influxdb import InfluxDBServer
from penstock.errors import Refused
from penstock.model.output import NO_COMMIT
from penstock.sinks.elasticsearch.writer import IndexWriter
from penstock.sinks.influxdb.config import InfluxDB
from penstock.sinks.influxdb.writer import InfluxWriter
from penstock.sinks.mongodb.config import MongoDB
from penstock.sinks.mongodb.writer import MongoWriter
from tests.support import elasticsearch, influxdb, mongodb
from tests.support.elasticsearch import Server
from tests.support.mongodb import Row
from tests.support.tombstone_histories import histories, left, placed, readings

pytestmark = pytest.mark.integration

AT = datetime.fromtimestamp(1_501_273_548, UTC)


@pytest.mark.long
def test_elasticsearch(search: Server) -> None:
    search.clear()
    many, row = b'{"n": "many"}', elasticsearch.row
    rows = [row("a", 1, {"n": 1}), row("a", 3, many), row("a", 2, {"n": 2}), row("a", 4, many)]
    rows += [row("b", 1, {"n": 3}), row("b", 2), row("b", 3, many)]
    writer = IndexWriter(search.url, elasticsearch.output("things"))
    try:
        with pytest.raises(Refused) as e:
            elasticsearch.give(writer, *rows)
    finally:
        writer.close()
    assert (refused(e.value.rows), e.value.written) == ([1, 3, 6], 2)
    assert {key: found["n"] for key, found in search.documents("things").items()} == {"a": 2}


def test_mongodb(mongodb_url: str) -> None:
    database, kind = f"penstock-{uuid4().hex[:12]}", pa.struct([("n", pa.decimal128(38, 0))])
    wide = {"n": 10**36 + 1}
    rows = [Row("a", 1, {"n": 1}), Row("a", 3, wide), Row("a", 2, {"n": 2}), Row("a", 4, {"n": 7})]
    rows += [Row("b", 1, {"n": 3}), Row("b", 2), Row("b", 3, wide)]
    output = MongoDB(sink="s", database=database, collection="c", unique=(("n",),))
    with MongoClient[Any](mongodb_url) as client:
        writer = MongoWriter(mongodb_url, output)
        try:
            mongodb.write(writer, output, Row("first", 1, {"n": 7}), kind=kind)
            with pytest.raises(Refused) as e:
                mongodb.write(writer, output, *rows, kind=kind)
            there = {found["_id"]: int(str(found["n"])) for found in client[database].c.find()}
            client.drop_database(database)
        finally:
            writer.close()
    assert refused(e.value.rows) == [1, 3, 6]
    assert there == {"first": 7, "a": 2}


def test_influxdb(influxdb_server: InfluxDBServer) -> None:
    """Whole numbers came first: each row that has another kind of number is refused with all its fields."""
    output = InfluxDB(sink="s", database="d", measurement="m", tags=("t",), time="at")
    types: dict[str, Any] = {"t": pa.string(), "at": pa.timestamp("us", "UTC"), "w": pa.int64()}
    given = [(1, None, 1), (4, 1.5, 4), (2, None, 2), (3, 0.5, 3)]
    _quotes_another_reason(influxdb_server.url, types)
    writer = InfluxWriter(influxdb_server.url, output)
    try:
        whole = influxdb.documents(influxdb.row(at=AT, v=0, t="x"), **types, v=pa.int64())
        writer.write({output.name: whole}, NO_COMMIT)
        rows = [influxdb.row(version, at=AT, t="x", v=v, w=w) for version, v, w in given]
        with pytest.raises(Refused) as e:
            writer.write({output.name: influxdb.documents(*rows, **types, v=pa.float64())}, NO_COMMIT)
        [series] = influxdb.asked(influxdb_server, "SELECT v, w FROM m", "d")["series"]
    finally:
        writer.close()
    assert (refused(e.value.rows), e.value.written) == ([1, 3], 2)
    assert [values[1:] for values in series["values"]] == [[0, 2]]


def _quotes_another_reason(url: str, types: dict[str, Any]) -> None:
    """A name of the user's stands in the server's message, and says nothing of why."""
    name = "points beyond retention policy dropped=1"
    writer = InfluxWriter(url, InfluxDB(sink="s", database="d", measurement=name, tags=("t",), time="at"))
    try:
        for kind, value in ((pa.int64(), 1), (pa.float64(), 0.5)):
            row = influxdb.documents(influxdb.row(2, at=AT, t="x", v=value), **types, v=kind)
            if kind == pa.int64():
                writer.write({writer.output.name: row}, NO_COMMIT)
                continue
            with pytest.raises(Refused, match="field type conflict") as e:
                writer.write({writer.output.name: row}, NO_COMMIT)
            assert e.value.written == 0
    finally:
        writer.close()


def test_a_tombstone_follows_what_is_ahead_in_elasticsearch(search: Server) -> None:
    search.clear()
    chance = random.Random(7)
    steps, writer = histories(chance, 40, 4), IndexWriter(search.url, elasticsearch.output("ahead"))
    try:
        for events in readings(chance, steps):
            rows = [
                elasticsearch.row(e.key, e.version, None if e.tombstone else {"n": e.offset}, deleted=e.tombstone)
                for e in events
            ]
            writer.write({writer.output.name: placed(elasticsearch.batch(rows), events)}, NO_COMMIT)
    finally:
        writer.close()
    assert {key: found["n"] for key, found in search.documents("ahead").items()} == left(steps)


def test_a_tombstone_follows_what_is_ahead_in_mongodb(mongodb_url: str) -> None:
    database, chance = f"penstock-{uuid4().hex[:12]}", random.Random(7)
    output, steps = MongoDB(sink="s", database=database, collection="c"), histories(chance, 40, 4)
    with MongoClient[Any](mongodb_url) as client:
        writer = MongoWriter(mongodb_url, output)
        try:
            for events in readings(chance, steps):
                rows = [Row(e.key, e.version, None if e.tombstone else {"n": e.offset}) for e in events]
                writer.write({output.name: placed(mongodb.table(*rows), events)}, NO_COMMIT)
            there = {found["_id"]: found["n"] for found in client[database].c.find()}
            client.drop_database(database)
        finally:
            writer.close()
    assert there == left(steps)


def test_a_tombstone_follows_what_is_ahead_in_influxdb(influxdb_server: InfluxDBServer) -> None:
    output = InfluxDB(sink="s", database="ahead", measurement="m", tags=("t",), time="at")
    types: dict[str, Any] = {"t": pa.string(), "at": pa.timestamp("us", "UTC"), "v": pa.int64()}
    chance = random.Random(7)
    steps = histories(chance, 40, 4)
    writer = InfluxWriter(influxdb_server.url, output)
    try:
        for events in readings(chance, steps):
            rows = [
                influxdb.row(e.version, deleted=e.tombstone, at=AT, t=e.key, v=None if e.tombstone else e.offset)
                for e in events
            ]
            writer.write({output.name: placed(influxdb.documents(*rows, **types), events)}, NO_COMMIT)
        found = influxdb.asked(influxdb_server, "SELECT v FROM m GROUP BY t", "ahead").get("series", [])
    finally:
        writer.close()
    assert {one["tags"]["t"]: one["values"][0][1] for one in found} == left(steps)


def test_a_document_that_somebody_deletes_comes_back_with_its_record(search: Server) -> None:
    """Elasticsearch remembers the version of that delete, which no sink has made."""
    search.clear()
    row, give = elasticsearch.row, elasticsearch.give
    writer = IndexWriter(search.url, elasticsearch.output("tests"))
    give(writer, row("a", 5, {"n": 5}), row("b", 5, {"n": 5}), row("c", 5, {"n": 5}), row("c", 6))
    for key in "ab":
        search.call("DELETE", f"tests/_doc/{key}")
    assert give(writer, row("a", 5, {"n": 5}), row("b", 4, {"n": 4}), row("c", 5, {"n": 5})) == 1
    assert search.documents("tests") == {"a": {"n": 5}}
    assert writer.counters.conflicts == 2
    assert give(writer, row("a", 6, {"n": 6}), row("b", 5, {"n": 5})) == 2
    assert search.documents("tests") == {"a": {"n": 6}, "b": {"n": 5}}
    writer.close()


def refused(rows: Mapping[str, Mapping[int, str]]) -> list[int]:
    [found] = rows.values()
    return sorted(found)
