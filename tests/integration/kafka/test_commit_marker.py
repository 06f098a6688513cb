"""Marks on a real broker: they say by offsets what is written, and are found wherever they lie."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from penstock.devstack.servers.kafka import Broker
from penstock.errors import BrokerError
from penstock.kafka import admin as kafka_admin
from penstock.kafka import commit_marker
from penstock.kafka.commit_marker import CommitMarkerReader, delete_commit_marker, read_commit_marker
from penstock.kafka.topic_writer import TopicWriter
from penstock.model.output import CommitMarker
from penstock.model.topic import COMMITS
from penstock.streams import Topic, TopicOutput
from penstock.testing import create

pytestmark = pytest.mark.integration

OUT = Topic("out", partitions=1)


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, OUT, COMMITS)
    return fresh_broker.bootstrap


def test_a_mark_behind_the_open_transaction_of_another_is_found(bootstrap: str) -> None:
    other = Producer({"bootstrap.servers": bootstrap, "transactional.id": "other", "log_level": 2})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(COMMITS.name, key=b"other", value=b"{}", partition=zlib.crc32(b"mine") % COMMITS.partitions)
    other.flush(30)
    writer = TopicWriter("mine", "penstock.mine", bootstrap, [TopicOutput(OUT, key="key", value="value")])
    writer.write({OUT.name: pa.table({"key": ["k"], "value": ["1"]})}, CommitMarker("q", 0, {"in": {0: 1}}))
    writer.close()
    mine, every = CommitMarkerReader(bootstrap, ("mine",)), CommitMarkerReader(bootstrap, None)
    assert (mine.read(), mine.may_be_hidden, every.read()) == ({}, True, {})
    later = TopicWriter("mine", "penstock.mine", bootstrap, [TopicOutput(OUT, key="key", value="value")])
    ending = threading.Timer(1.5, other.commit_transaction)
    since = time.monotonic()
    ending.start()
    assert later.committed().batch == 0
    assert time.monotonic() - since > 1, "it waited for the transaction's end"
    ending.join()
    assert (CommitMarker.read(mine.read()["mine"]).batch, mine.may_be_hidden, set(every.read())) == (
        0,
        False,
        {"mine", "other"},
    )
    other.begin_transaction()
    other.produce(COMMITS.name, key=b"other", value=b"{}", partition=zlib.crc32(b"mine") % COMMITS.partitions)
    other.flush(30)
    later.write({}, CommitMarker("q", 1, {"in": {0: 2}}))
    ending = threading.Timer(1.5, other.commit_transaction)
    since = time.monotonic()
    ending.start()
    assert read_commit_marker("mine", bootstrap) == CommitMarker("q", 1, {"in": {0: 2}})
    assert time.monotonic() - since > 1, "it waited for the transaction's end"
    ending.join()
    # Nobody is fenced by a look.
    later.write({}, CommitMarker("q", 2, {"in": {0: 3}}))
    assert (read_commit_marker("mine", bootstrap).batch, read_commit_marker("nobody", bootstrap).batch) == (2, -1)
    later.close()
    assert [CommitMarker.read(marks.read()["mine"]).batch for marks in (mine, every)] == [2, 2]
    delete_commit_marker("mine", bootstrap)
    assert (mine.read(), set(every.read())) == ({}, {"other"})
    for marks in (mine, every):
        marks.close()
    other.close()


def test_a_partition_without_a_leader_may_hold_any_marker(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = kafka_admin._offsets
    mine = zlib.crc32(b"mine") % COMMITS.partitions

    def without_mine(client: AdminClient, partitions: Iterable[tuple[str, int]], *of: Any) -> dict[Any, int]:
        return {place: at for place, at in offsets(client, partitions, *of).items() if place[1] != mine}

    monkeypatch.setattr(kafka_admin, "_offsets", without_mine)
    for names in (("mine",), None):
        with (
            closing(CommitMarkerReader(bootstrap, names)) as markers,
            pytest.raises(BrokerError, match=f"partition {mine} has no leader"),
        ):
            markers.read()
    monkeypatch.undo()
    with closing(CommitMarkerReader(bootstrap, ("mine",))) as markers:
        monkeypatch.setattr(commit_marker, "log_end_offsets", lambda *_: {})
        assert (markers.read(), markers.may_be_hidden) == ({}, True)
