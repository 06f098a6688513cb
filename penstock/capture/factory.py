"""Puts a capture together: its database, its topic, its output, and the position it goes on from."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

from penstock.capture.checks.ordering import PagingVerifier
from penstock.capture.output.position import Position, SnapshotProgress
from penstock.capture.polling.poller import Poller
from penstock.capture.reconcile.digest_index import DigestIndex
from penstock.capture.session import CaptureSession
from penstock.capture.source import connections
from penstock.capture.source.base import SourceDatabase
from penstock.capture.source.engines import ENGINES
from penstock.errors import PenstockError
from penstock.kafka.admin import admin, ensure_topics, log_end_offsets, partition_counts, topic_ids
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.capture import Capture
from penstock.model.topic import POSITIONS
from penstock.settings import settings

log = logging.getLogger(__name__)

Decision = Literal["", "continue", "snapshot"]


class PositionRefused(PenstockError):
    """The position kept for a capture belongs to another statement or topic; somebody has to decide."""


def database(capture: Capture) -> SourceDatabase:
    """The capture's database, not yet asked anything."""
    return ENGINES[capture.dialect](connections.url(capture.connection, capture.dialect), capture.delay)


def group(capture: Capture) -> str:
    """The transactional id of a capture: who opens it last shuts all others out."""
    return f"penstock.capture.{capture.name}"


def reconcile_file(capture: Capture) -> Path:
    return settings().home / "captures" / f"{capture.name}.db"


def open_poller(capture: Capture, bootstrap: str, decision: Decision = "") -> Poller:
    """A capture ready to go on where it stopped; any other poller of it is fenced from now on.

    decision: what to do with a position of another statement or topic: `continue` to take its cursor over, `snapshot`
    to begin again. PositionRefused if there is such a position and no decision.
    """
    ensure_topics([capture.topic, POSITIONS], bootstrap)
    topic_id, count = _topic(capture, bootstrap)
    if count != capture.topic.partitions:
        raise PositionRefused(
            f"topic {capture.topic.name} has another number of partitions than capture {capture.name} declares",
            got=f"{count}, declared {capture.topic.partitions}",
            hint=f"declare PARTITIONS {count}, if that is what the topic always had; else its keys have moved and left "
            "their last values behind: name a new topic behind INTO, or delete this one, and take a snapshot",
        )
    with ExitStack() as undo:
        output = TransactionalWriter(
            capture.name, group(capture), bootstrap, POSITIONS, "capture", [capture.topic.name]
        )
        undo.callback(output.close)
        fresh = Position(
            capture.fingerprint, topic_id, count, (*capture.key, capture.cursor), snapshot=SnapshotProgress()
        )
        kept = _kept(output, decision)
        if kept is not None:
            _check_partitions(capture, fresh, kept)
        if kept is not None and decision != "snapshot":
            position = _resumed(capture, fresh, kept, decision)
        else:
            # What is in the topic and no longer selected must leave it.
            ends = log_end_offsets(admin(bootstrap), [(capture.topic.name, p) for p in range(count)], bootstrap)
            position = replace(
                fresh,
                reconcile="a new snapshot" if any(ends.values()) else "",
                sees_all=kept is not None and kept.sees_all,
            )
        file, topic, rate = reconcile_file(capture), capture.topic.name, capture.reconcile_rate
        reconcile = DigestIndex(file, topic, topic_id, bootstrap, rate)
        undo.callback(reconcile.close)
        if position.snapshot == fresh.snapshot:
            reconcile.restart()
        asked = database(capture)
        undo.callback(asked.close)
        proof = PagingVerifier(capture, asked)
        proof.verify(ask_rows=position.snapshot == fresh.snapshot)
        for note in proof.notes:
            log.warning("capture %s: %s", capture.name, note)
        fitting = proof.drop_mistyped(position)
        if fitting != position or not proof.key_matches_types(reconcile.behind):
            position = replace(fitting, reconcile="the type of key or cursor changed")
            reconcile.restart()
        server = asked.server()
        if position.server and position.server != server:
            log.warning("capture %s: another database server, %s; table and topic are compared", capture.name, server)
            position = replace(position, reconcile=f"another server, {server}")
            reconcile.restart()
        if position.fingerprint != capture.fingerprint:
            # It may say another thing of rows that do not change by themselves.
            position = replace(position, fingerprint=capture.fingerprint, reconcile="the statement was changed")
            reconcile.restart()
        position = replace(position, server=server)
        if decision or kept is None:
            # Decided once: whoever opens it next finds it so.
            output.commit([], position.value())
        poller = Poller(CaptureSession(capture, asked, output, position, reconcile, proof))
        undo.pop_all()
    return poller


