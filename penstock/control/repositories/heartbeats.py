"""The last heartbeat of each topic, and the topics whose heartbeats are held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, select

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, upsert


class HeartbeatRepository(ControlDatabase):
    """The last heartbeat of each topic, and held heartbeats."""

    def record_heartbeat(self, topic: str, at_ms: int, partitions: int, sender: str) -> None:
        with self.begin() as c:
            upsert(c, s.heartbeat, topic, at=at_ms, partitions=partitions, sender=sender)

    def heartbeats(self) -> dict[str, Mapping[str, Any]]:
        with self.begin() as c:
            return {row["name"]: dict(row) for row in c.execute(select(s.heartbeat)).mappings()}

    def hold_heartbeats(self, topic: str, at_ms: int | None, why: str) -> None:
        """Hold the heartbeats of a topic, or release them.

        Args:
            topic: The topic.
            at_ms: Heartbeats up to this time may be sent; None if none may.
            why: The reason; empty to release them.
        """
        with self.begin() as c:
            if why:
                upsert(c, s.heartbeat_hold, topic, at=at_ms, why=why)
            else:
                c.execute(delete(s.heartbeat_hold).where(s.heartbeat_hold.c.name == topic))

    def heartbeat_holds(self) -> dict[str, Mapping[str, Any]]:
        with self.begin() as c:
            return {row["name"]: dict(row) for row in c.execute(select(s.heartbeat_hold)).mappings()}
