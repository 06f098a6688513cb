"""A table of a stream whose loading takes longer than its topic keeps tombstones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from penstock.engine.query import tables
from penstock.engine.query.tables import BatchIdentity, StreamTable
from penstock.errors import BrokerError
from penstock.streams import Table, Topic
from penstock.tables import topic_snapshot
from penstock.tables.topic_reader import TableDecoder, TopicBatch
from penstock.tables.topic_snapshot import TopicSnapshot

SHOPS = Table(Topic("shops", compacted=True), schema="n INT")
KEPT_MS = 60_000


class Broker:
    """A topic of one partition, and a clock that only reading moves. takes: seconds of it."""

    def __init__(self) -> None:
        self.at, self.end, self.takes, self.begun = 1_700_000_000.0, 2, 0.0, list[int]()

    def time(self) -> float:
        return self.at

    def look(self, *_: object) -> TopicSnapshot:
        return TopicSnapshot("id", {0: 0}, {0: self.end}, {0: self.end}, int(self.at * 1000))

    def feed(self, _: object, __: object, start: Mapping[int, int]) -> Broker:
        self.begun.append(start[0])
        self.next_offsets = dict(start)
        return self

    def read_to(self, ends: Mapping[int, int], _: Callable[[], bool]) -> Iterator[TopicBatch]:
        self.at += self.takes if self.next_offsets[0] < ends[0] else 0
        self.next_offsets = {0: ends[0]}
        yield TableDecoder(SHOPS).decode([(b"a", b'{"n":1}', 0, ends[0] - 1)], dict(ends))

    def close(self) -> None:
        pass


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(tables, "take_snapshot", made.look)
    monkeypatch.setattr(tables, "TopicReader", made.feed)
    monkeypatch.setattr(topic_snapshot, "time", made)
    monkeypatch.setattr(topic_snapshot, "topic_config", lambda *_: str(KEPT_MS))
    return made


def load(folder: Path) -> StreamTable:
    made = StreamTable(SHOPS, "naming", folder, "")
    if (now := made.open()) is not None:
        made.catch_up(now, lambda: False, lambda: None)
    return made


def advance(table: StreamTable, batch: int) -> None:
    table.advance(BatchIdentity("q", batch), lambda: False, lambda _: None)


def test_a_table_that_is_loaded_too_slowly_is_not_used_and_is_read_anew(broker: Broker, tmp_path: Path) -> None:
    """A key whose tombstone has gone before the reading came to it would stay for ever."""
    broker.takes = 61
    for tries in (1, 2):
        with pytest.raises(BrokerError, match=r"longer than its tombstones are kept.*delete.retention.ms=60000"):
            load(tmp_path)
        assert broker.begun == [0] * tries
    broker.takes = 59
    table = load(tmp_path)
    advance(table, 0)
    assert broker.begun == [0, 0, 0]


def test_a_table_that_is_brought_up_to_date_too_slowly_is_read_anew(broker: Broker, tmp_path: Path) -> None:
    table = load(tmp_path)
    advance(table, 0)
    broker.end, broker.takes = 5, 61
    with pytest.raises(BrokerError, match="longer than its tombstones are kept"):
        advance(table, 1)
    broker.takes = 0
    advance(load(tmp_path), 1)
    assert broker.begun == [0, 0]


def test_a_table_of_a_topic_that_nobody_writes_is_not_read_anew(broker: Broker, tmp_path: Path) -> None:
    advance(load(tmp_path), 0)
    broker.at += 1_000_000
    advance(load(tmp_path), 1)
    assert broker.begun == [0, 2]
