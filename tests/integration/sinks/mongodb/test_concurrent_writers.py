"""The MongoDB writer with others that write the same documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import BulkWriteError
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.support.mongodb import Opened, Row, fresh, opening, there, write

pytestmark = pytest.mark.integration


@pytest.fixture
def database(mongodb_url: str) -> Iterator[Database[Any]]:
    with fresh(mongodb_url) as made:
        yield made


@pytest.fixture
def opened(mongodb_url: str, database: Database[Any]) -> Iterator[Opened]:
    with opening(mongodb_url, database) as made:
        yield made


def test_a_delete_between_a_look_at_the_tombstones_and_the_write(
    opened: Opened, database: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer's: it records the tombstone and finds nothing to delete, and then the older document comes."""
    (late, output), (other, _) = opened(), opened()
    send = late._requests.write

    def between(*given: Any) -> Any:
        monkeypatch.undo()
        write(other, output, Row("a", 9), Row("b", 2))
        return send(*given)

    monkeypatch.setattr(late._requests, "write", between)
    write(late, output, Row("a", 5, {"n": 5}), Row("b", 5, {"n": 5}))
    assert there(database) == {"b": {"n": 5}}


def test_writes_between_a_look_at_the_versions_and_the_write(
    opened: Opened, database: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newer ones stay, older ones do not, whether or not something was there; what was deleted is there again."""
    (late, output), (other, _) = opened(), opened()
    write(other, output, *(Row(key, 1, {"n": 1}) for key in "cde"))
    send = late._requests.write

    def between(*given: Any) -> Any:
        monkeypatch.undo()
        written = [Row(key, version, {"n": version}) for key, version in {"a": 9, "b": 2, "c": 9, "d": 2}.items()]
        write(other, output, *written, Row("e", 2))
        return send(*given)

    monkeypatch.setattr(late._requests, "write", between)
    write(late, output, *(Row(key, 5, {"n": 5}) for key in "abcdef"))
    assert there(database) == {key: {"n": n} for key, n in zip("abcdef", (9, 5, 9, 5, 5, 5), strict=True)}
    assert (late.counters.written, late.counters.conflicts) == (4, 2)


def test_new_documents_are_inserted_without_a_version_guard(opened: Opened, database: Database[Any]) -> None:
    """A write that is guarded by a version is a search for each document."""

    class Listener(CommandListener):
        def started(self, event: CommandStartedEvent) -> None:
            if rows := [*event.command.get("documents", []), *event.command.get("updates", [])]:
                sent.append((event.command_name, len(rows)))

        def succeeded(self, event: CommandSucceededEvent) -> None: ...

        def failed(self, event: CommandFailedEvent) -> None: ...

    sent: list[tuple[str, int]] = []
    writer, output = opened({"event_listeners": [Listener()]})
    write(writer, output, *(Row(f"{n}", 2, {"n": 1}) for n in range(10)))
    assert sent == [("insert", 10)]
    sent.clear()
    write(writer, output, Row("0", 1, {"n": 2}), Row("1", 3, {"n": 2}), Row("new", 1, {"n": 2}))
    assert sorted(sent) == [("insert", 1), ("update", 1)], "an older one is not sent at all"
    assert there(database)["0"] == {"n": 1}


def test_an_insert_between_the_search_for_an_id_and_its_insert(
    opened: Opened, database: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers upsert an id that is not there: the server lets one find it taken, be it the newer one."""
    writer, output = opened()
    said = {"index": 0, "code": 11000, "errmsg": "E11000 duplicate key error collection: d.c index: _id_ dup key: {}"}
    write(writer, output, Row("a", 1, {"n": 1}))
    bulk = type(database.c).bulk_write
    raised: list[bool] = []

    def raced(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not raised:
            raised.append(True)
            raise BulkWriteError({"writeErrors": [said]})
        return bulk(self, *args, **kwargs)

    monkeypatch.setattr(type(database.c), "bulk_write", raced)
    assert write(writer, output, Row("a", 2, {"n": 2})) == 1
    assert there(database) == {"a": {"n": 2}}
