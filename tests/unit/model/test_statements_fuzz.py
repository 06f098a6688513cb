"""Whatever stands in a file of SQL, it declares a stream, capture or sink, or a DeclarationError says where it errs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.errors import DeclarationError
from penstock.model import capture
from penstock.model.sql import sink_file, stream_file
from penstock.model.sql.stream_query import sql_stream
from tests.support.random_cases import tries

TRIES = tries(300)
SEED = 20261122
PATH = Path("given.sql")
STREAMS = (
    """STREAM INTO `shop.totals` PARTITIONS 3 RETENTION 7 DAYS
READ orders AS JSON (shop STRING NOT NULL, amount DOUBLE, at BIGINT NOT NULL, tags ARRAY<STRING>)
  EVENT TIME timestamp_millis(at) AHEAD 5 MINUTES KEEP LATE -- a comment
READ TABLE shops AS JSON (town STRING, `open` BOOLEAN)
KEY (shop, minute) VALUE (total, town)
EMIT FINAL WINDOW 1 MINUTE GRACE 10 SECONDS LATE BY 0 SECONDS
STEPS 2 STATE PARTITIONS 2 EVERY 1500 MILLISECONDS PARTITION BY HOUR APP shop
AS
WITH q AS (SELECT shop, explode(tags) AS tag, amount, event_time FROM orders WHERE amount IS DISTINCT FROM 3)
SELECT shop, unix_millis(window.start) AS minute, sum(amount) AS total, max(s.town) AS town
FROM q JOIN shops s ON s.key = q.shop AND tag <> 'FROM' /* SELECT */
GROUP BY shop, window(event_time, '1 minute')
""",
    """STREAM INTO paid COMPACTED READ orders AS JSON (id BIGINT NOT NULL, timestamp TIMESTAMP NOT NULL)
READ payments AS JSON (order_id BIGINT NOT NULL, at STRING) EVENT TIME to_timestamp(at)
KEY id JOIN WITHIN 10 MINUTES GRACE 1 MINUTE
AS SELECT o.id, p.at FROM orders o JOIN payments p ON o.id = p.order_id
AND p.event_time BETWEEN o.event_time - INTERVAL 1 MINUTE AND o.event_time + INTERVAL 10 MINUTES;""",
    """stream into names read people as json (name string, at timestamp) event time at
as select upper(name) as name, named_struct('a', 1).a as one from people union all select r'\\', 2 from people""",
    """STREAM INTO totals COMPACTED READ orders AS JSON (shop STRING NOT NULL, amount DOUBLE, timestamp BIGINT NOT NULL)
EVENT TIME timestamp_millis(timestamp) WITH RECORD
WITH ('min.compaction.lag.ms' = '60000', 'max.compaction.lag.ms' = '60000') SETTING hold 5 HOURS
KEY shop
FOLD by-shop FROM (SELECT shop, amount, '(' AS x, event_time FROM orders WHERE amount > 0 /* ) */) BY (shop)
  STATE (total DOUBLE, tags ARRAY<STRUCT<tag: STRING, n: INT>>, due BIGINT)
  UPDATE AS (SELECT shop, sum(amount) AS total, [struct_pack(tag := 'AS', n := 1)] AS tags, 9::BIGINT AS due -- :)
    FROM records LEFT JOIN state USING (shop) WHERE x <> 'it''s' GROUP BY shop)
  ROWS (shop STRING, total DOUBLE) EMIT AS (SELECT shop, total FROM folded)
  TIMER due EXPIRES WHEN (total < getvariable('watermark') - getvariable('hold'))
FOLD names FROM (SELECT *, timestamp_millis(due) AS event_time FROM `by-shop`) BY shop STATE (n BIGINT)
  UPDATE AS (SELECT shop, count(*) FILTER (WHERE total > 1) AS n
  FROM records GROUP BY ALL) ROWS (shop STRING, n BIGINT) EMIT AS (SELECT shop, n FROM folded) INPUT RETENTION hold
GRACE 10 MINUTES TICK 1 SECOND STEPS 2 STATE PARTITIONS 2 EXPECT some n > 0 ON VIOLATION KEEP
AS SELECT shop, n FROM names""",
)
CAPTURES = (
    """CAPTURE INTO tests PARTITIONS 4 FROM mysql demo KEY (id, `a b`) CURSOR updated_at
DELETED WHEN (deleted OR name = 'FROM') EVERY 500 MILLISECONDS OVERLAP 20 SECONDS DELAY 5 SECONDS HOLD 20 MINUTES
RECONCILE EVERY 1 DAY RATE 100 REMOVES 5 PERCENT LARGEST 2 MB -- a comment
AS SELECT t.id, t.`a b`, t.name, t.deleted, (SELECT MAX(l.name) FROM labels l WHERE l.test_id = t.id) AS label,
  GREATEST(t.updated_at, COALESCE(t.changed_at, t.updated_at)) AS updated_at
