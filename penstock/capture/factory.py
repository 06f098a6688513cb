"""Opens a capture: its database, topic, output and position."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from penstock.capture.checks.ordering import PagingVerifier
from penstock.capture.output.position import Position, SnapshotProgress
from penstock.capture.polling.cursors import CursorTracker
from penstock.capture.polling.keyset_queries import PageQueries
from penstock.capture.polling.poller import Poller
from penstock.capture.reconcile.digest_index import DigestIndex
from penstock.capture.session import CaptureSession
from penstock.capture.source import connections
from penstock.capture.source.base import SourceDatabase
from penstock.capture.source.engines import ENGINES
from penstock.codec.formats import value_encoder
from penstock.codec.registry_values import ValueEncoder
from penstock.errors import PenstockError
from penstock.kafka.admin import admin, ensure_topics, log_end_offsets, partition_counts, topic_ids
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.capture import Capture
from penstock.model.topic import POSITIONS
from penstock.registry import client
from penstock.settings import settings

log = logging.getLogger(__name__)

Decision = Literal["", "continue", "snapshot"]


class PositionRefused(PenstockError):
    """The position of a capture belongs to another key, cursor or topic; an operator has to decide."""


def database(capture: Capture) -> SourceDatabase:
    """The capture's database, not connected yet."""
    return ENGINES[capture.dialect](connections.url(capture.connection, capture.dialect), capture.delay)


def group(capture: Capture) -> str:
    """The transactional id of a capture, by which the newest writer fences all others."""
    return f"penstock.capture.{capture.name}"


def reconcile_file(capture: Capture) -> Path:
    return settings().home / "captures" / f"{capture.name}.db"


def open_poller(capture: Capture, bootstrap: str, decision: Decision = "", request: str = "") -> Poller:
    """Open a capture where it stopped; fences any other poller of it.

    Args:
        capture: The capture.
        bootstrap: The brokers.
        decision: `snapshot` starts again; `continue` tries the same position.
        request: The id of the request for that snapshot.

    Raises:
        PositionRefused: There is such a position and no decision, or the topic has other partitions.
        SchemaNotRegistered: The schema of its topic is not registered.
        RegistryError: The schema registry does not answer.
    """
    encoder = _encoder(capture)
    ensure_topics([capture.topic, POSITIONS], bootstrap)
    topic_id, count = _topic(capture, bootstrap)
    if count != capture.topic.partitions:
        raise PositionRefused(
            f"topic {capture.topic.name} has another number of partitions than capture {capture.name} declares",
            got=f"{count}, declared {capture.topic.partitions}",
            hint=f"declare PARTITIONS {count} if the topic always had them; else keys have moved to other partitions, "
            "so use a new topic in INTO, or delete this one, and take a snapshot",
        )
    with ExitStack() as undo:
        output = TransactionalWriter(
            capture.name, group(capture), bootstrap, POSITIONS, "capture", [capture.topic.name]
        )
        undo.callback(output.close)
        new = Position(
            capture.fingerprint, topic_id, count, (*capture.key, capture.cursor), snapshot=SnapshotProgress(),
            schema_id=encoder.schema_id if encoder else 0,
        )  # fmt: skip
        stored = _stored_position(output, decision)
        if stored is not None:
            _check_partitions(capture, new, stored)
            new = replace(new, sees_all=stored.sees_all, drift=stored.drift, reconciles=stored.reconciles)
        if stored is not None and decision != "snapshot":
            position = _resumed(capture, new, stored)
        else:
            # Keys in the topic that are no longer selected must be removed; a partition without a leader may have some.
            ends = log_end_offsets(admin(bootstrap), [(capture.topic.name, p) for p in range(count)], bootstrap)
            reconcile = "a new snapshot" if len(ends) < count or any(ends.values()) else ""
            position = replace(new, reconcile=reconcile, request=request)
        file, topic, rate = reconcile_file(capture), capture.topic.name, capture.reconcile_rate
        index = DigestIndex(file, topic, topic_id, bootstrap, rate)
        undo.callback(index.close)
        if position.drift is None:
            drift, last = index.earlier_drift()
            position = replace(position, drift=drift, reconciles=(last,) if last.ended else ())
        if position.snapshot == new.snapshot:
            index.restart()
        source = database(capture)
        undo.callback(source.close)
        proof = PagingVerifier(capture, source)
        proof.verify(ask_rows=position.snapshot == new.snapshot)
        for note in proof.notes:
            log.warning("capture %s: %s", capture.name, note)
        fitting = proof.drop_mistyped(position)
        if fitting != position or not proof.key_matches_types(index.behind):
            position = replace(fitting, reconcile="the type of key or cursor changed")
            index.restart()
        server, before = source.server(), position
        if position.server and position.server != server:
            log.warning("capture %s: another database server, %s; table and topic are compared", capture.name, server)
            position = replace(position, reconcile=f"another server, {server}")
            index.restart()
        if position.fingerprint != capture.fingerprint:
            # Rows that do not change may have other values by the new statement, or be left out.
            log.warning("capture %s: its statement was changed; table and topic are compared", capture.name)
            position = replace(position, fingerprint=capture.fingerprint, reconcile="the statement was changed")
            index.restart()
        if position != before:
            position = CursorTracker(capture, position.low).drop_passed_low(source, PageQueries(capture), position)
        if position.schema_id != new.schema_id:
            # Also rows that do not change are written by the new schema.
            log.warning("capture %s: its topic has another schema; table and topic are compared", capture.name)
            position = replace(position, schema_id=new.schema_id, reconcile="the schema of the topic was changed")
            index.restart()
        position = replace(position, server=server)
        if decision or stored is None:
            # The decision is stored, so it holds when the capture is opened again.
            output.commit([], position.value())
        poller = Poller(CaptureSession(capture, source, output, position, index, proof, encoder))
        undo.pop_all()
    return poller


