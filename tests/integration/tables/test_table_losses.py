"""A table whose topic loses records, or whose folder is another's: compared with a dict over the topic's records."""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from penstock.devstack.servers.kafka import Broker
from penstock.engine.query.tables import BatchIdentity, StreamTables
from penstock.kafka.admin import admin, partition_counts
from penstock.model.output import CommitMarker
from penstock.streams import Input, Stateless, Stream, Table, Topic, TopicOutput
from penstock.tables import topic_reader
from penstock.tables.table_store import MANIFEST, TableManifest
from penstock.testing import Record, create, read, send
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

SHOPS = Topic("shops", partitions=2, compacted=True)
OUT = Topic("named-sales", partitions=1)
STREAM = Stream(
    name="naming",
    app="tests",
    inputs={
        "sales": Input(Topic("sales"), schema="id BIGINT NOT NULL, shop STRING, at TIMESTAMP", event_time="at"),
        "shops": Table(SHOPS, schema="n BIGINT NOT NULL, note STRING"),
    },
    transform=lambda sales, shops: sales.join(shops, sales.shop == shops.key),
    output=TopicOutput(OUT, key="id", value="id"),
    output_mode=Stateless(),
)


class Plan:
    """Stands for Spark: the plan of a table's frame, made once and executed in every batch."""

    sparkContext = SimpleNamespace(defaultParallelism=2)  # noqa: N815

    def range(self, _start: int, end: int, _step: int, _partitions: int) -> Plan:
        self._numbers = range(end)
        return self

    def mapInArrow(self, rows: Callable[..., Iterator[pa.RecordBatch]], _ddl: str) -> Plan:  # noqa: N802
        self._rows = rows
        return self

    def rows(self) -> dict[str, Any]:
        found = [
            row
            for number in self._numbers
            for batch in self._rows(iter([pa.RecordBatch.from_pydict({"id": [number]})]))
            for row in batch.to_pylist()
        ]
        assert len({row["key"] for row in found}) == len(found)
        return {row.pop("key"): row for row in found}


class Reader:
    """The tables of a stream as its batches use them, and what they hand to the store of dead letters."""

    def __init__(self, bootstrap: str, root: Path, stream: Stream = STREAM) -> None:
        self._bootstrap, self._root, self._stream = bootstrap, root, stream
        self.batch, self.mark = -1, CommitMarker("", -1, {}, {})
        self.dead: list[tuple[str, str]] = []
        self._tables = StreamTables(stream, str(root), bootstrap, lambda *_: None)

    @property
    def folder(self) -> Path:
        return self._root / f"{self._stream.name}.tables" / "shops"

    def start(self) -> None:
        self.stop()
        self._tables = StreamTables(self._stream, str(self._root), self._bootstrap, lambda *_: None)
        self._tables.load()
        self._tables.load_progress(self.mark)
        self._plan: Any = self._tables.frames(Plan())["shops"]  # type: ignore[arg-type]

    def run(self, plan: str = "", *, again: bool = False) -> dict[str, Any]:
        """One batch: the table it sees. plan: what it reads. again: the batch before is run once more."""
        self.batch += 0 if again else 1
        self._tables.advance(BatchIdentity("q", self.batch, plan), lambda: False)
        found: dict[str, Any] = self._plan.rows()
        for table in self._tables.unwritten_dead_letters()[0].values():
            for row in table.to_pylist():
                said = {name: text.decode() for name, text in row["headers"]}
                self.dead.append((said["penstock.partition"], said["penstock.offset"]))
        self.mark = CommitMarker("q", self.batch, self._tables.offsets, self._tables.ids)
        self._tables.dead_letters_written()
        return found

    def stop(self) -> None:
        self._tables.close()


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, SHOPS)
    return fresh_broker.bootstrap


@pytest.fixture
def reader(bootstrap: str, tmp_path: Path) -> Iterator[Reader]:
    made = Reader(bootstrap, tmp_path)
    yield made
    made.stop()


def shop(key: str | None, n: int | None, partition: int = 0) -> Record:
    return Record("shops", key, None if n is None else json.dumps({"n": n}), partition)


def numbers(rows: dict[str, Any]) -> dict[str, int]:
    return {key: row["n"] for key, row in rows.items()}


