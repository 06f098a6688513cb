"""Whether the checker of random histories sees each way in which a topic may be another than its table."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from penstock.model.capture import parse
from tests.chaos.histories.checker import Topic, compared, expected
from tests.chaos.histories.servers import Server, sqlite
from tests.chaos.histories.tables import DIALECTS, History, history
from tests.chaos.histories.writers import Writer


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return sqlite(tmp_path / "histories.sqlite")


@pytest.fixture
def filled(server: Server) -> History:
    """A table with rows, in which none is removed."""
    made = next(h for n in range(100) if not (h := history(1, n, "sqlite", frozenset())).removes and h.deleted)
    server.run(*made.ddl())
    writer, connection = Writer(made, server, 0, threading.Lock()), server.open()
    while len(expected(made, server)[0]) < 8:
        writer.insert(connection)
    connection.close()
    return made


def sent(h: History, server: Server) -> Topic:
    """A topic as it should be."""
    topic = Topic()
    for row in expected(h, server)[0].values():
        key = json.dumps({name: row[name] for name in h.key_out}).encode()
        topic.take(key, json.dumps(row).encode(), 0, "version")
    return topic


def mistakes(h: History, server: Server, topic: Topic) -> str:
    found = [" ".join(compared(h, topic, *expected(h, server), exact=exact)) for exact in (False, True)]
    # In this history a poll sees all that a comparison does.
    assert found[0] == found[1]
    return found[0]


def test_a_topic_as_its_table_has_no_mistakes(filled: History, server: Server) -> None:
    assert mistakes(filled, server, sent(filled, server)) == ""


def test_each_other_topic_has(filled: History, server: Server) -> None:
    key, value = next(iter(sent(filled, server).last.items()))
    assert value
    row, count = json.loads(value), len(expected(filled, server)[0])

    def with_value(changed: bytes | None) -> str:
        topic = sent(filled, server)
        topic.take(key, changed, 0, "version")
        return mistakes(filled, server, topic)

    assert f"1 of {count} missing" in with_value(None)
    assert f"1 of {count} differs" in with_value(json.dumps(row | {"grade": row["grade"] + 1}).encode())
    # The same number in another form is another value.
    assert f"1 of {count} differs" in with_value(json.dumps(row | {"grade": float(row["grade"])}).encode())
    assert f"1 of {count} differs" in with_value(json.dumps(dict(reversed(row.items()))).encode())
    assert "went back" in with_value(json.dumps(row | {"version": row["version"] - 1}).encode())

    topic = sent(filled, server)
    topic.take(key, value, 1, "version")
    assert "in two partitions" in mistakes(filled, server, topic)

    topic = sent(filled, server)
    topic.take(key.replace(b": ", b":"), value, 0, "version")
    assert "written in two ways" in mistakes(filled, server, topic)

    topic = sent(filled, server)
    server.run(f"UPDATE {filled.table} SET gone = 1")
    assert f"{count} of 0 not deleted" in mistakes(filled, server, topic)
    server.run(f"DELETE FROM {filled.table}")
    assert f"{count} of 0 extra" in mistakes(filled, server, topic)


@pytest.mark.processes
@pytest.mark.parametrize("engine", DIALECTS)
def test_histories_are_captures_of_all_kinds(engine: str) -> None:
    made = [history(2, n, engine, frozenset()) for n in range(300)]
    for h in made:
        assert parse(h.declaration(), Path(f"{h.name}.sql")).key == tuple(h.key_out)
    dialect = DIALECTS[engine]
    assert {c.kind.ddl for h in made for c in h.key} == {k.ddl for k in dialect.kinds if k.key}
    assert {h.cursor for h in made} == set(dialect.cursors)
    assert {c.kind.ddl for h in made for c in h.values} == {k.ddl for k in dialect.kinds}
    assert history(2, 5, engine, frozenset()).declaration() == made[5].declaration()
