"""The last heartbeat of each topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from penstock.control import schema as s
from penstock.control.database import Database, upsert


class Beats(Database):
    """When each topic last got a heartbeat, and from whom."""

    def beat_sent(self, topic: str, at_ms: int, partitions: int, sender: str) -> None:
        with self.begin() as c:
            upsert(c, s.beat, topic, at=at_ms, partitions=partitions, sender=sender)

    def beats(self) -> dict[str, Mapping[str, Any]]:
        with self.begin() as c:
            return {row["name"]: dict(row) for row in c.execute(select(s.beat)).mappings()}