def check_topic(capture: Capture, position: Position, bootstrap: str) -> None:
    """PositionRefused if the topic was made anew or given other partitions since the capture was opened."""
    found = _topic(capture, bootstrap)
    if found != (position.topic_id, position.partitions):
        raise PositionRefused(
            f"topic {capture.topic.name} was changed while capture {capture.name} ran",
            got=f"id and partitions {found}, before {(position.topic_id, position.partitions)}",
            hint="a topic that was made anew takes a new snapshot; one that was given partitions has kept old values "
            "in them: delete it, or name a new one behind INTO",
        )


def _topic(capture: Capture, bootstrap: str) -> tuple[str, int]:
    """The topic's id, empty if it is not there, and its number of partitions."""
    client, name = admin(bootstrap), capture.topic.name
    return topic_ids(client, [name], bootstrap).get(name, ""), partition_counts(client, bootstrap).get(name, 0)


def _kept(output: TransactionalWriter, decision: Decision) -> Position | None:
    """The position of whoever captured before; None if there is none, or none that can be read, for a new snapshot."""
    mark = output.read_marker()
    try:
        return None if mark is None else Position.read(mark)
    except PenstockError as e:
        if decision == "snapshot":
            return None
        raise PositionRefused(e.what, got=e.got, hint=f"it was written by another version: {_by(output.name)}") from e


def _by(name: str) -> str:
    """How somebody says that a snapshot is to be taken."""
    return f"`penstock capture ask {name} snapshot`, or in the foreground `penstock capture run {name} --snapshot`"


def _check_partitions(capture: Capture, fresh: Position, kept: Position) -> None:
    """Nor does a snapshot mend it: what the keys left behind in the partitions of before stays there."""
    if kept.topic_id == fresh.topic_id and kept.partitions != fresh.partitions:
        raise PositionRefused(
            f"topic {capture.topic.name} was given other partitions, so its keys have moved",
            got=f"{fresh.partitions}, position of {kept.partitions}",
            hint="name a new topic behind INTO, or delete this one, and take a snapshot",
        )


def _resumed(capture: Capture, fresh: Position, kept: Position, decision: Decision) -> Position:
    topic_id = fresh.topic_id
    if kept.topic_id != topic_id:
        raise PositionRefused(
            f"topic {capture.topic.name} is not the one that capture {capture.name} wrote",
            got=f"topic id {topic_id}, position of {kept.topic_id}",
            hint=f"it was created anew, or the capture names another: {_by(capture.name)}",
        )
    if kept.rows != fresh.rows:
        raise PositionRefused(
            f"capture {capture.name} cannot go on: its KEY or CURSOR was changed",
            got=f"{', '.join(fresh.rows)}, position of {', '.join(kept.rows)}",
            hint=_by(capture.name),
        )
    if kept.fingerprint != capture.fingerprint and decision != "continue":
        raise PositionRefused(
            f"the statement of capture {capture.name} was changed",
            got=f"fingerprint {capture.fingerprint}, position of {kept.fingerprint}",
            hint=f"to read all again, {_by(capture.name)}; `continue` in its place goes on from the old cursor and "
            "compares the others; or name a new topic behind INTO and take a snapshot",
        )
    return kept
