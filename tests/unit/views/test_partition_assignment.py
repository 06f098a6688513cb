"""Where a key lies, who keeps a partition and who answers for it."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock.views.cluster.partition_assignment import (
    assigned_partitions,
    murmur2,
    owner_order,
    partition_of,
    partitions_of,
)


# As Kafka's own tests have them (UtilsTest.testMurmur2), positive.
@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_keys_are_hashed_as_kafka_hashes_them(key: str, found: int) -> None:
    assert murmur2(key.encode()) == found & 0x7FFFFFFF


def test_many_keys_are_hashed_as_one_is() -> None:
    draw = random.Random(17)
    keys = ["", "ü", "a" * 300, "é" * 129] + [
        "".join(draw.choices("abcä0😀/", k=draw.randrange(40))) for _ in range(2000)
    ]
    array = pa.chunked_array([pa.array(keys[:7]), pa.array(keys[3:]).slice(4)])
    assert partitions_of(array, 12).tolist() == [partition_of(key, 12) for key in keys]
    assert partitions_of(pa.array([], pa.string()), 12).tolist() == []


@pytest.mark.parametrize(("instances", "standby", "copies"), [(1, 0, 1), (2, 0, 1), (2, 1, 2), (3, 1, 2), (2, 5, 2)])
@pytest.mark.parametrize("count", [1, 4, 13])
def test_each_partition_has_its_copies(count: int, instances: int, standby: int, copies: int) -> None:
    plan = {n: assigned_partitions(n, count, instances, standby) for n in range(1, instances + 1)}
    having = {p: [n for n, kept in plan.items() if p in kept] for p in range(count)}
    assert all(len(found) == copies for found in having.values())
    owned = [owner_order(p, found, instances)[0] for p, found in having.items()]
    assert max(owned.count(n) for n in plan) - min(owned.count(n) for n in plan) <= 1


def test_the_next_instance_follows_an_owner_that_is_away() -> None:
    assert owner_order(0, [1, 2, 3], 3) == [1, 2, 3]
    assert owner_order(1, [1, 2, 3], 3) == [2, 3, 1]
    assert owner_order(1, [3, 1], 3) == [3, 1]
