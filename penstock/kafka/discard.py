"""Discards dead letters: notes where replays are noted that a letter needs nothing any more.

A letter is replayed or discarded, never both: a discard shuts out the replays that could be running, and then discards
only what none of them has written; a replay that begins meanwhile shuts out the discard. The letter itself stays in its
topic, which expires it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Literal

from penstock.errors import LeaseLost
from penstock.kafka.admin import ensure_topics
from penstock.kafka.dead_letters import DeadLetter
from penstock.kafka.limits import ProducerRecord
from penstock.kafka.replay import (
    RECORDS_PER_TRANSACTION,
    REPLAYS,
    discard_key,
    end_of,
    letter_replays,
    read_replay_keys,
    sink_replays,
)
from penstock.kafka.transactions import TransactionalWriter


@dataclass(frozen=True)
class Discard:
    """The result for one dead letter. ended: what had happened to it before; empty if it is discarded now."""

    letter: DeadLetter
    ended: Literal["", "replayed", "discarded"] = ""


def discard(chosen: Collection[DeadLetter], bootstrap: str, *, dry: bool = False) -> list[Discard]:
    """Discards dead letters.

    Args:
        chosen: the dead letters.
        bootstrap: the brokers.
        dry: write nothing.

    Returns:
        One result for each letter; letters of the same stream, record and content are one.

    Raises:
        LeaseLost: a replay has begun meanwhile; the letters of some streams may be discarded.
    """
    letters = {discard_key(letter): letter for letter in chosen}
    if not letters:
        return []
    if dry:
        return _results(letters, bootstrap)
    ensure_topics([REPLAYS], bootstrap)
    with ExitStack() as open_writers:
        # Each fences a replay that is still running, of the topics and of each stream as a sink.
        topic_writer = open_writers.enter_context(closing(letter_replays(bootstrap)))
        sink_writers = {
            stream: open_writers.enter_context(closing(sink_replays(stream, bootstrap)))
            for stream in sorted({letter.stream for letter in letters.values()})
        }
        results = _results(letters, bootstrap)
        for stream, sink_writer in sink_writers.items():
            keys = [discard_key(one.letter) for one in results if not one.ended and one.letter.stream == stream]
            for start in range(0, len(keys), RECORDS_PER_TRANSACTION):
                _note(keys[start : start + RECORDS_PER_TRANSACTION], sink_writer, topic_writer)
    return results


def _note(keys: Sequence[bytes], sink_writer: TransactionalWriter, topic_writer: TransactionalWriter) -> None:
    """Notes discards of a stream, unless a replay has begun since the writers were opened, which fences one of them.

    The notes are in the transaction of the one, and the other commits while it is open. A replay to topics that begins
    after that waits for the end of the transaction, and reads the notes.
    """

    def records() -> Iterator[ProducerRecord]:
        yield from (ProducerRecord(REPLAYS.name, key, b"{}") for key in keys)
        sink_writer.flush()
        topic_writer.commit([], b"{}")

    try:
        sink_writer.commit(records(), b"{}")
    except LeaseLost as e:
        e.restate("a replay began while dead letters were discarded", hint="discard them again when it has ended")
        raise


def _results(letters: dict[bytes, DeadLetter], bootstrap: str) -> list[Discard]:
    noted = read_replay_keys(bootstrap)
    ordered = sorted(letters.values(), key=lambda letter: (letter.origin or ("", 0, 0), letter.stream, letter.offset))
    return [Discard(letter, end_of(letter, noted)) for letter in ordered]
