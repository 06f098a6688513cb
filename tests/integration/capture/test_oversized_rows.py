"""Rows that are large, on a real MariaDB and Kafka: up to a limit they are captured, beyond it they stop nobody."""

from __future__ import annotations

import random
import sys

from penstock.kafka.dead_letters import DeadLetter, read_dead_letters
from penstock.model.topic import DEAD_LETTERS
from tests.support.captures import Source, polled, until

COLUMNS = "id, gone, changed, body"
# Bytes that no compression makes less, as text.
NOISE = random.Random(7).randbytes(1_500_000).hex()
SMALL = "LARGEST 64 KB"


def bodies(source: Source) -> None:
    source.sql(f"ALTER TABLE {source.name} ADD COLUMN body LONGTEXT")


def put(source: Source, number: int, body: str) -> None:
    with source.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {source.name} (id, body) VALUES (%s, %s) ON DUPLICATE KEY UPDATE body = VALUES(body)",
            (number, body),
        )


def letters(source: Source) -> list[DeadLetter]:
    return [
        one
        for one in read_dead_letters([DEAD_LETTERS.name], source.broker.bootstrap, sys.maxsize)
        if one.stream == source.name
    ]


def keys(source: Source) -> set[bytes]:
    return set(source.topic())


def test_a_row_of_megabytes_is_captured(source: Source) -> None:
    bodies(source)
    put(source, 1, NOISE)
    poller = source.poller(columns=COLUMNS)
    polled(poller)
    put(source, 2, NOISE)
    polled(poller, 2)
    assert source.topic() == source.table(COLUMNS)
    assert len(keys(source)) == 2


def test_a_row_beyond_the_limit_is_put_aside_and_the_others_go_on(source: Source) -> None:
    bodies(source)
    large, other = NOISE[:200_000], NOISE[200_000:500_000]
    put(source, 1, "small")
    put(source, 2, large)
    poller = source.poller(more=SMALL, columns=COLUMNS)
    polled(poller, 3)
    assert keys(source) == {b'{"id":1}'}
    # What it had before is no longer true.
    put(source, 1, other)
    put(source, 3, "small")
    polled(poller, 3)
    assert keys(source) == {b'{"id":3}'}
    assert [(one.key, one.reason.partition(":")[0]) for one in letters(source)] == [
        (b'{"id":2}', "its record is larger than its topic takes"),
        (b'{"id":1}', "its record is larger than its topic takes"),
    ]
    assert (len(poller.session.oversized), poller.metrics.dead_letters) == (2, 2)
    # It is no drift, is told once, and is known after a restart.
    poller.compare("asked for")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert (
        poller.position.last_reconcile.missing,
        poller.position.last_reconcile.differing,
        poller.position.last_reconcile.extra,
    ) == (0, 0, 0)
    source.close(poller)
    poller = source.poller(more=SMALL, columns=COLUMNS)
    polled(poller, 2)
    assert (len(letters(source)), len(poller.session.oversized), poller.metrics.written) == (2, 2, 0)
    # It comes back when it is small, and is forgotten when it is gone.
    put(source, 1, "small again")
    source.sql(f"DELETE FROM {source.name} WHERE id = 2")
    polled(poller, 2)
    assert keys(source) == {b'{"id":1}', b'{"id":3}'}
    poller.compare("asked for")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert len(poller.session.oversized) == 0
    assert source.topic() == source.table(COLUMNS)


def test_a_larger_limit_brings_the_rows_in_by_itself(source: Source) -> None:
    bodies(source)
    put(source, 1, NOISE[:200_000])
    poller = source.poller(more=SMALL, columns=COLUMNS)
    polled(poller, 12)
    assert keys(source) == set()
    source.close(poller)
    poller = source.poller(more="LARGEST 1 MB", columns=COLUMNS)
    until(poller, lambda: poller.metrics.polls > 1 and not poller.position.reconcile, "all is compared")
    assert source.topic() == source.table(COLUMNS)
    assert (len(poller.session.oversized), poller.position.last_reconcile.explained) == (0, True)
