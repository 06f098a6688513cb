"""Dead letters that the operator page discards are those that it has shown."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson
import pytest

from penstock.control import Actor, Control
from penstock.errors import LeaseLost
from penstock.kafka.dead_letters import DeadLetter
from penstock.kafka.discard import Discard
from penstock.monitoring.dashboard.dead_letters import _replay

ME = Actor("me", "page")


def letter(topic: str) -> DeadLetter:
    headers = {"topic": topic, "partition": "0", "offset": "5", "stream": "sink", "output": "store:t", "reason": topic}
    return DeadLetter("sink-dead-letter", 0, 0, None, b"{}", headers)


@pytest.mark.usefixtures("airflow_home")
def test_of_two_topics_with_a_record_at_the_same_offset_only_the_shown_one_is_discarded(
    monkeypatch: pytest.MonkeyPatch, control: Control
) -> None:
    from penstock.airflow import page_letters
    from penstock.airflow.page_requests import Action

    letters = [letter("a"), letter("b")]

    def discarded(chosen: Collection[DeadLetter], *_: Any, **__: Any) -> list[Discard]:
        return [Discard(one) for one in chosen]

    monkeypatch.setattr(page_letters, "read_dead_letters", lambda *_: letters)
    monkeypatch.setattr(page_letters, "_check_letters", lambda _: None)
    monkeypatch.setattr(page_letters, "discard", discarded)
    replay = _replay(letters[0])
    assert replay is not None
    fields = {"verb": "discard", "kind": "letters", "name": "sink-dead-letter", "stream": "sink"}
    answer = page_letters.discard_letters(control, Action(**fields, places=[replay.place]), ME)
    assert orjson.loads(answer.body) == {"counts": {"discarded": 1}}
    assert control.actions(1)[0]["detail"] == "of sink; places a[0]@5"


@pytest.mark.usefixtures("airflow_home")
def test_a_discard_that_a_replay_shuts_out_is_a_conflict(monkeypatch: pytest.MonkeyPatch, control: Control) -> None:
    from fastapi import HTTPException

    from penstock.airflow import page_letters
    from penstock.airflow.page_requests import Action

    def shut_out(*_: Any, **__: Any) -> None:
        raise LeaseLost("a replay began")

    monkeypatch.setattr(page_letters, "read_dead_letters", lambda *_: [letter("a")])
    monkeypatch.setattr(page_letters, "_check_letters", lambda _: None)
    monkeypatch.setattr(page_letters, "discard", shut_out)
    action = Action(verb="discard", kind="letters", name="sink-dead-letter", stream="sink", places=["a[0]@5"])
    with pytest.raises(HTTPException) as e:
        page_letters.discard_letters(control, action, ME)
    assert (e.value.status_code, "discard them again" in e.value.detail) == (409, True)


@pytest.mark.usefixtures("airflow_home")
def test_a_place_names_its_topic() -> None:
    from pydantic import ValidationError

    from penstock.airflow.page_requests import BODY_LIMIT, Action

    fields: dict[str, Any] = {"verb": "replay", "kind": "letters", "name": "sink-dead-letter"}
    for place in ("0:5", "a[0]@5; rm", "a b[0]@5", "a[0]@", "a[x]@5", "[0]@5"):
        with pytest.raises(ValidationError, match="places"):
            Action(**fields, places=[place])
    longest = Action(**fields, places=[f"{'t' * 249}[{'9' * 9}]@{'9' * 18}"] * 100, note="n" * 500)
    assert len(longest.model_dump_json()) < BODY_LIMIT
