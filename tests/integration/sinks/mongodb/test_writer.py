"""The MongoDB writer against a server: the newest version of each id wins, in whatever order rows arrive."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pymongo.database import Database

from penstock.devstack.servers.mongodb import MongoDBServer as Server
from penstock.errors import SinkError, Wait
from penstock.model.output import NO_COMMIT, WriterOwner, open_store
from penstock.settings import settings
from penstock.sinks.core.writer import SinkCounters
from penstock.sinks.mongodb import collections
from penstock.sinks.mongodb.config import LIMITS, MongoDB
from penstock.sinks.mongodb.writer import MongoWriter
from tests.support.mongodb import (
    AT,
    DOC,
    Opened,
    Row,
    embedded,
    fresh,
    given,
    opening,
    refused,
    server,
    table,
    there,
    write,
)
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

MAIL = pa.struct([("mail", pa.string())])


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server | None]:
    with nullcontext() if given() else server(tmp_path_factory.mktemp("mongodb")) as made:
        yield made


@pytest.fixture
def url(part: Server | None) -> str:
    return part.url if part else given()


@pytest.fixture
def database(url: str) -> Iterator[Database[Any]]:
    with fresh(url) as made:
        yield made


@pytest.fixture
def opened(url: str, database: Database[Any]) -> Iterator[Opened]:
    with opening(url, database) as made:
        yield made


def taken(writer: MongoWriter, output: MongoDB, row: Row) -> bool:
    """Whether a row is written, and not to be given again later."""
    try:
        return write(writer, output, row) == 1
    except Wait:
        return False


@pytest.mark.parametrize("seed", range(3))
def test_the_newest_state_wins_in_whatever_order_it_comes(opened: Opened, database: Database[Any], seed: int) -> None:
    """Batches are given late, twice, and by two writers; a third of the rows are tombstones."""
    chance = random.Random(seed)
    writers = [opened(parallel=3), opened()]
    history = [
        Row(f"k{chance.randrange(40)}", version, None if chance.random() < 0.35 else {"n": version})
        for version in range(1, 300)
    ]
    newest = {row.id: row.doc for row in history}
    chance.shuffle(history)
    given = [history[at : at + 25] for at in range(0, len(history), 25)]
    for batch in given + chance.sample(given, 6):
        write(*chance.choice(writers), *batch)
    assert there(database) == {key: doc for key, doc in newest.items() if doc is not None}


def test_an_older_row_is_counted_and_an_equal_one_changes_nothing(opened: Opened, database: Database[Any]) -> None:
    writer, output = opened()
    assert write(writer, output, Row("a", 5, {"n": 5}), Row("b", 5, {"n": 6})) == 2
    assert write(writer, output, Row("a", 4, {"n": 4}), Row("b", 5, {"n": 6}), Row("c", 1, {"n": 1})) == 2
    assert there(database) == {"a": {"n": 5}, "b": {"n": 6}, "c": {"n": 1}}
    assert writer.counters == SinkCounters(written=4, conflicts=1, bytes=writer.counters.bytes)


def test_of_a_batch_the_newest_row_of_an_id_is_written(opened: Opened, database: Database[Any]) -> None:
    writer, output = opened()
    rows = [Row("a", 2, {"n": 2}), Row("a", 1, {"n": 1}), Row("b", 3, {"n": 1}), Row("b", 3, {"n": 2}), Row("c", 1)]
    # As Spark's partitions give them.
    given = pa.concat_tables([table(), table(*rows[:3]), table(*rows[3:], Row("c", 0, {"n": 0}))])
    assert writer.write({output.name: given}, NO_COMMIT) == 3
    assert there(database) == {"a": {"n": 2}, "b": {"n": 2}}


def test_a_delete_is_remembered_through_a_restart(opened: Opened, database: Database[Any], part: Server | None) -> None:
    writer, output = opened()
    write(writer, output, Row("a", 5, {"n": 5}), Row("b", 5, {"n": 5}))
    write(writer, output, Row("a", 7), Row("b", 4), Row("never there", 9))
    if part:
        part.kill()
        part.restart()
    writer, output = opened()
    write(writer, output, Row("a", 6, {"n": 6}), Row("never there", 8, {"n": 8}))
    assert there(database) == {"b": {"n": 5}}
    write(writer, output, Row("a", 8, {"n": 8}))
    assert there(database) == {"a": {"n": 8}, "b": {"n": 5}}
    tombstones = database["c.tombstones"]
    assert {d["_id"]: d["_v"] for d in tombstones.find()} == {"a": 7, "b": 4, "never there": 9}
    deleted = tombstones.find_one({"_id": "a"})
    assert deleted
    assert abs(deleted["_at"] - datetime.now(UTC)) < timedelta(minutes=10)
    assert tombstones.index_information()["_at_1"]["expireAfterSeconds"] == LIMITS.tombstone_days * 86_400


def test_what_the_transform_or_the_store_refuses_hurts_no_other_row(opened: Opened, database: Database[Any]) -> None:
    database.c.insert_one({"_id": "foreign", "n": 0})
    writer, output = opened()
    kind = pa.struct([("n", pa.decimal128(38, 0))])
    rows = [
        Row("good", 1, {"n": 1}),
        Row("a", 1, {"n": 1}, refused=b"no amount \xff"),
        Row(None, 1, {"n": 1}),
        Row("", 1, {"n": 1}),
        Row(b"\xff", 1, {"n": 1}),
        Row("i" * (LIMITS.id_bytes + 1), 1, {"n": 1}),
        Row("b", None, {"n": 1}),
        Row("c", 1, {"n": 10**36 + 1}),
        Row("foreign", 1, {"n": 1}),
        Row("i" * LIMITS.id_bytes, 1, {"n": 1}),
        Row("good", 0, {"n": 1}, refused=b"neither"),
    ]
    why = refused(writer, output, *rows, kind=kind)
    assert why == {
        1: "no amount \ufffd",
        2: "its id is NULL or empty",
        3: "its id is NULL or empty",
        4: "its id is not UTF-8",
        5: "its id has 4097 bytes, the store takes 4096",
        6: "its version is NULL",
        7: "a number has more than 34 digits",
        8: "a document of this id that no sink wrote, without _v, exists",
        10: "neither",
    }
    assert set(there(database)) == {"foreign", "good", "i" * LIMITS.id_bytes}
    assert writer.counters.refused == 9
    assert writer.counters.written == 2
    assert refused(writer, output, Row("foreign", 2)) == {
        0: "the document was not written by a sink, without _v: it stays"
    }
    assert there(database)["foreign"] == {"n": 0}


def test_a_document_is_not_deleted_without_its_tombstone(opened: Opened, database: Database[Any]) -> None:
    """An older record would bring it back."""
    writer, output = opened()
    write(writer, output, Row("a", 1, {"n": 1}))
    database["c.tombstones"].insert_one({"_id": "a"})
    for row in (Row("a", 2), Row("a", 2, {"n": 2})):
        with pytest.raises(SinkError, match=r"c\.tombstones cannot hold the tombstones of a sink.*without _v"):
            write(writer, output, row)
        assert there(database) == {"a": {"n": 1}}
    database["c.tombstones"].delete_one({"_id": "a"})
    write(writer, output, Row("a", 2))
    assert there(database) == {}


@pytest.mark.parametrize(
    ("tombstones", "wanted"),
    [
        ("delete", {"b": {"n": 1}}),
        ("ignore", {"a": {"n": 1}, "b": {"n": 1}}),
        ("mark", {"a": {"n": None, "deleted": True}, "b": {"n": 1}, "c": {"deleted": True}}),
    ],
)
def test_what_a_tombstone_does(opened: Opened, database: Database[Any], tombstones: str, wanted: Any) -> None:
    writer, output = opened(tombstones=tombstones)
    write(writer, output, Row("a", 1, {"n": 1}), Row("b", 3, {"n": 1}))
    rows = [Row("a", 2, {"n": None}, deleted=True), Row("b", 2), Row("c", 2)]
    write(writer, output, *rows)
    write(writer, output, *rows, *([] if tombstones == "ignore" else [Row("c", 1, {"n": 1})]))
    assert there(database) == wanted


def test_a_unique_index_refuses_what_breaks_it(opened: Opened, database: Database[Any]) -> None:
    writer, output = opened(unique=(("mail",),))
    write(writer, output, *(Row(f"{n}", 1, {"mail": f"m{n}"}) for n in range(10)), kind=MAIL)
    # Each takes what the next one gives up, and one what nobody does.
    passed = [Row(f"{n}", 2, {"mail": f"m{n + 1}"}) for n in range(10)]
    why = refused(writer, output, *passed, Row("x", 1, {"mail": "m5"}), kind=MAIL)
    assert list(why) == [10]
    assert "11000" in why[10]
    assert "mail_1" in why[10]
    assert there(database) == {f"{n}": {"mail": f"m{n + 1}"} for n in range(10)}


def test_types_come_back_as_they_went(opened: Opened, database: Database[Any]) -> None:
    kind = pa.struct([("l", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("b", pa.binary()), ("f", pa.float64())])
    doc = {"l": 2**53 + 1, "t": AT, "b": b"\xff\x00", "f": float("inf")}
    writer, output = opened()
    write(writer, output, Row("a", 2**63 - 1, doc), kind=kind)
    assert there(database)["a"] == doc
    write(writer, output, Row("b", 1, {"t": datetime(9999, 12, 31, tzinfo=UTC)}), Row("a", 5, doc), kind=kind)
    assert there(database)["b"]["t"].year == 9999
    # By the server's own comparison, not the client's.
    assert database.c.count_documents({"l": {"$gt": 2**53}, "t": {"$gte": AT}}) == 1


def test_large_documents_and_many_fields(opened: Opened, database: Database[Any]) -> None:
    kind = pa.struct([("v", pa.large_string()), *((f"f{n}", pa.int32()) for n in range(10_000))])
    wide = {f"f{n}": n for n in range(10_000)}
    writer, output = opened()
    rows = [Row("wide", 1, wide), Row("large", 1, {"v": "x" * 14_000_000}), Row("more", 1, {"v": "x" * 17_000_000})]
    why = refused(writer, output, *rows, kind=kind)
    assert set(why) == {2}
    assert why[2].endswith("MongoDB takes 16777216")
    found = there(database)
    assert set(found) == {"wide", "large"}
    assert found["wide"] == {"v": None, **wide}


def test_suffixes_keep_times_apart_and_a_tombstone_finds_its_document(opened: Opened, database: Database[Any]) -> None:
    writer, output = opened(suffix="day", indexes=(("n",),))
    later = AT + timedelta(days=1)
    write(writer, output, Row("a", 1, {"n": 1}), Row("b", 1, {"n": 2}, at=later))
    assert there(database, "c-2026.11.22") == {"a": {"n": 1}}
    assert there(database, "c-2026.11.23") == {"b": {"n": 2}}
    far = datetime(9999, 1, 1, tzinfo=UTC)
    why = refused(writer, output, Row("c", 1, {"n": 1}, at=None), Row("d", 1, {"n": 1}, at=far))
    assert why == {0: "its time is NULL", 1: "its time is outside of 1970 to 2199"}
    database["c-other"].insert_one({"_id": "a", "_v": 1})
    # A tombstone has a time of its own.
    write(writer, output, Row("a", 2, at=later))
    write(writer, output, Row("a", 1, {"n": 1}))
    assert there(database, "c-2026.11.22") == {}
    assert set(there(database, "c-other")) == {"a"}


def test_documents_expire_by_their_time(opened: Opened, database: Database[Any]) -> None:
    writer, output = opened(expire_seconds=3600)
    now = datetime.now(UTC).replace(microsecond=0)
    write(writer, output, Row("a", 1, {"n": 1}, at=now))
    assert there(database) == {"a": {"n": 1, "_at": now}}
    assert database.c.index_information()["_at_1"]["expireAfterSeconds"] == 3600
    with pytest.raises(SinkError, match=r"expireAfterSeconds is 3600, declared is 60.*dropIndex"):
        write(*opened(expire_seconds=60), Row("a", 2, {"n": 2}, at=now))
    assert there(database)["a"]["n"] == 1


def test_what_is_there_is_never_changed(opened: Opened, database: Database[Any]) -> None:
    row = Row("a", 1, {"n": 1})
    database.c.create_index([("n", 1)], unique=True)
    before = database.c.index_information()
    with pytest.raises(SinkError, match=r"index n_1 .* is not as declared; got: unique is True, declared is False"):
        write(*opened(indexes=(("n",),)), row)
    # One of another name, or that is not declared, is somebody else's.
    assert write(*opened(), row) == 1
    assert write(*opened(unique=(("n",),)), row) == 1
    assert database.c.index_information() == before
    database.c.insert_one({"_id": "b", "m": 1})
    database.c.insert_one({"_id": "c", "m": 1, "n": 7})
    with pytest.raises(SinkError, match=r"index .'m',. cannot be created"):
        write(*opened(unique=(("m",),)), Row("d", 1, {"n": 9}))


def test_a_collection_that_is_dropped_gets_its_indexes_again(
    opened: Opened, database: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, output = opened(expire_seconds=3600)
    write(writer, output, Row("a", 1, {"n": 1}))
    database.c.drop()
    write(writer, output, Row("a", 1, {"n": 1}))
    monkeypatch.setattr(collections, "RECHECK_S", 0)
    write(writer, output, Row("a", 1, {"n": 1}))
    assert set(there(database)) == {"a"}
    assert database.c.index_information()["_at_1"]["expireAfterSeconds"] == 3600


def test_a_server_that_is_away_is_waited_for(opened: Opened, database: Database[Any], part: Server | None) -> None:
    embedded()
    assert part
    writer, output = opened({"serverSelectionTimeoutMS": 1000})
    wait_until(lambda: taken(writer, output, Row("a", 1, {"n": 1})))
    part.stop()
    with pytest.raises(Wait, match=f"127.0.0.1:{part.port}, {database.name}.c does not take writes") as e:
        write(writer, output, Row("a", 2, {"n": 2}))
    assert e.value.seconds >= 1
    # One that is opened meanwhile waits as well.
    with pytest.raises(Wait):
        write(*opened({"serverSelectionTimeoutMS": 1000}), Row("a", 2, {"n": 2}))
    part.start()
    part.wait()
    wait_until(lambda: taken(writer, output, Row("a", 2, {"n": 2})))
    assert there(database) == {"a": {"n": 2}}


def test_a_server_that_hangs_is_waited_for(opened: Opened, database: Database[Any], part: Server | None) -> None:
    embedded()
    assert part
    writer, output = opened({"socketTimeoutMS": 1000, "serverSelectionTimeoutMS": 1000, "connectTimeoutMS": 1000})
    wait_until(lambda: taken(writer, output, Row("a", 1, {"n": 1})))
    part.pause()
    try:
        with pytest.raises(Wait, match="does not take writes"):
            write(writer, output, Row("a", 2, {"n": 2}))
    finally:
        part.resume()
    wait_until(lambda: taken(writer, output, Row("a", 2, {"n": 2})))
    assert there(database) == {"a": {"n": 2}}


def test_what_was_told_to_be_written_outlives_a_kill(
    opened: Opened, database: Database[Any], part: Server | None
) -> None:
    embedded()
    assert part
    writer, output = opened()
    for n in range(5):
        write(writer, output, *(Row(f"{n}-{m}", 1, {"n": m}) for m in range(20)))
        part.kill()
        part.restart()
        assert database.c.count_documents({}) == 20 * (n + 1)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "URL of mongodb is not known.*PENSTOCK_MONGODB_URL"),
        ("mongodb://u:se/cret@host", "not a valid URL.*%2F"),
        ("http://host", "not a valid URL"),
        ("mongodb://host/?w=0", "asks for no acknowledgements"),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_url_that_leads_nowhere_is_told_without_its_password(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setenv("PENSTOCK_MONGODB_URL", url)
    settings.cache_clear()
    with pytest.raises(SinkError, match=said) as e:
        open_store([MongoDB(sink="s", database="d", collection="c")], WriterOwner("s", "g", ""))
    assert "cret" not in str(e.value)


def test_no_rows_are_nothing(opened: Opened) -> None:
    writer, output = opened({"serverSelectionTimeoutMS": 1})
    assert writer.committed() == NO_COMMIT
    assert writer.write({}, NO_COMMIT) == 0
    assert writer.write({output.name: table(kind=DOC)}, NO_COMMIT) == 0