def _encoder(capture: Capture) -> ValueEncoder[Any] | None:
    """Of the schema of a capture's topic, which its release has registered; None for JSON."""
    schema = capture.topic.registry_schema
    if schema is None:
        return None
    return value_encoder(schema, client.registered_id(schema.subject_of(capture.topic.name), schema.text, schema.kind))


def check_topic(capture: Capture, position: Position, bootstrap: str) -> None:
    """Raises PositionRefused if the topic was recreated or given partitions since the capture was opened."""
    actual = _topic(capture, bootstrap)
    if actual != (position.topic_id, position.partitions):
        raise PositionRefused(
            f"topic {capture.topic.name} was changed while capture {capture.name} ran",
            got=f"id and partitions {actual}, before {(position.topic_id, position.partitions)}",
            hint="a recreated topic needs a new snapshot; one with added partitions has old values in the others: "
            "delete it, or use a new one in INTO",
        )


def _topic(capture: Capture, bootstrap: str) -> tuple[str, int]:
    """The topic's id, empty if it does not exist, and its number of partitions."""
    client, name = admin(bootstrap), capture.topic.name
    return topic_ids(client, [name], bootstrap).get(name, ""), partition_counts(client, bootstrap).get(name, 0)


def _stored_position(output: TransactionalWriter, decision: Decision) -> Position | None:
    """The stored position; None if there is none, or if it is invalid and a new snapshot was decided."""
    marker = output.read_marker()
    try:
        return None if marker is None else Position.read(marker)
    except PenstockError as e:
        if decision == "snapshot":
            return None
        raise PositionRefused(
            e.what, got=e.got, hint=f"it was written by another version: {_snapshot_hint(output.name)}"
        ) from e


def _snapshot_hint(name: str) -> str:
    """The commands that take a snapshot."""
    return f"`penstock capture ask {name} snapshot`, or in the foreground `penstock capture run {name} --snapshot`"


def _check_partitions(capture: Capture, new: Position, stored: Position) -> None:
    """Refuse a topic whose partitions changed, even for a snapshot: old values of keys that moved would stay."""
    if stored.topic_id == new.topic_id and stored.partitions != new.partitions:
        raise PositionRefused(
            f"the number of partitions of topic {capture.topic.name} changed, so its keys have moved",
            got=f"{new.partitions}, position of {stored.partitions}",
            hint="use a new topic in INTO, or delete this one, and take a snapshot",
        )


def _resumed(capture: Capture, new: Position, stored: Position) -> Position:
    topic_id = new.topic_id
    if stored.topic_id != topic_id:
        raise PositionRefused(
            f"topic {capture.topic.name} is not the one that capture {capture.name} wrote",
            got=f"topic id {topic_id}, position of {stored.topic_id}",
            hint=f"it was created anew, or the capture names another: {_snapshot_hint(capture.name)}",
        )
    if stored.rows != new.rows:
        raise PositionRefused(
            f"capture {capture.name} cannot go on: its KEY or CURSOR was changed",
            got=f"{', '.join(new.rows)}, position of {', '.join(stored.rows)}",
            hint=_snapshot_hint(capture.name),
        )
    return stored
