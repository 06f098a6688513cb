"""Reads commit markers without a writer, so that no running stream is fenced."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from penstock.errors import BrokerError
from penstock.kafka.admin import (
    LARGE_FETCH,
    TIMEOUT,
    admin,
    all_end_offsets,
    end_offsets,
    first_offsets,
    log_end_offsets,
    partition_counts,
)
from penstock.kafka.client import assign, client_config, reader_config
from penstock.kafka.dead_letters import open_consumer, read_range
from penstock.kafka.transactions import marker_partition
from penstock.model.output import NO_COMMIT, CommitMarker
from penstock.model.topic import COMMITS

TopicAndPartition = tuple[str, int]
# Seconds to wait for an open transaction; the broker aborts that of a dead driver before.
OPEN_TRANSACTION_TIMEOUT = 60.0


def read_commit_marker(stream: str, bootstrap: str) -> CommitMarker:
    """Returns a stream's last commit marker, NO_COMMIT if there is none. BrokerError as `read_marker_value`."""
    value = read_marker_value(stream, bootstrap)
    return NO_COMMIT if value is None else CommitMarker.read(value)


def read_marker_value(name: str, bootstrap: str) -> bytes | None:
    """Returns the value of the last commit marker with a key; None if there is none.

    Raises:
        BrokerError: the topic cannot be read, or an open transaction does not end.
    """
    client = admin(bootstrap)
    if COMMITS.name not in partition_counts(client, bootstrap):
        return None
    partition = (COMMITS.name, marker_partition(COMMITS, name))
    end = stable_end_offsets([partition], bootstrap, "the topic of commit markers")[partition]
    first = first_offsets(client, [partition], bootstrap).get(partition, 0)
    marker = None
    with open_consumer(bootstrap) as reader:
        for message in read_range(reader, *partition, first, end):
            key, value = message.key(), message.value()
            if key == name.encode():
                marker = value if isinstance(value, bytes) else None
    return marker


class CommitMarkerReader:
    """Follows the commit markers of some writers, or of all (names None). Not thread-safe."""

    def __init__(self, bootstrap: str, names: Collection[str] | None) -> None:
        self._bootstrap, self._names = bootstrap, names
        self._positions: dict[TopicAndPartition, int] = {}
        self._values: dict[str, bytes] = {}
        self._reader: Consumer | None = None
        self.may_be_hidden = False
        """Whether the first marker of a writer may be in an open transaction."""

    def read(self) -> Mapping[str, bytes]:
        """Returns the newest committed marker of each writer. BrokerError if a partition cannot be read."""
        client = admin(self._bootstrap)
        count = partition_counts(client, self._bootstrap).get(COMMITS.name, 0)
        marker_partitions = (
            range(count) if self._names is None else {marker_partition(COMMITS, name) for name in self._names}
        )
        partitions = {(COMMITS.name, p) for p in marker_partitions if p < count}
        ends = all_end_offsets(client, partitions, self._bootstrap)
        # A recreated topic is read from its first offset.
        self._positions = {
            partition: position
            for partition, position in self._positions.items()
            if position <= ends.get(partition, position)
        }
        self._read_to({partition: end for partition, end in ends.items() if end > self._positions.get(partition, 0)})
        first = {
            (COMMITS.name, marker_partition(COMMITS, name)) for name in set(self._names or ()) - self._values.keys()
        } & ends.keys()
        logs = log_end_offsets(client, first, self._bootstrap) if first else {}
        self.may_be_hidden = any(p not in logs or logs[p] > ends[p] for p in first)
        return self._values

    def _read_to(self, ends: dict[TopicAndPartition, int]) -> None:
        if not ends:
            return
        reader = self._reader = self._reader or Consumer(
            {**LARGE_FETCH, **reader_config(self._bootstrap, "penstock.marks")}
        )
        try:
            assign(reader, [TopicPartition(*partition, self._positions.get(partition, 0)) for partition in ends])
            while ends:
                message = reader.poll(TIMEOUT)
                if message is None:
                    raise BrokerError(f"topic {COMMITS.name} cannot be read", got=f"no answer for {TIMEOUT:g} s")
                partition, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
                if (error := message.error()) and error.code() != KafkaError._PARTITION_EOF:
                    raise BrokerError(f"topic {COMMITS.name} cannot be read", got=error)
                if error:
                    ends.pop(partition, None)
                    self._positions[partition] = offset
                    continue
                self._positions[partition] = offset + 1
                self._keep(message)
            reader.unassign()
        except KafkaException as e:
            raise BrokerError(f"topic {COMMITS.name} cannot be read", got=e.args[0]) from e

    def _keep(self, message: Message) -> None:
        key, value = message.key(), message.value()
        name = key.decode(errors="replace") if isinstance(key, bytes) else ""
        if self._names is not None and name not in self._names:
            return
        if isinstance(value, bytes):
            self._values[name] = value
        else:
            self._values.pop(name, None)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def delete_commit_marker(stream: str, bootstrap: str) -> None:
    """Writes a tombstone for a stream's commit marker, so that a stream of this name starts anew."""
    errors: list[object] = []
    producer = Producer({**client_config(bootstrap), "log_level": 2})
    producer.produce(
        COMMITS.name,
        key=stream.encode(),
        partition=marker_partition(COMMITS, stream),
        on_delivery=lambda e, _: errors.append(e) if e else None,
    )
    if producer.flush(TIMEOUT) or errors:
        got = errors[0] if errors else "no answer"
        raise BrokerError(f"the commit marker of {stream} was not removed", got=got, hint="remove its checkpoint again")


def stable_end_offsets(
    partitions: Iterable[TopicAndPartition], bootstrap: str, subject: str
) -> dict[TopicAndPartition, int]:
    """Waits until committed readers reach the present log ends, and returns these.

    Args:
        places: topics and partitions.
        bootstrap: the brokers.
        what: the subject of the error message.

    Raises:
        BrokerError: an open transaction does not end, or a partition has no leader.
    """
    deadline = time.monotonic() + OPEN_TRANSACTION_TIMEOUT
    pending, ends = set(partitions), dict[TopicAndPartition, int]()
    while True:
        client = admin(bootstrap)
        if missing := pending - ends.keys():
            ends |= log_end_offsets(client, missing, bootstrap)
        stable = end_offsets(client, pending, bootstrap)
        behind = [
            partition
            for partition in sorted(pending)
            if partition not in ends or stable.get(partition, -1) < ends[partition]
        ]
        if not behind:
            return ends
        if time.monotonic() > deadline:
            partition = behind[0]
            raise BrokerError(
                f"{subject} cannot be read",
                got=f"{partition[0]}[{partition[1]}] "
                + (
                    f"has an open transaction at {stable.get(partition)}, and ends at {ends[partition]}"
                    if partition in ends
                    else "has no leader"
                ),
                hint="try again when the partition has a leader and the transaction has ended "
                "(kafka-transactions.sh list, abort)",
            )
        time.sleep(0.1)
