"""The log of actions of operators and supervisors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from penstock.control import tables as s
from penstock.control.database import ControlDatabase
from penstock.control.rows import Actor


class ActionRepository(ControlDatabase):
    """The log of actions."""

    def record(self, actor: Actor, verb: str, target: str, detail: str = "", request: str = "") -> None:
        """Record an action, unless one is recorded under the same request id."""
        with self.begin() as c:
            if not is_recorded(c, request):
                record_action(c, actor, verb, target, detail, request)

    def recorded(self, request: str) -> bool:
        """Whether an action is recorded under a request id."""
        with self.begin() as c:
            return is_recorded(c, request)

    def is_target(self, name: str) -> bool:
        """Whether any action on something of this name is recorded."""
        with self.begin() as c:
            return c.execute(select(s.action.c.id).where(s.action.c.target == name).limit(1)).first() is not None

    def actions(self, limit: int = 50) -> list[Mapping[str, Any]]:
        """The last actions, newest first: at, actor, source, verb, target, detail."""
        query = select(s.action).order_by(s.action.c.id.desc()).limit(limit)
        with self.begin() as c:
            return [dict(row) for row in c.execute(query).mappings()]

    def actions_on(self, targets: Sequence[str], since_ms: int, limit: int) -> list[Mapping[str, Any]]:
        """The last actions on streams or apps since a time, newest first, with the columns of `actions`."""
        a = s.action.c
        query = select(s.action).where(a.target.in_(targets), a.at >= since_ms).order_by(a.id.desc()).limit(limit)
        with self.begin() as c:
            return [dict(row) for row in c.execute(query).mappings()]


def is_recorded(c: Connection, request: str) -> bool:
    """Whether an action is recorded under a request id; False if the id is empty."""
    query = select(s.action.c.id).where(s.action.c.request == request).limit(1)
    return bool(request) and c.execute(query).first() is not None


def record_action(c: Connection, actor: Actor, verb: str, target: str, detail: str, request: str = "") -> None:
    c.execute(
        insert(s.action).values(
            at=s.now_ms(),
            actor=actor.name,
            source=actor.source,
            verb=verb,
            target=target,
            detail=detail or None,
            request=request or None,
        )
    )
