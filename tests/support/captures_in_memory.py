"""A table of a real MariaDB and pollers of its capture, whose topic is kept in memory: for what no broker decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.capture import factory
from penstock.capture.checks.ordering import PagingVerifier
from penstock.capture.output.position import Position, SnapshotProgress
from penstock.capture.polling.poller import Poller
from penstock.capture.reconcile.digest_index import DigestIndex
from penstock.capture.session import CaptureSession
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.kafka.limits import ProducerRecord, SizeLimit
from penstock.model.capture import parse
from penstock.model.topic import DEAD_LETTERS
from tests.support.captures import Source, until

# Of a capture whose snapshot is to wait for nobody; `LEAST_OVERLAP` must be 0 too.
QUICK = "EVERY 10 MILLISECONDS OVERLAP 500 MILLISECONDS DELAY 1 MILLISECONDS"


class Kept:
    """What a poller wrote: the last value of each key, and its position."""

    bootstrap = ""
    # FakeMessage of each commit, as if it read the topic.
    reconcile: DigestIndex | None = None

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.position: Position | None = None
        # How often each key was written.
        self.written = Counter[bytes]()
        # Keys of rows that were put aside.
        self.letters: list[bytes] = []

    def size_limit(self, topic: str) -> SizeLimit:
        return SizeLimit(topic)

    def commit(self, messages: Iterable[ProducerRecord], mark: bytes) -> int:
        # All or, if its maker raises, none of them.
        for topic, key, value, *_ in list(messages):
            assert key is not None
            if topic == DEAD_LETTERS.name:
                self.letters.append(key)
                continue
            self.written[key] += 1
            if self.reconcile:
                self.reconcile._take([FakeMessage(key, value)])
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        self.position = Position.read(mark)
        return 0

    def send(self, *keys: bytes) -> None:
        """Write records as somebody else would."""
        assert self.position
        self.commit([ProducerRecord("t", key, b"{}") for key in keys], self.position.value())

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class FakeMessage:
    """A record as a consumer gives it."""

    own_key: bytes
    own_value: bytes | None

    def error(self) -> None:
        return None

    def key(self) -> bytes:
        return self.own_key

    def value(self) -> bytes | None:
        return self.own_value


class Unread(DigestIndex):
    """Knows of the topic what was told of it."""

    def follow_topic(self) -> bool:
        return True


class Unbrokered(Source):
    """A table and its capture, from the position on that the poller before it left. It cannot compare."""

    def __init__(self, name: str, mariadb: MariaDB, folder: Path) -> None:
        super().__init__(name, mariadb, cast(Broker, None), folder)
        self.kept = Kept()

    def opened(self, text: str, decision: factory.Decision = "") -> Poller:  # noqa: ARG002
        made = _opened(text, self.folder / f"{self.name}.sql", self.kept, self.kept.position)
        self.pollers.append(made)
        return made

    def topic(self) -> dict[bytes, bytes]:
        return self.kept.rows


def poller_of(text: str, folder: Path, kept: Kept | None = None) -> Poller:
    """A poller of a capture of any engine; kept: what the one before it left."""
    kept = kept or Kept()
    made = _opened(text, folder / "t.sql", kept, kept.position)
    kept.reconcile = made.session.index
    return made


def _opened(text: str, file: Path, output: Kept, position: Position | None) -> Poller:
    capture = parse(text, file)
    fresh = Position(capture.fingerprint, "id", 1, (*capture.key, capture.cursor), snapshot=SnapshotProgress())
    reconcile = Unread(file.with_suffix(".db"), capture.name, "id", f"127.0.0.1:{free_port()}")
    database = factory.database(capture)
    proof = PagingVerifier(capture, database)
    proof.verify()
    return Poller(CaptureSession(capture, database, cast(Any, output), position or fresh, reconcile, proof))


class Killed(BaseException):
    """The process is gone."""


def killed(poller: Poller, step: int) -> Kept:
    """Kill a process at a step; what it had written, for the next one."""
    left = step

    def kill(_: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    poller.session.hook = kill
    with pytest.raises(Killed):
        until(poller, lambda: False, "it is killed")
    poller.close()
    return cast(Kept, poller.session.output)