FROM tests t WHERE t.kind <> "SELECT" """,
    """CAPTURE INTO accounts FROM postgres shop KEY (id) CURSOR at RECONCILE NEVER
AS SELECT a.id, a.at, b.name FROM accounts a JOIN names b ON a.id = b.id WHERE a.kind = $$AS$$;""",
    "capture into s from sqlite files key (id) cursor at as select * from [odd name]",
)
SINKS = (
    """UPSERT INTO elasticsearch.tests-v2
READ tests AS JSON (id BIGINT NOT NULL, name STRING, at STRING, tags ARRAY<STRING>) EVENT TIME to_timestamp(at)
READ `old.tests` AS TEXT
KEY (id, name) VERSION (revision) SUFFIX DAY (at) EXPIRE AFTER 30 DAYS
TOMBSTONES DELETE (string(record.key), split(string(record.key), '/')[1]) DELETED WHEN (name IS NULL)
BATCH 500 EVERY 2 SECONDS PARALLEL 3 DEAD LETTERS INTO tests-refused APP search FIELDS (name KEYWORD, at DATE)
AS
WITH q AS (SELECT *, explode(tags) AS tag FROM tests WHERE id IS DISTINCT FROM 3 -- a comment
) SELECT id, name, upper(tag) AS t, extract(YEAR FROM at) AS y, trim(BOTH 'x' FROM name) AS n FROM q
UNION ALL SELECT t.* FROM `old.tests` t WHERE text <> 'FROM' AND r'\\' <> "SELECT"
""",
    """UPSERT INTO influxdb.penstock READ m AS BINARY MEASUREMENT (topic) TAGS (a, b) TIME (at)
FIELDS (valid INTEGER) VERSION NONE TOMBSTONES IGNORE AS SELECT string(record.key) AS topic, 1 AS valid FROM m""",
    """INSERT INTO mongodb.d.c READ t AS JSON (a BIGINT) INDEX (a) UNIQUE INDEX (b)
AS SELECT * EXCEPT (a) FROM (SELECT * FROM t)""",
)
WORDS = [
    "'", '"', "`", "(", ")", ",", ";", "*", ".", "-", "--", "/*", "*/", "\0", "\ud800", "é", "\n", "", "1", "0",
    "9" * 5000, "1.5e9", "1L", "r'", "$$", "${x}", "{}", "AS", "FROM", "SELECT", "READ", "KEY", "WITH", "UNION",
    "ALL", "DISTINCT", "JSON", "NONE", "INTO", "EXCEPT", "record", "_way", "LIMIT", "GROUP BY", "OVER", "VALUES",
    "TABLE", "DAYS", "FOLD", "STATE", "EMIT", "BY", "UPDATE", "SETTING", "RECORD", "=", "x -> x", "|>", ":p", "?",
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


def read_stream(text: str) -> None:
    sql_stream(stream_file.parse(text, PATH), {})


def read_capture(text: str) -> None:
    capture.parse(text, PATH)


def read_sink(text: str) -> None:
    """Spark is given what is written, and what is put in."""
    declared = sink_file.parse(text, PATH)
    left = declared.rewritten.sql
    for behind, length in reversed(declared.rewritten.added):
        shift = sum(more for other, more in declared.rewritten.added if other < behind)
        left = left[: behind + shift] + left[behind + shift + length :]
    assert left == declared.sql, text


KINDS = pytest.mark.parametrize(
    ("read", "statements"), [(read_stream, STREAMS), (read_capture, CAPTURES), (read_sink, SINKS)]
)
Read = Callable[[str], None]


@KINDS
def test_what_is_mutated_is_right(read: Read, statements: Sequence[str]) -> None:
    for text in statements:
        read(text)


def refusal(read: Read, text: str) -> str | None:
    """Why the text declares nothing; None if it does."""
    try:
        read(text)
    except DeclarationError as e:
        return str(e)
    return None


@KINDS
def test_a_mutated_statement_is_declared_or_refused_with_its_place(read: Read, statements: Sequence[str]) -> None:
    chance = random.Random(SEED)
    accepted = 0
    for _ in range(TRIES):
        text = mutated(chance.choice([statements[0], *statements]), chance)
        if (message := refusal(read, text)) is None:
            accepted += 1
            continue
        place = re.match(r"given\.sql:(\d+):(\d+): ", message)
        assert place, f"{message}\n{text}"
        lines = text.split("\n")
        assert int(place[1]) <= len(lines), f"{message}\n{text}"
        assert int(place[2]) <= len(lines[int(place[1]) - 1]) + 1, f"{message}\n{text}"
    assert TRIES / 20 < accepted < TRIES
