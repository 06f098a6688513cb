"""What a stream's declaration is refused for, with the way out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.streams import Each, Final, Input, Joined, Stream, Table, Timed, Topic, TopicOutput, Updates

MINUTE = timedelta(minutes=1)
EVENTS = Input(Topic("events"), schema="n BIGINT, at TIMESTAMP", event_time="at")
NAMES = Table(Topic("names", compacted=True), schema="name STRING")
OUT = TopicOutput(Topic("out"), key="n", value="n")


def declared(**changed: Any) -> Stream:
    given: dict[str, Any] = {
        "name": "s", "app": "a", "inputs": {"events": EVENTS}, "transform": lambda events: events,
        "output": OUT, "promise": Each(),
    }  # fmt: skip
    return Stream(**given | changed)


def two(events: Any, names: Any) -> Any:  # noqa: ARG001
    return events


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"promise": Updates(MINUTE, MINUTE), "steps": 2}, "a topic between"),
        ({"promise": Joined(MINUTE, MINUTE)}, "give two inputs"),
        ({"promise": Joined(MINUTE, MINUTE), "inputs": {"events": EVENTS, "names": NAMES}, "transform": two},
         "a join with a Table, which needs no state, promise Each"),
        ({"promise": Each(), "steps": 1}, "means no state"),
        ({"promise": Timed(MINUTE, MINUTE), "steps": 0}, "means state"),
        ({"promise": Final(MINUTE, MINUTE), "max_records": 5}, "leave it out"),
        ({"inputs": {"names": NAMES}, "transform": lambda names: names}, "tables alone make no batch"),
        ({"inputs": {"events": NAMES, "names": NAMES}, "transform": two}, "tables alone make no batch"),
        ({"inputs": {"events": EVENTS, "names": Table(Topic("events", compacted=True), schema="n BIGINT")},
          "transform": two}, "join it as often as is needed"),
        ({"inputs": {"events": EVENTS, "names": NAMES}, "transform": two,
          "output": TopicOutput(NAMES.topic, key="n", value="n")}, "reads its own output"),
        ({"output": {"a": OUT, "b": TopicOutput(EVENTS.topic or Topic("x"), value="n")}}, "reads its own output"),
        ({"output": {"a": OUT, "b": OUT}}, "two outputs to one place"),
        ({"output": TopicOutput(Topic("events-dead-letter"), key="n", value="n")}, "where its dead letters"),
        ({"output": {}}, "has no output"),
        ({"promise": Updates(MINUTE, MINUTE), "output": TopicOutput(Topic("out"), value="n")}, "give the output a key"),
    ],
)  # fmt: skip
def test_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as e:
        declared(**changed)
    assert said in str(e.value)


def test_a_table_needs_a_compacted_topic() -> None:
    with pytest.raises(DeclarationError, match="declare it compacted"):
        Table(Topic("names"), schema="name STRING")


def test_a_step_before_the_windows_decides_what_is_late() -> None:
    hour = timedelta(hours=1)
    assert (Final(hour, MINUTE).length, Final(hour, MINUTE).taken_for) == (hour, timedelta(0))
    sessions = Final(hour, MINUTE, first=5 * MINUTE)
    assert (sessions.length, sessions.taken_for, sessions.due) == (timedelta(0), 5 * MINUTE, Final(hour, MINUTE).due)
