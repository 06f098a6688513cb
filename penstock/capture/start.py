"""Puts a capture together: its database, its topic, its output, and the position it goes on from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from penstock.capture import connections
from penstock.capture.database import ENGINES, Database
from penstock.capture.poller import Poller
from penstock.capture.position import POSITIONS, Position, Snapshot
from penstock.capture.reconcile import Reconcile
from penstock.capture.statement import Capture
from penstock.errors import PenstockError
from penstock.kafka.admin import admin, ensure_topics, topic_ids
from penstock.kafka.output import Transactional
from penstock.settings import settings

Decision = Literal["", "continue", "snapshot"]


class PositionRefused(PenstockError):
    """The position kept for a capture belongs to another statement or topic; somebody has to decide."""


def database(capture: Capture) -> Database:
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
    topic_id = topic_ids(admin(bootstrap), [capture.topic.name], bootstrap)[capture.topic.name]
    output = Transactional(capture.name, group(capture), bootstrap, POSITIONS, "capture")
    try:
        kept = output.mark()
        position = _resumed(capture, topic_id, Position.read(kept) if kept else None, decision)
        reconcile = Reconcile(reconcile_file(capture), capture.topic.name, topic_id, bootstrap)
    except BaseException:
        output.close()
        raise
    return Poller(capture, database(capture), output, position, reconcile)


def _resumed(capture: Capture, topic_id: str, kept: Position | None, decision: Decision) -> Position:
    fresh = Position(capture.fingerprint, topic_id, snapshot=Snapshot())
    if kept is None:
        return fresh
    if decision == "snapshot":
        # What is no longer selected must leave the topic too.
        return replace(fresh, reconcile="a new snapshot")
    if kept.topic_id != topic_id:
        raise PositionRefused(
            f"topic {capture.topic.name} is not the one that capture {capture.name} wrote",
            got=f"topic id {topic_id}, position of {kept.topic_id}",
            fix=f"it was created anew, or the capture names another: `penstock capture run {capture.name} --snapshot`",
        )
    if kept.fingerprint != capture.fingerprint and decision != "continue":
        raise PositionRefused(
            f"the statement of capture {capture.name} was changed",
            got=f"fingerprint {capture.fingerprint}, position of {kept.fingerprint}",
            fix=f"`penstock capture run {capture.name} --snapshot` reads all rows again, `--continue` goes on from the "
            "old cursor; or name a new topic behind INTO and take a snapshot",
        )
    return replace(kept, fingerprint=capture.fingerprint)