@pytest.mark.parametrize(("plan", "n"), [("a", 1), ("", 1), ("b", 2)], ids=["same", "written", "planned anew"])
def test_a_batch_that_is_planned_anew_under_its_number_sees_a_newer_table(
    bootstrap: str, reader: Reader, plan: str, n: int
) -> None:
    """An offset log that lost its end plans other records, which may be newer than the table of the lost plan."""
    send(bootstrap, [shop("x", 1)])
    reader.start()
    assert numbers(reader.run("a")) == {"x": 1}
    send(bootstrap, [shop("x", 2)])
    reader.start()
    assert numbers(reader.run(plan, again=True)) == {"x": n}


@contextmanager
def hasty_cleaner(bootstrap: str) -> Iterator[None]:
    """The broker compacts at once."""

    def told(operation: AlterConfigOpType) -> None:
        value = None if operation == AlterConfigOpType.DELETE else "100"
        entry = ConfigEntry("log.cleaner.backoff.ms", value, incremental_operation=operation)
        (number,) = admin(bootstrap).list_topics(timeout=15).brokers
        broker = ConfigResource(ResourceType.BROKER, str(number), incremental_configs=[entry])
        admin(bootstrap).incremental_alter_configs([broker])[broker].result(15)

    told(AlterConfigOpType.SET)
    try:
        yield
    finally:
        told(AlterConfigOpType.DELETE)


@pytest.mark.parametrize("away", [True, False], ids=["stopped", "without a batch"])
def test_a_tombstone_that_is_compacted_away_before_it_is_read_removes_its_key(
    bootstrap: str, reader: Reader, caplog: pytest.LogCaptureFixture, away: bool
) -> None:
    send(bootstrap, [shop("a", 1), shop("b", 2)])
    reader.start()
    assert numbers(reader.run()) == {"a": 1, "b": 2}
    # For longer than the table takes to read.
    hasty = {"segment.ms": "100", "delete.retention.ms": "4000", "min.cleanable.dirty.ratio": "0.0"}
    create(bootstrap, replace(SHOPS, config={**hasty, "max.compaction.lag.ms": "100"}))
    if away:
        reader.stop()
    send(bootstrap, [shop("a", None)])

    def compacted() -> bool:
        # A segment is closed by the next record only.
        send(bootstrap, [shop("b", 3)])
        return "a" not in {r.key for r in read(bootstrap, "shops")}

    with hasty_cleaner(bootstrap):
        wait_until(compacted, every=0.3, what="the tombstone is gone")
    if away:
        reader.start()
    assert numbers(reader.run()) == {"b": 3}
    assert "longer ago than its tombstones are kept" in caplog.text


def test_a_tombstone_read_alone_removes_its_key(bootstrap: str, reader: Reader) -> None:
    """A message is as long as its value: one without is false."""
    send(bootstrap, [shop("a", 1), shop("b", 2)])
    reader.start()
    assert numbers(reader.run()) == {"a": 1, "b": 2}
    for key, left in (("a", {"b": 2}), ("b", {})):
        send(bootstrap, [shop(key, None)])
        assert numbers(reader.run()) == left


