"""Records of a topic as the operator page reads them: the newest, or those of a key in its partition."""

from __future__ import annotations

import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.monitoring.dashboard import records
from penstock.monitoring.dashboard.records import read_records
from penstock.streams import Topic
from penstock.testing import Record, create, send
from penstock.views.cluster.partition_assignment import partition_of

pytestmark = pytest.mark.integration
TOTALS = Topic("totals", partitions=3)


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, TOTALS)
    rows = [(f"shop-{n % 7}", f"row {n}") for n in range(70)]
    send(
        fresh_broker.bootstrap,
        [
            Record(TOTALS.name, key, value, partition_of(key, 3), timestamp=1_700_000_000_000 + n)
            for n, (key, value) in enumerate(rows)
        ],
    )
    return fresh_broker.bootstrap


def test_the_newest_records_of_all_partitions_are_shown(bootstrap: str) -> None:
    found = read_records(bootstrap, TOTALS.name)
    assert (found.partitions, found.partition) == (3, None)
    assert [one["value"] for one in found.records] == [f"row {n}" for n in range(69, 49, -1)]
    assert read_records(bootstrap, "no-such-topic") == records.TopicRecords("no-such-topic", 0, [])


def test_a_key_is_searched_in_its_partition_and_says_how_far(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_records(bootstrap, TOTALS.name, "shop-3")
    assert [one["value"] for one in found.records] == [f"row {n}" for n in range(66, 0, -7)]
    assert (found.partition, found.begin, found.first) == (partition_of("shop-3", 3), 0, 0)
    assert {one["partition"] for one in found.records} == {found.partition}
    monkeypatch.setattr(records, "KEY_BACK", 8)
    monkeypatch.setattr(records, "CHUNK", 3)
    bounded = read_records(bootstrap, TOTALS.name, "shop-3")
    assert bounded.begin == bounded.end - 8 > 0
    assert bounded.records == found.records[: len(bounded.records)]
    assert not read_records(bootstrap, TOTALS.name, "shop").records, "a part of a key is no key"
