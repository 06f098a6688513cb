"""Whatever stands in a sink's file, it is one or a DeclarationError says where it is none."""

from __future__ import annotations

import random
import re
from pathlib import Path

from penstock.errors import DeclarationError
from penstock.model.sql.sink_file import parse
from tests.support.random_cases import tries

TRIES = tries(1000)
SEED = 20261122
PATH = Path("given.sql")
FULL = """UPSERT INTO elasticsearch.tests-v2
READ tests AS JSON (id BIGINT NOT NULL, name STRING, at STRING, tags ARRAY<STRING>) EVENT TIME to_timestamp(at)
READ `old.tests` AS TEXT
KEY (id, name) VERSION (revision) SUFFIX DAY (at) EXPIRE AFTER 30 DAYS
TOMBSTONES DELETE (string(record.key), split(string(record.key), '/')[1]) DELETED WHEN (name IS NULL)
BATCH 500 EVERY 2 SECONDS PARALLEL 3 DEAD LETTERS INTO tests-refused APP search FIELDS (name KEYWORD, at DATE)
AS
WITH q AS (SELECT *, explode(tags) AS tag FROM tests WHERE id IS DISTINCT FROM 3 -- a comment
) SELECT id, name, upper(tag) AS t, extract(YEAR FROM at) AS y, trim(BOTH 'x' FROM name) AS n FROM q
UNION ALL SELECT t.* FROM `old.tests` t WHERE text <> 'FROM' AND r'\\' <> "SELECT"
"""
MORE = """UPSERT INTO influxdb.penstock READ m AS BINARY MEASUREMENT (topic) TAGS (a, b) TIME (at)
FIELDS (valid INTEGER) VERSION NONE TOMBSTONES IGNORE AS SELECT string(record.key) AS topic, 1 AS valid FROM m"""
LESS = """INSERT INTO mongodb.d.c READ t AS JSON (a BIGINT) INDEX (a) UNIQUE INDEX (b)
AS SELECT * EXCEPT (a) FROM (SELECT * FROM t)"""
WORDS = [
    "'", '"', "`", "(", ")", ",", ";", "*", ".", "-", "--", "/*", "*/", "\0", "\ud800", "é", "\n", "", "1", "0",
    "9" * 5000, "1.5e9", "1L", "r'", "$$", "${x}", "{}", "AS", "FROM", "SELECT", "READ", "KEY", "WITH", "UNION",
    "ALL", "DISTINCT", "JSON", "NONE", "INTO", "EXCEPT", "record", "_way", "LIMIT", "GROUP BY", "OVER", "VALUES",
    "TABLE", "DAYS", "x -> x", "|>", ":p", "?",
]  # fmt: skip


def mutated(text: str, chance: random.Random) -> str:
    """The text with some words left out, twice, exchanged, or others in their place; or cut, or with odd signs."""
    words = re.findall(r"\w+|\s+|[^\w\s]", text)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        at, other = chance.randrange(len(words)), chance.randrange(len(words))
        match chance.randrange(6):
            case 0:
                words[at] = ""
            case 1:
                words[at] = words[at] * 2
            case 2:
                words[at], words[other] = words[other], words[at]
            case 3:
                words[at] = chance.choice(WORDS)
            case 4:
                words.insert(at, chance.choice(WORDS))
            case _:
                words = words[: at + 1] if chance.random() < 0.2 else words
    return "".join(words)


def refusal(text: str) -> str | None:
    """Why the text is no sink; None if it is one, of which Spark is given what is written and what is put in."""
    try:
        made = parse(text, PATH)
    except DeclarationError as e:
        return str(e)
    left = made.rewritten.sql
    for behind, length in reversed(made.rewritten.added):
        shift = sum(more for other, more in made.rewritten.added if other < behind)
        left = left[: behind + shift] + left[behind + shift + length :]
    assert left == made.sql, text
    return None


def test_a_statement_is_a_sink_or_is_refused_with_its_place() -> None:
    chance = random.Random(SEED)
    accepted = 0
    for _ in range(TRIES):
        text = mutated(chance.choice([FULL, FULL, MORE, LESS]), chance)
        if (said := refusal(text)) is None:
            accepted += 1
            continue
        place = re.match(r"given\.sql:(\d+):(\d+): ", said)
        assert place, f"{said}\n{text}"
        lines = text.split("\n")
        assert int(place[1]) <= len(lines), f"{said}\n{text}"
        assert int(place[2]) <= len(lines[int(place[1]) - 1]) + 1, f"{said}\n{text}"
    assert accepted > TRIES / 20
