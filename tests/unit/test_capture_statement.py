"""The grammar of captures: what is read from a file, and where a file is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from penstock.declare.capture import load, parse
from penstock.errors import DeclarationError

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
    assert (found.rate, found.largest) == (500, 64 * 1024)
    assert found.topic.settings()["max.message.bytes"] == "65536"
    assert found.columns == ["id", "part", "name", "deleted", "updated_at"]


def test_what_is_left_out_has_a_default() -> None:
    found = parse(LEAST, PATH)
    assert (found.topic.partitions, found.deleted, found.columns) == (1, None, None)
    assert (found.reconcile, found.rate, found.largest) == (timedelta(days=1), 10_000, 16 * 1024 * 1024)
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
        ("KEY (id, part)", "KEY (id part)", "3:9", "here stands ,; got: part"),
        ("CURSOR updated_at", "CURSOR at", "4:1", "CURSOR names a column that is not selected; got: at"),
        ("CURSOR", "CURSER", "4:1", "this is no clause of a capture; got: CURSER"),
        ("(deleted = 1 AND", "(gone = 1 AND", "5:1", "DELETED names a column that is not selected; got: gone"),
        ("(deleted = 1 AND", "(deleted = = 1 AND", "5:25", "Required keyword"),
        ("(deleted = 1 AND CAST(id AS CHAR) <> 'AS')", "()", "5:14", "DELETED WHEN has no condition"),
        ("(deleted = 1 AND CAST(id AS CHAR) <> 'AS')", "deleted = 1", "5:14", "here stands (; got: deleted"),
        ("500 MILLISECONDS", "0 SECONDS", "6:7", "a duration is no whole number above 0"),
        ("500 MILLISECONDS", "1 FORTNIGHT", "6:9", "this is no unit of time; got: FORTNIGHT"),
        ("OVERLAP 1 MINUTE", "EVERY 1 MINUTE", "7:1", "a clause stands twice; got: EVERY"),
        ("EVERY 6 HOURS RATE 500", "SELDOM", "9:11", "here stands EVERY; got: SELDOM"),
        ("RATE 500", "RATE 0", "9:30", "the rows a second is no whole number above 0; got: 0"),
        ("64 KB", "64 GB", "10:12", "this is no unit of size; got: GB"),
        ("64 KB", "33 MB", "10:12", "this is larger than Kafka's clients take; got: 33 MB"),
        ("SELECT", "SELECT DISTINCT", "12:1", "a capture cannot page through DISTINCT"),
        ("SELECT", "WITH q AS (SELECT 1) SELECT", "12:1", "a capture cannot page through WITH"),
        ("SELECT", "UPDATE a SET b = 1; SELECT", "12:1", "behind AS stands one SELECT; got: several statements"),
        ("WHERE kind <> 'x'", "GROUP BY id", "12:1", "a capture cannot page through GROUP BY"),
        ("WHERE kind <> 'x'", "ORDER BY id", "12:1", "a capture cannot page through ORDER BY"),
        ("WHERE kind <> 'x'", "LIMIT 5", "12:1", "a capture cannot page through LIMIT"),
        ("WHERE kind <> 'x'", "FOR UPDATE", "12:1", "a capture cannot page through FOR UPDATE"),
        ("WHERE kind <> 'x'", "UNION SELECT 1, 2, 3, 4, 5", "12:1", "behind AS stands one SELECT; got: UNION"),
        ("kind <> 'x'", "kind = ?", "12:1", "a capture has no parameters"),
        ("kind <> 'x'", "at < NOW()", "12:1", "this says another thing at each poll; got: NOW()"),
        ("name,", "UUID() AS name,", "12:1", "this says another thing at each poll; got: UUID()"),
        ("name,", "UTC_TIMESTAMP() AS name,", "12:1", "this says another thing at each poll; got: UTC_TIMESTAMP()"),
        ("name,", "UNIX_TIMESTAMP() AS name,", "12:1", "this says another thing at each poll"),
        ("name,", "CAST('now' AS DATETIME) AS name,", "12:1", "this says another thing at each poll"),
        ("deleted = 1", "updated_at < NOW()", "12:1", "this says another thing at each poll; got: NOW()"),
        ("name,", "COUNT(*) AS name,", "12:1", "a capture has no aggregates; got: COUNT(*)"),
        ("name,", "name, name,", "12:1", "columns without a name, or with one name"),
        ("name,", "1 + 1,", "12:1", "columns without a name, or with one name"),
        ("FROM accounts", "FROM", "12:53", "Expected table name"),
        ("SELECT id, part, name, deleted, updated_at FROM accounts WHERE kind <> 'x'\n", "", "11:1", "no SELECT"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(before: str, after: str, place: str, what: str) -> None:
    assert before in FULL
    with pytest.raises(DeclarationError) as refused:
        parse(FULL.replace(before, after, 1), PATH)
    assert str(refused.value).startswith(f"accounts.sql:{place}: ")
    assert what in str(refused.value)


@pytest.mark.parametrize(("text", "what"), [("", "ends too soon"), (LEAST + " WHERE a = 'x", "is not closed")])
def test_a_file_that_ends_too_soon_is_refused(text: str, what: str) -> None:
    with pytest.raises(DeclarationError, match=what):
        parse(text, PATH)


def test_a_folder_gives_its_captures_by_name(tmp_path: Path) -> None:
    (tmp_path / "accounts.sql").write_text(LEAST)
    (tmp_path / "notes.txt").write_text("not SQL")
    assert list(load(tmp_path)) == ["accounts"]
    assert load(tmp_path / "nowhere") == {}


def test_a_reconcile_may_be_declined() -> None:
    assert parse(LEAST.replace(" AS SELECT", " RECONCILE NEVER AS SELECT"), PATH).reconcile is None
