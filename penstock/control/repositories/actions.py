"""The log of actions of operators and supervisors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, case, func, insert, or_, select

from penstock.control import tables as s
from penstock.control.database import ControlDatabase
from penstock.control.rows import Actor

SUPERVISOR = "supervisor"
"""The source of the actions of all supervisors."""


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
        return self.search_actions(limit=limit)

    def search_actions(
        self, *, text: str = "", actor: str = "", verb: str = "", before: int | None = None, limit: int
    ) -> list[Mapping[str, Any]]:
        """Actions, newest first, with the columns of `actions`.

        Args:
            text: A part of the actor, verb, target or detail, of any case.
            actor: Who acted; `supervisor` for all supervisors.
            verb: What was done.
            before: Only actions with a smaller id.
            limit: How many at most.
        """
        a = s.action.c
        query = select(s.action).order_by(a.id.desc()).limit(limit)
        if text:
            query = query.where(
                or_(*(c.icontains(text, autoescape=True) for c in (a.actor, a.verb, a.target, a.detail)))
            )
        if actor:
            query = query.where(a.source == SUPERVISOR if actor == SUPERVISOR else a.actor == actor)
        if verb:
            query = query.where(a.verb == verb)
        if before is not None:
            query = query.where(a.id < before)
        with self.begin() as c:
            return [dict(row) for row in c.execute(query).mappings()]

    def action_names(self, latest: int = 10_000, limit: int = 200) -> tuple[list[str], list[str]]:
        """The actors and the verbs of the latest actions, sorted, at most `limit` of each.

        Each supervisor has a name of its own; all of them are `supervisor`.
        """
        a = s.action.c
        recent = select(a.actor, a.source, a.verb).order_by(a.id.desc()).limit(latest).subquery().c
        actor = case((recent.source == SUPERVISOR, SUPERVISOR), else_=recent.actor)
        with self.begin() as c:
            actors = c.execute(select(actor).distinct().limit(limit)).scalars()
            verbs = c.execute(select(recent.verb).distinct().limit(limit)).scalars()
            return sorted(actors), sorted(verbs)

    def supervisor_actions(self, since: Mapping[str, int]) -> dict[tuple[str, str], tuple[int, int]]:
        """What supervisors did.

        Args:
            since: By target, epoch milliseconds.

        Returns:
            By target and verb, how often, and epoch milliseconds of the last time.
        """
        a = s.action.c
        wanted = or_(*(and_(a.target == target, a.at >= at) for target, at in since.items()))
        query = select(a.target, a.verb, func.count(), func.max(a.at)).where(a.source == SUPERVISOR, wanted)
        with self.begin() as c:
            return {(target, verb): (n, at) for target, verb, n, at in c.execute(query.group_by(a.target, a.verb))}

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
