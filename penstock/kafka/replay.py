"""Dead letters sent to their topics once more, each once: record and note of it go in one transaction.

A record in a topic is read by every stream that reads the topic, so one is sent again only if all of them have put it
aside, or somebody says that the others may read it twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer
from confluent_kafka import Message as Taken

from penstock.declare.topic import Topic
from penstock.kafka.admin import admin, end_offsets, ensure_topics, first_offsets, partitions
from penstock.kafka.letters import Letter, Origin, between, consumer, digest, headers_of
from penstock.kafka.sizes import Message, as_bytes
from penstock.kafka.transactions import TransactionalWriter

# Which letters were sent again: key `topic[partition]@offset sha256`.
REPLAYS = Topic("penstock.replays", partitions=1, compacted=True, beat_every=0)
NOTED = re.compile(rb"(?P<topic>\S+)\[(?P<partition>\d+)\]@(?P<offset>\d+) ")
REPLAYED = "penstock.replayed"
# Records of one transaction.
TOGETHER = 500


@dataclass(frozen=True)
class Replay:
    """What becomes of a record that was put aside. refused: why it is not sent; done: it was, earlier."""

    letter: Letter
    record: Message | None = None
    refused: str = ""
    done: bool = False

    @property
    def note(self) -> bytes:
        return f"{self.letter.origin} {self.letter.hash}".encode()


def replay(
    chosen: Collection[Letter],
    every: Iterable[Letter],
    readers: Callable[[str], Collection[str]],
    bootstrap: str,
    *,
    again_for: Collection[str] = (),
    dry: bool = False,
) -> list[Replay]:
    """Send letters to their topics once more; what became of each record.

    every: all letters there are, which tell who put a record aside; readers: the streams that read a topic; again_for:
    streams that may read it though they have taken it; dry: say what would be done.
    """
    aside: dict[bytes, set[str]] = {}
    for letter in every:
        aside.setdefault(Replay(letter).note, set()).add(letter.stream)
    # A letter that is whole before one that is cut, and one of each record.
    first = {Replay(letter).note: letter for letter in sorted(chosen, key=lambda one: bool(one.cut), reverse=True)}
    if not first:
        return []
    ensure_topics([REPLAYS], bootstrap)
    targets = sorted({letter.origin.topic for letter in chosen if letter.origin})
    # From here on an earlier replay that is still at work can write no more.
    writer = TransactionalWriter("dead-letters", "penstock.replay", bootstrap, REPLAYS, "replay", targets)
    try:
        with consumer(bootstrap) as reader:
            done = noted(reader, bootstrap)
            found = []
            for note, letter in sorted(first.items(), key=lambda one: (one[1].origin or ("", 0, 0), one[0])):
                others = set(readers(letter.origin.topic)) if letter.origin else set()
                taken = sorted(others - aside[note] - set(again_for))
                if note in done:
                    found.append(Replay(letter, done=True))
                elif letter.origin and not others:
                    # Anybody may write headers: this is no topic that Penstock took a record from, or not any more.
                    found.append(Replay(letter, refused=f"no stream reads {letter.origin.topic}"))
                else:
                    found.append(_planned(letter, taken, reader))
        ready = [one for one in found if one.record and not dry]
        for start in range(0, len(ready), TOGETHER):
            some = ready[start : start + TOGETHER]
            sent = [one.record for one in some if one.record]
            writer.commit([*sent, *(Message(REPLAYS.name, one.note, b"{}") for one in some)], b"{}")
    finally:
        writer.close()
    return found


def replayed(bootstrap: str) -> set[Origin]:
    """Where the records lie that were sent again."""
    with consumer(bootstrap) as reader:
        found = (NOTED.match(as_bytes(one.key()) or b"") for one in _noted(reader, bootstrap))
        return {Origin(m["topic"].decode(), int(m["partition"]), int(m["offset"])) for m in found if m}


def noted(reader: Consumer, bootstrap: str) -> set[bytes]:
    """The notes of what was sent again."""
    return {as_bytes(one.key()) or b"" for one in _noted(reader, bootstrap)}


def _planned(letter: Letter, taken: list[str], reader: Consumer) -> Replay:
    origin = letter.origin
    if origin and "output" in letter.said:
        name = letter.stream
        return Replay(letter, refused=f"a store refused what sink {name} made of it: penstock sinks replay {name}")
    if origin is None:
        return Replay(letter, refused="it is a row and no record: let the topic take more, and compute it again")
    if taken:
        who, they = ", ".join(taken), f"--again-for {taken[0]}"
        return Replay(letter, refused=f"it would be read twice by {who}, which did not keep it aside ({they})")
    if letter.cut and "sha256" not in letter.said:
        return Replay(letter, refused="its batch was broken in the broker's log, and nothing of it could be read")
    again = ((REPLAYED, str(origin).encode()),)
    if (original := _original(origin, letter.hash, reader)) is not None:
        return Replay(letter, original._replace(headers=(*original.headers, *again)))
    if letter.cut:
        return Replay(letter, refused="its copy is cut, and the record itself is no longer in the topic")
    return Replay(letter, Message(origin.topic, letter.key, letter.value, again, origin.partition))


def _original(origin: Origin, known: str, reader: Consumer) -> Message | None:
    """The record itself, with its time and its headers, if it is still there."""
    topic, partition, offset = origin
    for found in between(reader, topic, partition, offset, offset + 1):
        key, value = as_bytes(found.key()), as_bytes(found.value())
        if digest(key, value) == known:
            headers = tuple(headers_of(found))
            return Message(topic, key, value, headers, partition, max(0, found.timestamp()[1]))
    return None


def _noted(reader: Consumer, bootstrap: str) -> Iterator[Taken]:
    place = (REPLAYS.name, 0)
    if REPLAYS.name not in partitions(admin(bootstrap), bootstrap):
        return iter(())  # of one that nobody has made yet, offsets would be waited for
    starts, ends = (of(admin(bootstrap), [place], bootstrap) for of in (first_offsets, end_offsets))
    return between(reader, *place, starts.get(place, 0), ends.get(place, 0))
