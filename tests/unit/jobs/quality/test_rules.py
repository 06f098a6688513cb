"""Files of validity rules: which lines are clauses, and what is refused with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.quality import rules
from penstock.errors import DeclarationError
from penstock.settings import PROJECT

CLAUSES = "-- topic: t\n-- format: json\n"
SCHEMA = "-- schema: id BIGINT NOT NULL\n"


def written(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "t.sql"
    path.write_text(text, encoding)
    return path


@pytest.mark.parametrize(
    "text",
    [
        f"{CLAUSES}{SCHEMA}id > 0",
        f"\n\n{CLAUSES}\n{SCHEMA}\nid > 0\n",
        f"-- What is sold.\n{CLAUSES}--\n-- From 1 on:\n{SCHEMA}-- Note: none is free\nid > 0 -- schema: as above",
        f"{CLAUSES}-- Schema: id BIGINT NOT NULL\n\tid > 0",
        f"\ufeff{CLAUSES}{SCHEMA}id > 0",
    ],
)
def test_clauses_are_comment_lines_anywhere_before_the_expression(tmp_path: Path, text: str) -> None:
    rule = rules.read(written(tmp_path, text))
    assert (rule.topic, rule.format, rule.schema, rule.predicate.sql(comments=False)) == (
        "t",
        "json",
        "id BIGINT NOT NULL",
        "id > 0",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{CLAUSES}TRUE\n{SCHEMA}", r"t\.sql:4: the clause `-- schema:` is behind the expression"),
        (f"{CLAUSES}TRUE\n\n-- Framing: confluent", r"t\.sql:5: the clause `-- framing:` is behind the expression"),
        (f"{CLAUSES}{SCHEMA}{SCHEMA}TRUE", r"t\.sql:4: the clause `-- schema:` is there twice"),
        (f"{CLAUSES}\n-- frming: confluent\nTRUE", r"t\.sql:4: unknown clause; got: frming"),
    ],
)
def test_a_clause_that_would_be_lost_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        rules.read(written(tmp_path, text))


def test_files_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"t\.sql is not UTF-8"):
        rules.read(written(tmp_path, f"{CLAUSES}value = 'é'", "latin-1"))
    (tmp_path / "t.avsc").write_bytes(b'"\xe9"')
    with pytest.raises(DeclarationError, match=r"t\.avsc is not an Avro schema"):
        rules.read(written(tmp_path, "-- topic: t\n-- format: avro\n-- schema: t.avsc\nTRUE"))


def test_the_rules_of_the_repository_are_valid() -> None:
    found = rules.load(PROJECT / "sql" / "quality")
    assert {topic: bool(rule.schema) for topic, rule in found.items()} == {"*": False, "receipts": True}
