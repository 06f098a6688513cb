"""A table of a real MariaDB and pollers of its capture, whose topic is kept in memory: for what no broker decides."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from penstock.capture import start
from penstock.capture.poller import Poller
from penstock.capture.position import Position, Snapshot
from penstock.capture.proof import Proof
from penstock.capture.reconcile import Reconcile
from penstock.declare.capture import parse
from penstock.kafka.sizes import Limit, Message
from penstock.local.parts import Broker, MariaDB
from penstock.machine.process import free_port
from tests.captures import Source


class Kept:
    """What a poller wrote: the last value of each key, and its position."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.position: Position | None = None

    def limit(self, topic: str) -> Limit:
        return Limit(topic)

    def commit(self, messages: Iterable[Message], mark: bytes) -> int:
        for _, key, value, *_ in messages:
            assert key is not None
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        self.position = Position.read(mark)
        return 0

    def close(self) -> None:
        """Nothing is open."""


class Unread(Reconcile):
    """Knows nothing of the topic."""

    def follow(self) -> bool:
        return True


class Unbrokered(Source):
    """A table and its capture, from the position on that the poller before it left. It cannot compare."""

    def __init__(self, name: str, mariadb: MariaDB, folder: Path) -> None:
        super().__init__(name, mariadb, cast(Broker, None), folder)
        self.kept = Kept()

    def opened(self, text: str, decision: start.Decision = "") -> Poller:  # noqa: ARG002
        capture = parse(text, self.folder / f"{self.name}.sql")
        fresh = Position(capture.fingerprint, "id", 1, (*capture.key, capture.cursor), snapshot=Snapshot())
        file = self.folder / f"{self.name}.db"
        reconcile = Unread(file, self.name, "id", f"127.0.0.1:{free_port()}")
        output: Any = self.kept
        database = start.database(capture)
        proof = Proof(capture, database)
        proof.prove()
        made = Poller(capture, database, output, self.kept.position or fresh, reconcile, proof)
        self.pollers.append(made)
        return made

    def topic(self) -> dict[bytes, bytes]:
        return self.kept.rows
