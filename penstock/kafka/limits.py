"""Records to be produced, and the size limits of topics, so that oversized records are found before they are sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kafka.admin import topic_configs

MAX_MESSAGE_BYTES = "max.message.bytes"
# Bytes of a batch with one record beside its key, value and headers, and of a header beside name and value.
RECORD_OVERHEAD, HEADER_OVERHEAD = 512, 12
# Bytes of the headers of a row, which are a trace context, at most.
MAX_ROW_HEADERS = 640
# Arrow's LZ4 and librdkafka's differ by less than 100 bytes per megabyte.
COMPRESSION_MARGIN = 1.005
# Values of `compression.type` with which the broker keeps batches as sent; with others it recompresses them.
KEEPS_COMPRESSION = {"producer", "lz4"}


class ProducerRecord(NamedTuple):
    """A record to be produced.

    Attributes:
        key: None for no key.
        value: None for a tombstone.
        headers: name and value of each.
        partition: -1 lets the partitioner choose.
        timestamp: epoch ms, 0 for now.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = -1
    timestamp: int = 0

    @property
    def size(self) -> int:
        """Bytes as sent, without compression, frame included."""
        size = len(self.key or b"") + len(self.value or b"") + RECORD_OVERHEAD
        for name, value in self.headers:
            size += len(name) + len(value or b"") + HEADER_OVERHEAD
        return size


def record_digest(key: bytes | None, value: bytes | None) -> str:
    """Returns the SHA-256 of `<key length>:<value length>:` (-1 for none), key and value: unambiguous."""
    lengths = (-1 if of is None else len(of) for of in (key, value))
    return hashlib.sha256(b"%d:%d:" % tuple(lengths) + (key or b"") + (value or b"")).hexdigest()


def producer_timestamp(timestamp: int) -> int:
    """Returns the timestamp with which to write a record again, epoch ms: 0, which means now, if it has none (below 0).

    A producer takes 0 for now, so timestamp 0 becomes 1.
    """
    return max(1, timestamp) if timestamp >= 0 else 0


Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True)
class ProducerBatch:
    """Records of one topic, in columns of the same length.

    Attributes:
        topic: its name.
        keys: the keys.
        values: the values.
        headers: yields the headers of each record; created lazily, since the garbage collector visits every live list.
        timestamps: epoch ms.
        sizes: bytes as `ProducerRecord.size`, or slightly more.
    """

    topic: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Callable[[], Iterator[Headers]]
    timestamps: Sequence[int]
    sizes: npt.NDArray[np.int64]

    def records(self) -> Iterator[ProducerRecord]:
        for key, value, headers, at in zip(self.keys, self.values, self.headers(), self.timestamps, strict=True):
            yield ProducerRecord(
                self.topic, key, value, cast("tuple[tuple[str, bytes | None], ...]", tuple(headers)), timestamp=at
            )

    def larger_than(self, size: int) -> Iterator[ProducerRecord]:
        """Yields the records of more bytes."""
        is_larger = self.sizes > size
        return compress(self.records(), is_larger.tolist()) if is_larger.any() else iter(())


@dataclass(frozen=True)
class SizeLimit:
    """The largest record batch that a topic accepts.

    Attributes:
        topic: its name.
        max_bytes: `max.message.bytes`.
        compressed: whether the size is measured as sent, in LZ4.
    """

    topic: str
    max_bytes: int = 1_048_588
    compressed: bool = True

    def accepts(self, message: ProducerRecord) -> bool:
        size = message.size
        if size <= self.max_bytes:
            return True
        if not self.compressed:
            return False
        packed = pa.compress((message.key or b"") + (message.value or b""), codec="lz4", asbytes=True)
        return (
            size - len(message.key or b"") - len(message.value or b"") + len(packed) * COMPRESSION_MARGIN
            <= self.max_bytes
        )

    def may_exceed(self, rows: pa.Table) -> bool:
        """Whether a row may be too large with its headers; columns `key`, `value`, `headers`."""
        longest = sum(pc.max(pc.binary_length(rows[name])).as_py() or 0 for name in ("key", "value"))
        return bool(longest + RECORD_OVERHEAD + MAX_ROW_HEADERS > self.max_bytes)

    def oversized_rows(self, rows: pa.Table) -> dict[int, int]:
        """Returns the bytes of the rows that the topic rejects, by row number; columns `key`, `value`."""
        lengths = [pc.fill_null(pc.binary_length(rows[name]).cast(pa.int64()), 0) for name in ("key", "value")]
        sizes = pc.add(*lengths)
        if not len(rows) or pc.max(sizes).as_py() + RECORD_OVERHEAD <= self.max_bytes:
            return {}
        keys, values = (rows[name].to_pylist() for name in ("key", "value"))
        oversized = {}
        for row, (size, key, value) in enumerate(zip(sizes.to_pylist(), keys, values, strict=True)):
            if size + RECORD_OVERHEAD > self.max_bytes and not self.accepts(
                ProducerRecord(self.topic, as_bytes(key), as_bytes(value))
            ):
                oversized[row] = size
        return oversized

    def truncate(self, message: ProducerRecord) -> ProducerRecord:
        """Truncates key and value, and leaves large headers out, until the topic accepts the record.

        The headers that begin with `penstock.` stay, unless one is large: anybody may write such headers. Further ones
        state the original size and digest of key and value.
        """
        if self.accepts(message):
            return message
        key, value = message.key or b"", message.value or b""
        # They take at most a quarter, as the key does.
        most = self.max_bytes // 4
        own = [(name, data) for name, data in message.headers
               if not name.startswith("penstock.") or len(data or b"") > most]  # fmt: skip
        leaves_out = ProducerRecord(message.topic, None, None, tuple(own)).size - RECORD_OVERHEAD > most
        headers = (
            *(header for header in message.headers if not (leaves_out and header in own)),
            ("penstock.size", str(len(key) + len(value)).encode()),
            ("penstock.sha256", record_digest(message.key, message.value).encode()),
            ("penstock.cut", b"key, value, headers"),
        )
        whole = message._replace(headers=(*headers[:-1], ("penstock.cut", b"headers")))
        if leaves_out and self.accepts(whole):
            return whole
        room = max(0, self.max_bytes - ProducerRecord(message.topic, None, None, headers).size)
        # A key takes at most a quarter.
        short_key = key[: room // 4] if len(key) > room // 4 else key
        short_value = value[: room - len(short_key)]
        names = ", ".join(
            name
            for name, is_cut in (("key", key != short_key), ("value", value != short_value), ("headers", leaves_out))
            if is_cut
        )
        return message._replace(
            key=None if message.key is None else short_key,
            value=None if message.value is None else short_value,
            headers=(*headers[:-1], ("penstock.cut", names.encode())),
        )


def size_limits(topics: Iterable[str], bootstrap: str) -> dict[str, SizeLimit]:
    """Returns the size limits of the topics that exist."""
    return {
        name: SizeLimit(name, int(config[MAX_MESSAGE_BYTES]), config["compression.type"] in KEEPS_COMPRESSION)
        for name, config in topic_configs(topics, bootstrap).items()
    }


def as_bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
