"""The mark of what a stream has written, read beside its writer: that one is not fenced."""

from __future__ import annotations

import time

from confluent_kafka import Producer

from penstock.declare.outputs import NOTHING, Mark
from penstock.declare.topic import COMMITS
from penstock.errors import BrokerError
from penstock.kafka.admin import TIMEOUT, admin, end_offsets, first_offsets, log_ends, partitions
from penstock.kafka.letters import between, consumer
from penstock.kafka.transactions import mark_partition

# Seconds; the broker ends a transaction whose driver died in less.
PATIENCE = 60.0


def mark_of(stream: str, bootstrap: str) -> Mark:
    """The mark of the last batch of a stream that is written; NOTHING if there is none.

    BrokerError if what is written to the topic of marks does not end, or cannot be read.
    """
    client = admin(bootstrap)
    if COMMITS.name not in partitions(client, bootstrap):
        return NOTHING
    place = (COMMITS.name, mark_partition(COMMITS, stream))
    end = _whole(place, bootstrap)
    first = first_offsets(client, [place], bootstrap).get(place, 0)
    found = NOTHING
    with consumer(bootstrap) as reader:
        for message in between(reader, *place, first, end):
            key, value = message.key(), message.value()
            if key == stream.encode():
                found = Mark.read(value) if isinstance(value, bytes) else NOTHING
    return found


def forget_mark(stream: str, bootstrap: str) -> None:
    """Leave nothing of what a stream that is gone has written: one of its name begins anew. BrokerError if it fails."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    producer.produce(
        COMMITS.name,
        key=stream.encode(),
        partition=mark_partition(COMMITS, stream),
        on_delivery=lambda e, _: failed.append(e) if e else None,
    )
    if producer.flush(TIMEOUT) or failed:
        got = failed[0] if failed else "no answer"
        raise BrokerError(f"the mark of {stream} was not removed", got=got, fix="remove its checkpoint once more")


def _whole(place: tuple[str, int], bootstrap: str) -> int:
    """Where a partition ends, once a committed reader comes as far: another's open transaction may hide a mark."""
    deadline = time.monotonic() + PATIENCE
    client, end, read = admin(bootstrap), None, -1
    while True:
        end = log_ends(client, [place], bootstrap).get(place) if end is None else end
        read = end_offsets(client, [place], bootstrap).get(place, -1)
        if end is not None and read >= end:
            return end
        if time.monotonic() > deadline:
            raise BrokerError(
                "the mark of what is written cannot be read",
                got=f"{place[0]}[{place[1]}] "
                + ("has no leader" if end is None else f"has an open transaction at {read}, and ends at {end}"),
                fix="try again when the broker is well and the producer of that transaction has ended "
                "(kafka-transactions.sh list, abort)",
            )
        time.sleep(0.1)
