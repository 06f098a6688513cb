"""Who did what."""

from __future__ import annotations

from typing import Any

from penstock.control import Control
from penstock.monitoring.dashboard.answers.paging import PAGE
from penstock.monitoring.dashboard.page_data import PageData

COLUMNS = ("id", "at", "actor", "source", "verb", "target", "detail")


def activity(data: PageData, control: Control, q: str, actor: str, verb: str, before: int | None) -> dict[str, Any]:
    """Actions, newest first, at most PAGE of them.

    Args:
        data: The present moment.
        control: The control database.
        q: A part of an actor, verb, target or note.
        actor: Who acted; empty for all.
        verb: What was done; empty for all.
        before: Id of the last action of the page before; None for the first page.
    """
    actions = control.search_actions(text=q.strip(), actor=actor, verb=verb, before=before, limit=PAGE + 1)
    actors, verbs = control.action_names()
    return {
        "actions": [
            {**{name: action[name] for name in COLUMNS}, "age_ms": max(0, data.now - action["at"])}
            for action in actions[:PAGE]
        ],
        "more": len(actions) > PAGE,
        "actors": actors,
        "verbs": verbs,
    }
