"""The grammar of sinks: what is read from a file, what Spark is given of it, and where a file is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from penstock.errors import DeclarationError
from penstock.model.sink import Sink, SinkRead
from penstock.model.sql.sink_file import parse

PATH = Path("tests.sql")
FULL = """UPSERT INTO elasticsearch.tests-v1.2
READ tests AS JSON (id BIGINT NOT NULL, at STRING) EVENT TIME to_timestamp(at)
READ old.tests-2 SHARE 2 OF 3 AS TEXT
KEY (id, name)
VERSION (revision)
SUFFIX DAY (at)
EXPIRE AFTER 30 DAYS
TOMBSTONES MARK (f(record.key, ','), record.offset)
DELETED WHEN (deleted OR name = ')')   -- gone
BATCH 500 EVERY 2 SECONDS
PARALLEL 3
DEAD LETTERS INTO tests-refused
APP search
FIELDS (name KEYWORD, `a b` '{"type": "date"}')
AS
SELECT id, name FROM tests UNION ALL
SELECT 1, text FROM `old.tests-2`;
"""
LEAST = "UPSERT INTO mongodb.shop.orders READ orders AS JSON (id BIGINT, xs ARRAY<STRING>) AS SELECT * FROM orders"
INFLUX = """UPSERT INTO influxdb.penstock READ metrics AS BINARY MEASUREMENT (topic) TAGS (host, rack) TIME at
FIELDS (valid, invalid INTEGER) VERSION NONE TOMBSTONES IGNORE AS SELECT record.key AS topic FROM metrics"""


def select(text: str) -> str:
    """What Spark is given of a SELECT over topic t."""
    return parse(f"UPSERT INTO mongodb.d.c READ t AS TEXT AS {text}", PATH).rewritten.sql


def test_every_clause_is_read() -> None:
    found = parse(FULL, PATH)
    assert (found.name, found.verb, found.store, found.target) == ("tests", "upsert", "elasticsearch", ("tests-v1.2",))
    json = SinkRead("tests", "json", "id BIGINT NOT NULL, at STRING", "to_timestamp(at)")
    assert found.reads == (json, SinkRead("old.tests-2", "text", share=(2, 3)))
    assert (found.key, found.version, found.suffix) == (("id", "name"), "revision", ("day", "at"))
    assert (found.expire, found.tombstones) == (timedelta(days=30), "mark")
    assert found.tombstone_key == ("f(record.key, ',')", "record.offset")
    assert found.deleted_sql == "deleted OR name = ')'"
    assert (found.max_records, found.every, found.parallel) == (500, timedelta(seconds=2), 3)
    assert (found.dead_letters, found.app) == ("tests-refused", "search")
    assert found.fields == {"name": "keyword", "a b": '{"type": "date"}'}
    assert found.sql == "SELECT id, name FROM tests UNION ALL\nSELECT 1, text FROM `old.tests-2`"
    assert (found.at("DELETED"), found.at("SELECT")) == ("tests.sql:9:1", "tests.sql:16:1")


def test_what_is_left_out_has_a_default() -> None:
    found = parse(LEAST, PATH)
    assert (found.target, found.app, found.key, found.version) == (("shop", "orders"), "sinks", (), "")
    assert (found.tombstones, found.max_records, found.every, found.parallel) == (
        "delete",
        50_000,
        timedelta(seconds=1),
        2,
    )
    assert parse(LEAST.replace("UPSERT", "INSERT"), PATH).tombstones == "ignore"


def test_a_point_of_influxdb_is_its_measurement_tags_and_time() -> None:
    found = parse(INFLUX, PATH)
    assert (found.target, found.identity) == (("penstock",), ("topic", "host", "rack", "at"))
    assert (found.fields, found.version) == ({"valid": "", "invalid": "integer"}, "none")
    named = parse(INFLUX.replace("penstock", "penstock.a.b").replace("MEASUREMENT (topic)", ""), PATH)
    assert named.target == ("penstock", "a.b")


def test_a_collection_has_as_many_indexes_as_are_said() -> None:
    found = parse(
        LEAST.replace("READ", "INDEX (id) INDEX id, UNIQUE INDEX (id, xs) READ").replace("id, U", "id U"), PATH
    )
    assert (found.indexes, found.unique_indexes) == ((("id",), ("id",)), (("id", "xs"),))


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ("SELECT text FROM t", "SELECT text , record, _way FROM t"),
        ("SELECT * FROM t", "SELECT * EXCEPT (record, _way) , record, _way FROM t"),
        ("SELECT q.* FROM t q", "SELECT q.* EXCEPT (record, _way) , record, _way FROM t q"),
        ("SELECT t.*, s.* FROM t", "SELECT t.* EXCEPT (record, _way), s.* , record, _way FROM t"),
        ("SELECT * EXCEPT (a) FROM t", "SELECT * EXCEPT (a, record, _way) , record, _way FROM t"),
        ("SELECT * EXCEPT (a, record) FROM t", "SELECT * EXCEPT (a, record, _way) , record, _way FROM t"),
        ("SELECT a * 2, count FROM t", "SELECT a * 2, count , record, _way FROM t"),
        ("SELECT a -- FROM\nFROM t", "SELECT a -- FROM\n, record, _way FROM t"),
        ("SELECT a IS NOT DISTINCT FROM b FROM t", "SELECT a IS NOT DISTINCT FROM b , record, _way FROM t"),
        ("SELECT extract(DAY FROM a), 'FROM' FROM t", "SELECT extract(DAY FROM a), 'FROM' , record, _way FROM t"),
        ("SELECT a.from, `from` FROM t", "SELECT a.from, `from` , record, _way FROM t"),
        (
            "SELECT b FROM (SELECT a AS b FROM t) WHERE b",
            "SELECT b , record, _way FROM (SELECT a AS b , record, _way FROM t) WHERE b",
        ),
        (
            "WITH q AS (SELECT a FROM t) SELECT a FROM q",
            "WITH q AS (SELECT a , record, _way FROM t) SELECT a , record, _way FROM q",
        ),
        (
            "SELECT a FROM t UNION ALL (SELECT b FROM t)",
            (
                "SELECT a , record, concat(_way, '1.') AS _way FROM t "
                "UNION ALL (SELECT b , record, concat(_way, '2.') AS _way FROM t)"
            ),
        ),
    ],
)
def test_each_select_keeps_the_record(written: str, given: str) -> None:
    assert select(written) == given


def test_a_place_in_what_spark_is_given_is_that_in_the_file() -> None:
    text = "UPSERT INTO mongodb.d.c READ t AS TEXT\nAS\n  SELECT *, a FROM (\n    SELECT b FROM t\n  ) WHERE c"
    found = parse(text, PATH)
    for word, place in {", a": "3:11", "SELECT b": "4:5", "FROM t": "4:14", "c": "5:11"}.items():
        assert found.select_location(found.rewritten.sql.rindex(word)) == f"tests.sql:{place}"


@pytest.mark.parametrize(
    ("before", "after", "place", "what"),
    [
        ("UPSERT INTO", "WRITE INTO", "1:1", "this is no clause of a sink; got: WRITE"),
        ("UPSERT INTO elasticsearch.tests-v1.2\n", "", "1:1", "a sink begins with UPSERT INTO or INSERT INTO"),
        ("elasticsearch", "opensearch", "1:13", "the store is not known; got: opensearch"),
        (".tests-v1.2", "", "1:13", "the target is not complete; got: elasticsearch"),
        ("READ tests", "READ old.tests-2", "3:6", "a topic is read twice; got: old.tests-2"),
        ("AS TEXT", "AS AVRO", "3:34", "the format of its values is not known; got: AVRO"),
        ("BIGINT NOT NULL", "BIGINTT", "2:20", "the schema of topic tests is no Spark DDL"),
        ("at STRING)", "record STRING)", "2:20", "a field has the name of the record itself"),
        ("EVENT TIME to_timestamp(at)\n", "EVENT TIME AS\n", "2:63", "expected the event time; got: AS"),
        ("KEY (id, name)", "KEY (id, ID)", "4:5", "KEY names a column twice"),
        ("KEY (id, name)", "KEYS (id)", "4:1", "this is no clause of a sink; got: KEYS"),
        ("KEY (id, name)", "KEY (id, name) KEY (id)", "4:16", "a clause is repeated; got: KEY"),
        ("KEY (id, name)", "KEY (id)", "8:1", "these do not stand for the columns of the id; got: 2 for id"),
        ("KEY (id, name)\n", "", "7:1", "these do not stand for the columns of the id"),
        ("VERSION (revision)", "VERSION (a, b)", "5:9", "VERSION has one column"),
        ("VERSION (revision)", "VERSION NONE", "5:9", "elasticsearch needs versions"),
        ("SUFFIX DAY", "SUFFIX WEEK", "6:8", "the length of a part is not known; got: WEEK"),
        ("AFTER 30 DAYS", "30 DAYS", "7:8", "expected AFTER; got: 30"),
        ("AFTER 30 DAYS", "AFTER 1 FORTNIGHT", "7:16", "this is no unit of time; got: FORTNIGHT"),
        ("TOMBSTONES MARK", "TOMBSTONES KEEP", "8:12", "what tombstones do is not known; got: KEEP"),
        ("TOMBSTONES MARK", "TOMBSTONES IGNORE", "8:1", "these do not stand for the columns of the id"),
        ("(deleted OR name = ')')", "()", "9:14", "in the parentheses stands a condition"),
        ("SHARE 2 OF 3", "SHARE 4 OF 3", "3:29", "there is no such share; got: 4 OF 3"),
        ("SHARE 2 OF 3", "SHARE 0 OF 3", "3:24", "which share it is is no whole number above 0"),
        ("SHARE 2 OF 3", "SHARE 2", "3:26", "expected OF; got: AS"),
        ("BATCH 500", "BATCH 0", "10:7", "the number of BATCH is no whole number above 0"),
        ("BATCH 500", "BATCH 1000001", "10:7", "BATCH is too much; got: 1000001"),
        ("PARALLEL 3", "PARALLEL 33", "11:10", "PARALLEL is too much; got: 33"),
        ("APP search", "TAGS (a)", "13:1", "elasticsearch has no TAGS; got: TAGS"),
        ("APP search", "APP search UNIQUE INDEX (a)", "13:12", "elasticsearch has no UNIQUE"),
        ("name KEYWORD", "name", "14:9", "this does not say what a field is; got: name"),
        ("UPSERT", "INSERT", "4:1", "INSERT has no KEY: each record makes documents of its own"),
        ("FROM tests UNION", "FROM others UNION", "2:6", "the SELECT does not read this topic; got: tests"),
        ("`old.tests-2`;", "`old.tests-2;", "17:21", "a quotation or comment is not closed"),
        ("`old.tests-2`;", "`old.tests-2`; SELECT 1", "17:34", "AS must be followed by one SELECT; got: ;"),
        ("UNION ALL", "UNION", "16:28", "no UNION that drops what is there twice"),
        ("SELECT id, name FROM", "FROM", "16:1", "AS must be followed by a SELECT; got: FROM"),
        ("SELECT 1, text FROM `old.tests-2`", "SELECT 1, `old.tests-2`", "17:1", "this SELECT reads no topic"),
        ("SELECT id", "SELECT DISTINCT id", "16:8", "a sink works on one record at a time: no DISTINCT"),
        ("FROM tests UNION", "FROM tests GROUP BY id UNION", "16:28", "no aggregates; got: GROUP BY"),
        ("FROM tests UNION", "FROM tests JOIN x UNION", "16:28", "no joins; got: JOIN"),
        ("FROM tests UNION", "FROM tests ORDER BY id UNION", "16:28", "no order; got: ORDER BY"),
        ("FROM tests UNION", "FROM tests LIMIT 5 UNION", "16:28", "none of them is the last; got: LIMIT"),
        ("FROM tests UNION", "FROM tests WHERE id IN (SELECT 1) UNION", "16:41", "a SELECT stands in FROM alone"),
        ("SELECT id", "SELECT max(id) OVER (ORDER BY id)", "16:16", "no windows; got: OVER"),
        ("SELECT id", "SELECT now() AS id", "16:8", "this says another thing each time"),
        ("SELECT id", "SELECT CURRENT_DATE AS id", "16:8", "this says another thing each time"),
        ("SELECT id", "SELECT uuid() AS id", "16:8", "this says another thing each time"),
        ("SELECT id, name FROM", "SELECT id, FROM", "16:12", "before FROM stands no column"),
    ],
)
def test_a_fault_is_said_with_its_place(before: str, after: str, place: str, what: str) -> None:
    assert FULL.count(before) == 1
    with pytest.raises(DeclarationError) as e:
        parse(FULL.replace(before, after), PATH)
    assert str(e.value).startswith(f"tests.sql:{place}: "), e.value
    assert what in str(e.value)
    assert e.value.hint


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the file ends too soon"),
        ("UPSERT INTO mongodb.shop.orders", "the file ends too soon"),
        ("UPSERT INTO mongodb.shop.orders AS SELECT 1", "READ is missing"),
        (LEAST.replace("SELECT * FROM orders", ""), "there is no SELECT"),
        (LEAST.replace("mongodb.shop", "mongodb"), "the target is not complete"),
        (
            LEAST.replace("SELECT", "WITH q AS (SELECT * FROM orders) INSERT INTO x SELECT"),
            "AS must be followed by a SELECT",
        ),
        (LEAST.replace("SELECT", "WITH q(a) AS (SELECT * FROM orders) SELECT"), "names of columns behind a name"),
        (LEAST.replace("SELECT", "CREATE TABLE x AS SELECT"), "AS must be followed by a SELECT; got: CREATE"),
        (INFLUX.replace("MEASUREMENT (topic)", ""), "a measurement is named once"),
        (INFLUX.replace("influxdb.penstock", "influxdb.penstock.m"), "a measurement is named once"),
        (INFLUX.replace("UPSERT", "INSERT").replace("VERSION NONE TOMBSTONES IGNORE", ""), "a point has no id but"),
    ],
)
def test_what_is_lacking_is_said(text: str, what: str) -> None:
    with pytest.raises(DeclarationError, match=f"^tests.sql:[0-9]+:[0-9]+: {what}"):
        parse(text, PATH)


def test_a_sink_is_data() -> None:
    """It is compared, and shown in a log."""
    assert parse(FULL, PATH) == parse(FULL, PATH)
    assert isinstance(parse(FULL, PATH), Sink)
