"""Which partition a key is in, which instances keep a partition, and which of them answers for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SEED, M = 0x9747B28C, 0x5BD1E995
MASK = 0xFFFFFFFF
# Of longer keys there are few in a batch.
LONG = 256


def murmur2(key: bytes) -> int:
    """The hash by which Kafka's Java clients place a key, as Penstock's own writers do; positive."""
    length = len(key)
    h = (SEED ^ length) & MASK
    aligned = length & ~3
    for at in range(0, aligned, 4):
        k = int.from_bytes(key[at : at + 4], "little") * M & MASK
        k = (k ^ k >> 24) * M & MASK
        h = h * M & MASK ^ k
    if tail := key[aligned:]:
        h = (h ^ int.from_bytes(tail, "little")) * M & MASK
    h = (h ^ h >> 13) * M & MASK
    return (h ^ h >> 15) & 0x7FFFFFFF


def partition_of(key: str, count: int) -> int:
    return murmur2(key.encode()) % count


def partitions_of(keys: pa.Array[Any] | pa.ChunkedArray[Any], count: int) -> npt.NDArray[np.int64]:
    """The partitions of many keys, in columns."""
    binary = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    binary = binary.cast(pa.large_binary())
    _, ends, text = binary.buffers()
    assert ends is not None
    offsets = np.frombuffer(memoryview(ends), np.int64, len(binary) + 1, binary.offset * 8)
    data = np.frombuffer(memoryview(text) if text is not None else b"", np.uint8)
    lengths = offsets[1:] - offsets[:-1]
    hashes = np.empty(len(binary), np.int64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if length > LONG:
            hashes[rows] = [murmur2(binary[row].as_py()) for row in rows.tolist()]
        else:
            hashes[rows] = _hashed(data[offsets[rows][:, None] + np.arange(length)], length)
    return hashes % count


def _hashed(keys: npt.NDArray[np.uint8], length: int) -> npt.NDArray[np.int64]:
    """`murmur2` of keys of one length, a row each."""
    m, aligned = np.uint32(M), length & ~3
    h = np.full(len(keys), (SEED ^ length) & MASK, np.uint32)
    words = np.ascontiguousarray(keys[:, :aligned]).view("<u4") if aligned else np.empty((len(keys), 0), np.uint32)
    for column in range(words.shape[1]):
        k = words[:, column] * m
        k = (k ^ k >> np.uint32(24)) * m
        h = h * m ^ k
    if tail := length - aligned:
        last = np.zeros(len(keys), np.uint32)
        for n in range(tail):
            last |= keys[:, aligned + n].astype(np.uint32) << np.uint32(8 * n)
        h = (h ^ last) * m
    h = (h ^ h >> np.uint32(13)) * m
    return ((h ^ h >> np.uint32(15)) & np.uint32(0x7FFFFFFF)).astype(np.int64)


def smaller_count(keys: Sequence[tuple[str, int]], count: int) -> int | None:
    """Fewer partitions than `count` with which each of these keys would be in its partition; None if there is none."""
    hashes = [(murmur2(key.encode()), partition) for key, partition in keys]
    return next((c for c in range(count - 1, 0, -1) if all(p < c and h % c == p for h, p in hashes)), None)


def assigned_partitions(instance: int, count: int, instances: int, standby: int) -> list[int]:
    """The partitions that an instance has a copy of. instance: from 1; standby: number of standby copies."""
    copies = min(standby + 1, instances)
    return [p for p in range(count) if _rank(instance, p, instances) < copies]


def owner_order(partition: int, having: Iterable[int], instances: int) -> list[int]:
    """The instances that have a partition, in the order in which they own it."""
    return sorted(having, key=lambda instance: (_rank(instance, partition, instances), instance))


def _rank(instance: int, partition: int, instances: int) -> int:
    return (instance - 1 - partition) % instances