def test_a_table_offline_for_a_short_time_is_not_read_again(
    bootstrap: str, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    send(bootstrap, [shop("a", 1), shop("b", 2)])
    reader.start()
    reader.run()
    reader.stop()
    send(bootstrap, [shop("a", None)])
    reader.start()
    assert numbers(reader.run()) == {"b": 2}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_records_that_retention_removed_before_they_were_read_leave_no_old_row(
    bootstrap: str, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    create(bootstrap, replace(SHOPS, config={"cleanup.policy": "compact,delete"}))
    send(bootstrap, [shop("a", 1), shop("b", 2)])
    reader.start()
    reader.run()
    send(bootstrap, [shop("a", None), shop("b", 3), shop("c", 4)])
    cut = TopicPartition("shops", 0, 4)
    admin(bootstrap).delete_records([cut])[cut].result(15)
    assert numbers(reader.run()) == {"c": 4}
    assert "records were deleted before they were read" in caplog.text


def test_a_topic_recreated_with_more_partitions_is_read_whole(bootstrap: str, reader: Reader) -> None:
    send(bootstrap, [shop("a", 1)])
    reader.start()
    reader.run()
    client = admin(bootstrap)
    client.delete_topics(["shops"])["shops"].result(10)
    wait_until(lambda: "shops" not in partition_counts(client, bootstrap))
    create(bootstrap, replace(SHOPS, partitions=5))
    send(bootstrap, [shop(f"k{p}", p, p) for p in range(5)])
    assert numbers(reader.run()) == {f"k{p}": p for p in range(5)}


def test_the_table_folder_of_another_stream_is_not_used(
    bootstrap: str, reader: Reader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other has read further, and its dead letters are written: by the other."""
    other = Reader(bootstrap, tmp_path, replace(STREAM, name="other"))
    send(bootstrap, [shop("a", 1)])
    reader.start()
    reader.run()
    reader.stop()
    send(bootstrap, [Record("shops", "a", "rubbish", 0), shop("b", 2)])
    other.start()
    other.run()
    other.stop()
    shutil.rmtree(reader.folder)
    shutil.copytree(other.folder, reader.folder)
    reader.start()
    assert numbers(reader.run()) == {"a": 1, "b": 2}
    assert (other.dead, reader.dead) == ([("0", "1")], [("0", "1")])
    assert "its folder is of stream other" in caplog.text


KEYS = ["", "a", "ä", "\U0001f600", "a\x00b", "NaN", "null", "-0", "x" * 70_000, *(f"k{n}" for n in range(12))]


def change(chance: random.Random) -> Record:
    key, n = chance.choice(KEYS), chance.randrange(1000)
    note = chance.choice([None, "", "z" * 100_000, "ü"])
    value = chance.choice(
        [json.dumps({"n": n, "note": note}), json.dumps({"n": n}), None, None, "{}", "no", "null", ""]
    )
    return Record("shops", key, value, sum(key.encode()) % 2)


def expected(bootstrap: str, ends: dict[int, int]) -> tuple[dict[str, Any], set[tuple[str, str]]]:
    """The table at some offsets, and the places of dead letters below them: by a dict and json, nothing else."""
    table: dict[str, Any] = {}
    dead = set()
    for r in sorted(read(bootstrap, "shops"), key=lambda r: (r.partition, r.offset)):
        if r.offset >= ends[r.partition]:
            continue
        assert r.key is not None
        if r.value is None:
            table.pop(r.key, None)
        elif not r.value.startswith('{"n"'):
            dead.add((str(r.partition), str(r.offset)))
        else:
            table[r.key] = {"note": None, **json.loads(r.value)}
    return table, dead


def missing(file: Path, _: random.Random) -> None:
    file.unlink()


def empty(file: Path, _: random.Random) -> None:
    file.write_bytes(b"")


def cut(file: Path, _: random.Random) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flipped(file: Path, chance: random.Random) -> None:
    held = bytearray(file.read_bytes())
    held[chance.randrange(len(held))] ^= 1 << chance.randrange(8)
    file.write_bytes(held)


def folder_gone(file: Path, _: random.Random) -> None:
    shutil.rmtree(file.parent)


def left_over(file: Path, _: random.Random) -> None:
    (file.parent / "0-left.arrow").write_bytes(b"half")
    (file.parent / f"{MANIFEST}.fresh").write_bytes(b"{")
    (file.parent / "lost+found").mkdir(exist_ok=True)


def nothing(_file: Path, _: random.Random) -> None:
    pass


@pytest.mark.parametrize("seed", range(2))
def test_a_batch_sees_the_newest_row_of_each_key_whatever_happens_to_the_folder(
    bootstrap: str, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # The oracle needs what compaction would take.
    create(bootstrap, replace(SHOPS, config={"min.compaction.lag.ms": "3600000"}))
    chance = random.Random(seed)
    monkeypatch.setattr(topic_reader, "BATCH_ROWS", 20)
    harms = [missing, empty, cut, flipped, folder_gone, left_over, nothing]
    old = tmp_path / "old"
    for _ in range(6):
        send(bootstrap, [change(chance) for _ in range(chance.randrange(1, 40))])
        reader.start()
        for _ in range(chance.randrange(1, 4)):
            found = reader.run()
            table, dead = expected(bootstrap, dict(TableManifest.read(reader.folder).next_offsets))
            assert found == table
            assert sorted(reader.dead) == sorted(dead)
            send(bootstrap, [change(chance) for _ in range(chance.randrange(3))])
        reader.stop()
        if old.exists() and chance.random() < 0.2:
            shutil.rmtree(reader.folder)
            shutil.move(old, reader.folder)
        elif chance.random() < 0.3:
            shutil.rmtree(old, ignore_errors=True)
            shutil.copytree(reader.folder, old)
        chance.choice(harms)(chance.choice([p for p in reader.folder.iterdir() if p.is_file()]), chance)
