"""The grammar of captures: what is read from a file, and where a file is refused."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.errors import DeclarationError
from penstock.model.avro import Avro
from penstock.model.capture import load, parse
from penstock.model.json_schema import JsonSchema
from penstock.model.protobuf import Protobuf
from penstock.model.registry_schema import RegistrySchema
from tests.support.avro_cases import field, record, schema_text

FULL = """CAPTURE INTO my-accounts.v1 PARTITIONS 4
FROM mysql demo
KEY (id, part)
CURSOR updated_at   -- grows
DELETED WHEN (deleted = 1 AND CAST(id AS CHAR) <> 'AS')
EVERY 500 MILLISECONDS
OVERLAP 1 MINUTE
DELAY 3 SECONDS
RECONCILE EVERY 6 HOURS RATE 500
LARGEST 64 KB
AS
SELECT id, part, name, deleted, updated_at FROM accounts WHERE kind <> 'x'
"""
LEAST = "CAPTURE INTO accounts FROM sqlite demo KEY id CURSOR at AS SELECT * FROM accounts"
PATH = Path("accounts.sql")


def test_every_clause_is_read() -> None:
    found = parse(FULL, PATH)
    assert (found.name, found.topic.name, found.topic.partitions) == ("accounts", "my-accounts.v1", 4)
    assert found.topic.compacted
    assert (found.dialect, found.connection, found.key, found.cursor) == ("mysql", "demo", ("id", "part"), "updated_at")
    assert found.deleted is not None
    assert found.deleted.sql("mysql") == "(deleted = 1 AND CAST(id AS CHAR) <> 'AS')"
    assert (found.every, found.overlap) == (timedelta(milliseconds=500), timedelta(minutes=1))
    assert (found.delay, found.reconcile) == (timedelta(seconds=3), timedelta(hours=6))
    assert (found.reconcile_rate, found.max_removed_percent, found.max_record_bytes) == (500, 20, 64 * 1024)
    assert parse(FULL.replace("RATE 500", "RATE 500 REMOVES 30 PERCENT"), PATH).max_removed_percent == 30
    assert found.topic.settings()["max.message.bytes"] == "65536"
    assert found.columns == ["id", "part", "name", "deleted", "updated_at"]


def test_what_is_left_out_has_a_default() -> None:
    found = parse(LEAST, PATH)
    assert (found.topic.partitions, found.deleted, found.columns) == (1, None, None)
    assert (found.reconcile, found.reconcile_rate, found.max_record_bytes) == (
        timedelta(days=1),
        10_000,
        16 * 1024 * 1024,
    )
    assert (found.every, found.overlap, found.delay) == (
        timedelta(seconds=1), timedelta(seconds=10), timedelta(seconds=5),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("EVERY 500 MILLISECONDS", "EVERY 5 SECONDS", True),
        ("RECONCILE EVERY 6 HOURS RATE 500", "RECONCILE NEVER", True),
        ("LARGEST 64 KB", "LARGEST 1 MB", True),
        ("SELECT id,   part", "SELECT id, part", True),
        ("-- grows", "", True),
        ("name,", "name AS title,", False),
        ("kind <> 'x'", "kind <> 'y'", False),
        ("KEY (id, part)", "KEY (id)", False),
        ("CURSOR updated_at", "CURSOR part", False),
        ("deleted = 1", "deleted = 2", False),
        ("my-accounts.v1", "my-accounts.v2", False),
        ("mysql demo", "mysql other", False),
    ],
)
def test_the_fingerprint_changes_with_what_decides_the_rows(before: str, after: str, same: bool) -> None:
    edited = parse(FULL.replace(before, after), PATH)
    assert (edited.fingerprint == parse(FULL, PATH).fingerprint) == same


@pytest.mark.parametrize(
    ("before", "after", "place", "what"),
    [
        ("CAPTURE INTO", "INTO", "1:1", "this is no clause of a capture; got: INTO"),
        ("my-accounts", "my/accounts", "1:16", "this is no clause of a capture; got: /"),
        ("PARTITIONS 4", "PARTITIONS four", "1:40", "the number of partitions is no whole number"),
        ("mysql demo", "oracle demo", "2:6", "the engine is not known; got: oracle"),
        ("KEY (id, part)\n", "", "10:1", "KEY is missing"),
        ("KEY (id, part)", "KEY (id, parts)", "3:1", "KEY names a column that is not selected; got: parts"),
        ("KEY (id, part)", "KEY (id part)", "3:9", "expected ,; got: part"),
        ("CURSOR updated_at", "CURSOR at", "4:1", "CURSOR names a column that is not selected; got: at"),
        ("CURSOR", "CURSER", "4:1", "this is no clause of a capture; got: CURSER"),
        ("(deleted = 1 AND", "(gone = 1 AND", "5:1", "DELETED names a column that is not selected; got: gone"),
        ("(deleted = 1 AND", "(deleted = = 1 AND", "5:25", "Required keyword"),
        ("(deleted = 1 AND CAST(id AS CHAR) <> 'AS')", "()", "5:14", "DELETED WHEN has no condition"),
        ("(deleted = 1 AND CAST(id AS CHAR) <> 'AS')", "deleted = 1", "5:14", "expected (; got: deleted"),
        ("500 MILLISECONDS", "0 SECONDS", "6:7", "a duration is no whole number above 0"),
        ("500 MILLISECONDS", "1 FORTNIGHT", "6:9", "this is no unit of time; got: FORTNIGHT"),
        ("500 MILLISECONDS", "365001 DAYS", "6:14", "the duration is too long; got: 365001"),
        ("OVERLAP 1 MINUTE", "EVERY 1 MINUTE", "7:1", "a clause is repeated; got: EVERY"),
        ("EVERY 6 HOURS RATE 500", "SELDOM", "9:11", "expected EVERY; got: SELDOM"),
        ("RATE 500", "REMOVES 30", "10:1", "expected PERCENT; got: "),
        ("RATE 500", "RATE 0", "9:30", "the rows a second is no whole number above 0; got: 0"),
        ("64 KB", "64 GB", "10:12", "this is no unit of size; got: GB"),
        ("64 KB", "33 MB", "10:12", "this is larger than Kafka's clients take; got: 33 MB"),
        ("SELECT", "SELECT DISTINCT", "12:8", "a capture cannot page through DISTINCT"),
        ("SELECT", "WITH q AS (SELECT 1) SELECT", "12:1", "a capture cannot page through WITH"),
        ("SELECT", "UPDATE a SET b = 1; SELECT", "12:1", "AS must be followed by one SELECT; got: several statements"),
        ("WHERE kind <> 'x'", "GROUP BY id", "12:58", "a capture cannot page through GROUP BY"),
        ("WHERE kind <> 'x'", "ORDER BY id", "12:58", "a capture cannot page through ORDER BY"),
        ("WHERE kind <> 'x'", "LIMIT 5", "12:58", "a capture cannot page through LIMIT"),
        ("WHERE kind <> 'x'", "FOR UPDATE", "12:58", "a capture cannot page through FOR UPDATE"),
        ("WHERE kind <> 'x'", "UNION SELECT 1, 2, 3, 4, 5", "12:1", "AS must be followed by one SELECT; got: UNION"),
        ("kind <> 'x'", "kind = ?", "12:1", "a capture has no parameters"),
        ("kind <> 'x'", "at < NOW()", "12:69", "this says another thing at each poll; got: NOW()"),
        ("name,", "UUID() AS name,", "12:18", "this says another thing at each poll; got: UUID()"),
        ("name,", "UTC_TIMESTAMP() AS name,", "12:18", "this says another thing at each poll; got: UTC_TIMESTAMP()"),
        ("name,", "UNIX_TIMESTAMP() AS name,", "12:18", "this says another thing at each poll"),
        ("name,", "CAST('now' AS DATETIME) AS name,", "12:23", "this says another thing at each poll"),
        ("deleted = 1", "updated_at < NOW()", "5:28", "this says another thing at each poll; got: NOW()"),
        ("name,", "(SELECT SUM(b.n) FROM b) AS name,", "12:26", "a capture has no aggregates; got: SUM(b.n)"),
        ("name,", "(SELECT MAX(n) FROM b) AS name,", "12:26", "a capture has no aggregates; got: MAX(n)"),
        ("name,", "(SELECT MAX(accounts.id) FROM b) AS name,", "12:26", "a capture has no aggregates; got: MAX(acc"),
        ("name,", "(SELECT GROUP_CONCAT(b.n) FROM b) AS name,", "12:39", "a capture has no aggregates; got: GROUP_CON"),
        ("FROM accounts", "FROM (SELECT MAX(b.id) AS id FROM b) AS q", "12:57", "a capture has no aggregates"),
        ("name,", "COUNT(*) AS name,", "12:18", "a capture has no aggregates; got: COUNT(*)"),
        ("name,", "name, name,", "12:1", "columns without a name, or with one name"),
        ("name,", "1 + 1,", "12:1", "columns without a name, or with one name"),
        ("FROM accounts", "FROM (SELECT * FROM accounts LIMIT 9) AS q", "12:73", "cannot page through LIMIT"),
        ("FROM accounts", "FROM (SELECT DISTINCT * FROM accounts) AS q", "12:57", "cannot page through DISTINCT"),
        (
            "FROM accounts",
            "FROM (SELECT * FROM a UNION ALL SELECT * FROM b) AS q",
            "12:66",
            "cannot page through UNION",
        ),
        ("FROM accounts", "FROM a JOIN (SELECT id FROM b GROUP BY id) AS q", "12:74", "cannot page through GROUP BY"),
        ("FROM accounts", "FROM (SELECT * FROM (SELECT * FROM a LIMIT 1) AS p) AS q", "12:81", "page through LIMIT"),
        ("FROM accounts", "FROM (WITH c AS (SELECT 1) SELECT * FROM c) AS q", "12:50", "page through WITH"),
        ("kind <> 'x'", "id IN (SELECT id FROM b LIMIT 5)", "12:88", "which rows LIMIT takes is not said; got: LIMIT"),
        ("name,", "RANDOM_BYTES(8) AS name,", "12:18", "another thing at each poll; got: RANDOM_BYTES(...)"),
        ("name,", "SYS_GUID() AS name,", "12:18", "this says another thing at each poll; got: SYS_GUID()"),
        ("name,", "ROWNUM() AS name,", "12:18", "this says another thing at each poll; got: ROWNUM()"),
        ("name,", "CURRENT_USER AS name,", "12:18", "this says another thing at each poll; got: CURRENT_USER"),
        (
            "SELECT id",
            "SELECT STRAIGHT_JOIN SQL_NO_CACHE id",
            "12:22",
            "a SELECT that is sent alone; got: SQL_NO",
        ),
        ("name,", "@x AS name,", "12:18", "a variable is another in each session"),
        ("name,", "@@sql_mode AS name,", "12:18", "a variable is another in each session"),
        ("kind <> 'x'", "kind /*! LIMIT 5 */ <> 'x'", "12:69", "the server would run this comment"),
        ("my-accounts.v1", "penstock.captures", "1:14", "this topic is reserved; got: penstock.captures"),
        ("my-accounts.v1", '"my accounts"', "1:1", "Kafka refuses the name of a topic"),
        ("kind <> 'x'", "kind <> 'it\\'s", "12:72", "a quotation or comment is not closed; got: 'it"),
        ("kind <> 'x'", "kind /* <> 'x'", "12:69", "a quotation or comment is not closed; got: /* <>"),
        ("FROM accounts", "FROM", "12:49", "Expected table name"),
        ("SELECT id, part, name, deleted, updated_at FROM accounts WHERE kind <> 'x'\n", "", "11:1", "no SELECT"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(before: str, after: str, place: str, what: str) -> None:
    assert before in FULL
    with pytest.raises(DeclarationError) as refused:
        parse(FULL.replace(before, after, 1), PATH)
    assert str(refused.value).startswith(f"accounts.sql:{place}: capture accounts: ")
    assert what in str(refused.value)


@pytest.mark.parametrize(
    ("dialect", "said", "got"),
    [
        ("sqlite", "hex(randomblob(4))", "randomblob(...)"),
        ("sqlite", "strftime('%s')", "strftime(...)"),
        ("sqlite", "date()", "date()"),
        ("sqlite", "datetime('now')", "'now'"),
        ("sqlite", "datetime(at, 'localtime')", "'localtime'"),
        ("sqlite", "strftime('%H', at, 'unixepoch', 'LocalTime')", "'LocalTime'"),
        ("sqlite", "lower(julianday(at, 'utc'))", "'utc'"),
        ("postgres", "user", "user"),
        ("postgres", "session_user", "session_user"),
        ("postgres", "'today'::date", "'today'"),
        ("postgres", "gen_random_uuid()", "gen_random_uuid()"),
        ("postgres", "pg_catalog.now()", "now()"),
        ("postgres", "at < 'tomorrow'", "'tomorrow'"),
        ("postgres", "unnest(tags)", "UNNEST(tags)"),
        ("mysql", "NEXTVAL(s)", "NEXTVAL(...)"),
    ],
)
def test_what_says_another_thing_each_time_is_refused(dialect: str, said: str, got: str) -> None:
    with pytest.raises(DeclarationError, match=r"^accounts\.sql:1:\d+: capture accounts: this ") as refused:
        parse(f"CAPTURE INTO a FROM {dialect} x KEY id CURSOR at AS SELECT id, at, {said} AS x FROM a", PATH)
    assert refused.value.got == got


@pytest.mark.parametrize(
    ("select", "clause"),
    [
        ("id, CAST(xmin AS text) AS at", "CURSOR"),
        ("id, a.XMIN AS at", "CURSOR"),
        ("ctid AS id, at", "KEY"),
    ],
)
def test_what_postgresql_keeps_of_a_row_for_itself_pages_nothing(select: str, clause: str) -> None:
    text = f"CAPTURE INTO a FROM postgres x KEY (id) CURSOR at AS SELECT {select} FROM a"
    with pytest.raises(DeclarationError) as refused:
        parse(text, PATH)
    assert str(refused.value).startswith(
        f"accounts.sql:1:{text.index(clause) + 1}: capture accounts: {clause} is made of what PostgreSQL"
    )
    # Others have columns of these names.
    assert parse(text.replace("postgres", "sqlite"), PATH)


def test_what_postgresql_keeps_of_a_row_may_be_a_value() -> None:
    assert parse("CAPTURE INTO a FROM postgres x KEY (id) CURSOR at AS SELECT id, at, xmin AS x FROM a", PATH)


@pytest.mark.parametrize(
    ("dialect", "said"),
    [
        ("sqlite", "date(at) AS day, strftime('%Y', at) AS year, coalesce(zone, 'utc') AS zone, 'localtime' AS text"),
        ("mysql", "UNIX_TIMESTAMP(at) AS seconds, user AS user, 'now' AS text, DATE(at) AS d"),
        ("postgres", "\"user\", a.user AS who, CAST('now' AS text) AS text, age(at, at) AS age, tags ? 'x' AS x"),
        ("mysql", "EXISTS (SELECT 1 FROM b LIMIT 1) AS b, (SELECT c FROM b ORDER BY c LIMIT 1) AS c"),
        ("mysql", "5--3 AS eight, 'it\\'s' AS its # a comment's quote"),
        ("postgres", "1 AS one /* a /* nested */ comment's quote */, $$it's$$ AS its, E'it\\'s' AS it"),
        ("mysql", '`we``ird` AS `wei"rd` -- the end'),
    ],
)
def test_what_says_the_same_each_time_is_taken_as_it_is_written(dialect: str, said: str) -> None:
    text = f"SELECT id, at, {said}\nFROM accounts a"
    found = parse(f"CAPTURE INTO a FROM {dialect} x KEY id CURSOR at AS\n{text} ; -- end", PATH)
    assert found.sql == text


def test_names_may_be_quoted_as_the_engine_does() -> None:
    for dialect, name in {"mysql": "`a b`", "postgres": '"a b"', "sqlite": '"a b"'}.items():
        text = f'CAPTURE INTO "my-a" FROM {dialect} x KEY ({name}) CURSOR at AS SELECT {name}, at FROM a'
        found = parse(text, PATH)
        assert (found.topic.name, found.key) == ("my-a", ("a b",))


@pytest.mark.parametrize("dialect", ["mysql", "postgres", "sqlite"])
def test_names_may_have_numbers_with_letters(dialect: str) -> None:
    found = parse(f"CAPTURE INTO my-7d.1s FROM {dialect} demo-1d KEY (id) CURSOR at AS SELECT id, at FROM a", PATH)
    assert (found.topic.name, found.connection) == ("my-7d.1s", "demo-1d")


@pytest.mark.parametrize(("text", "what"), [("", "ends too soon"), (LEAST + " WHERE a = 'x", "is not closed")])
def test_a_file_that_ends_too_soon_is_refused(text: str, what: str) -> None:
    with pytest.raises(DeclarationError, match=what):
        parse(text, PATH)


def test_a_folder_gives_its_captures_by_name(tmp_path: Path) -> None:
    (tmp_path / "accounts.sql").write_text(LEAST)
    (tmp_path / "notes.txt").write_text("not SQL")
    assert list(load(tmp_path)) == ["accounts"]
    assert load(tmp_path / "nowhere") == {}


def test_a_condition_names_the_columns_of_the_select_and_no_table() -> None:
    text = "SELECT id, at, gone FROM shop.a AS b"
    said = "b.gone = 'b.gone' OR shop.b.`gone` > 1 AND EXISTS (SELECT 1 FROM c WHERE c.id = 1)"
    found = parse(f"CAPTURE INTO a FROM mysql x KEY id CURSOR at DELETED WHEN ({said}) AS {text}", PATH)
    assert found.deleted_sql == "(gone = 'b.gone' OR `gone` > 1 AND EXISTS (SELECT 1 FROM c WHERE c.id = 1))"


def test_what_sqlglot_writes_alike_has_another_fingerprint() -> None:
    given = [LEAST.replace("*", f"id, at, {literal} AS x") for literal in ("0x41", "x'41'", "65")]
    assert len({parse(text.replace("sqlite", "mysql"), PATH).fingerprint for text in given}) == 3


def test_a_reconcile_may_be_declined() -> None:
    assert parse(LEAST.replace(" AS SELECT", " RECONCILE NEVER AS SELECT"), PATH).reconcile is None


AVRO = LEAST.replace("accounts FROM", "accounts PARTITIONS 2 AS AVRO 'accounts.avsc' SUBJECT sales FROM")


def test_the_topic_takes_the_schema_of_a_file_beside_it(tmp_path: Path) -> None:
    text = schema_text([field("id", "long"), field("at", "string")])
    (tmp_path / "accounts.avsc").write_text(text)
    found = parse(AVRO, tmp_path / "accounts.sql")
    assert (found.topic.schema, found.topic.partitions) == (Avro(text, "sales"), 2)
    assert parse(AVRO.replace("SUBJECT sales", ""), tmp_path / "accounts.sql").topic.schema == Avro(text)
    assert parse(AVRO.replace("*", "id, at"), tmp_path / "accounts.sql").columns == ["id", "at"]


@pytest.mark.parametrize(
    ("fields", "select", "message"),
    [
        ([field("id", "long")], "id, at", r"accounts.sql:1:1: .* has not the columns .*; got: column at is no field"),
        ([field("id", "long"), field("at", "string"), field("x", "int")], "id, at", "field x is no column"),
        (
            [field("at", record("Inner", field("a", "int")))],
            "*",
            "as this type; got: at: struct<a:int>",
        ),
        (
            [field("at", {"type": "array", "items": record("Inner", field("a", "int"))})],
            "*",
            "as this type; got: at: array<struct<a:int>>",
        ),
        (None, "*", "Avro: a schema cannot be read"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(
    tmp_path: Path, fields: list[dict[str, object]] | None, select: str, message: str
) -> None:
    if fields:
        (tmp_path / "accounts.avsc").write_text(schema_text(fields))
    with pytest.raises(DeclarationError, match=message):
        parse(AVRO.replace("*", select), tmp_path / "accounts.sql")


def test_the_file_of_a_schema_is_a_string() -> None:
    with pytest.raises(DeclarationError, match=r"accounts.sql:1:44: .*expected the file of the schema"):
        parse(AVRO.replace("'accounts.avsc'", "accounts"), PATH)


PROTO = 'syntax = "proto3"; package p; message A { int32 x = 1; } message Row { int64 id = 1; string at = 2; }'
JSON_TEXT = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "at": {"type": "string"}}})


@pytest.mark.parametrize(
    ("clause", "file", "schema"),
    [
        ("AS JSON SCHEMA 'accounts.json'", JSON_TEXT, JsonSchema(JSON_TEXT)),
        ("AS JSON SCHEMA 'accounts.json' SUBJECT sales", JSON_TEXT, JsonSchema(JSON_TEXT, "sales")),
        ("AS PROTOBUF 'accounts.proto' MESSAGE Row", PROTO, Protobuf(PROTO, message="Row")),
        ("as protobuf 'accounts.proto' SUBJECT sales MESSAGE p.Row", PROTO, Protobuf(PROTO, "sales", "p.Row")),
        (
            "AS PROTOBUF 'accounts.proto' SUBJECT ':.eu:sales' MESSAGE 'p.Row'",
            PROTO,
            Protobuf(PROTO, ":.eu:sales", "p.Row"),
        ),
    ],
)
def test_the_schema_may_be_of_any_format(tmp_path: Path, clause: str, file: str, schema: RegistrySchema) -> None:
    (tmp_path / clause.split("'")[1]).write_text(file)
    text = LEAST.replace("accounts FROM", f"accounts {clause} FROM").replace("*", "id, at")
    assert parse(text, tmp_path / "accounts.sql").topic.schema == schema


@pytest.mark.parametrize(
    ("clause", "message"),
    [
        ("AS PROTOBUF 'accounts.proto'", "has not the columns .*; got: column id is no field"),
        (
            "AS PROTOBUF 'accounts.proto' MESSAGE None",
            "has no such message; got: None; hint: take one of",
        ),
        ("AS PROTOBUF 'other.proto'", "Protobuf: a schema cannot be read"),
        (
            "AS PROTOBUF accounts",
            "expected the file .*; got: accounts; hint: write AS PROTOBUF 'accounts.proto'",
        ),
        ("AS JSON 'accounts.json'", "expected SCHEMA"),
        ("AS JSON SCHEMA 'accounts.proto' MESSAGE Row", "this is no clause of a capture; got: MESSAGE"),
        ("AS AVRO 'accounts.proto'", "an Avro schema is no JSON"),
    ],
)
def test_a_format_that_does_not_fit_is_refused(tmp_path: Path, clause: str, message: str) -> None:
    (tmp_path / "accounts.proto").write_text(PROTO)
    text = LEAST.replace("accounts FROM", f"accounts {clause} FROM").replace("*", "id, at")
    with pytest.raises(DeclarationError, match=rf"accounts.sql:1:\d+: .*{message}"):
        parse(text, tmp_path / "accounts.sql")
