"""The mark of what a stream has written, read beside its writer: that one is not fenced."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import Producer

from penstock.declare.outputs import NOTHING, Mark
from penstock.declare.topic import COMMITS
from penstock.errors import BrokerError
from penstock.kafka.admin import TIMEOUT, admin, end_offsets, first_offsets, log_ends, partitions
from penstock.kafka.connection import connection
from penstock.kafka.letters import between, consumer
from penstock.kafka.transactions import mark_partition

Place = tuple[str, int]
# Seconds; the broker ends a transaction whose driver died in less.
PATIENCE = 60.0


def mark_of(stream: str, bootstrap: str) -> Mark:
    """The mark of the last batch of a stream that is written; NOTHING if there is none. BrokerError as `newest`."""
    found = newest(stream, bootstrap)
    return NOTHING if found is None else Mark.read(found)


def newest(name: str, bootstrap: str) -> bytes | None:
    """The mark that was last written under a name; None if there is none.

    BrokerError if what is written to the topic of marks does not end, or cannot be read.
    """
    client = admin(bootstrap)
    if COMMITS.name not in partitions(client, bootstrap):
        return None
    place = (COMMITS.name, mark_partition(COMMITS, name))
    end = settled([place], bootstrap, "the mark of what is written")[place]
    first = first_offsets(client, [place], bootstrap).get(place, 0)
    found = None
    with consumer(bootstrap) as reader:
        for message in between(reader, *place, first, end):
            key, value = message.key(), message.value()
            if key == name.encode():
                found = value if isinstance(value, bytes) else None
    return found


def forget_mark(stream: str, bootstrap: str) -> None:
    """Leave nothing of what a stream that is gone has written: one of its name begins anew. BrokerError if it fails."""
    failed: list[object] = []
    producer = Producer({**connection(bootstrap), "log_level": 2})
    producer.produce(
        COMMITS.name,
        key=stream.encode(),
        partition=mark_partition(COMMITS, stream),
        on_delivery=lambda e, _: failed.append(e) if e else None,
    )
    if producer.flush(TIMEOUT) or failed:
        got = failed[0] if failed else "no answer"
        raise BrokerError(f"the mark of {stream} was not removed", got=got, fix="remove its checkpoint once more")


def settled(places: Iterable[Place], bootstrap: str, what: str) -> dict[Place, int]:
    """Where partitions end now, once a committed reader comes as far: another's open transaction may hide a record.

    what: is read, for messages.
    """
    deadline = time.monotonic() + PATIENCE
    wanted, ends = set(places), dict[Place, int]()
    while True:
        client = admin(bootstrap)
        if missing := wanted - ends.keys():
            ends |= log_ends(client, missing, bootstrap)
        read = end_offsets(client, wanted, bootstrap)
        late = [place for place in sorted(wanted) if place not in ends or read.get(place, -1) < ends[place]]
        if not late:
            return ends
        if time.monotonic() > deadline:
            place = late[0]
            raise BrokerError(
                f"{what} cannot be read",
                got=f"{place[0]}[{place[1]}] "
                + (
                    f"has an open transaction at {read.get(place)}, and ends at {ends[place]}"
                    if place in ends
                    else "has no leader"
                ),
                fix="try again when the broker is well and the producer of that transaction has ended "
                "(kafka-transactions.sh list, abort)",
            )
        time.sleep(0.1)
