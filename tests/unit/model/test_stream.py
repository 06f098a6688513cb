"""What a stream's declaration is refused for, with the way out."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.model.input import Combiner
from penstock.model.output_mode import OutputMode
from penstock.model.topic import COMMITS
from penstock.streams import (
    EmitChanges,
    EmitFinal,
    Input,
    Stateless,
    Stream,
    StreamJoin,
    Table,
    Timers,
    Topic,
    TopicOutput,
)

MINUTE = timedelta(minutes=1)
EVENTS = Input(Topic("events"), schema="n BIGINT, at TIMESTAMP", event_time="at")
NAMES = Table(Topic("names", compacted=True), schema="name STRING")
OUT = TopicOutput(Topic("out"), key="n", value="n")


def declared(**changed: Any) -> Stream:
    given: dict[str, Any] = {
        "name": "s", "app": "a", "inputs": {"events": EVENTS}, "transform": lambda events: events,
        "output": OUT, "output_mode": Stateless(),
    }  # fmt: skip
    return Stream(**given | changed)


def two(events: Any, names: Any) -> Any:  # noqa: ARG001
    return events


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"output_mode": EmitChanges(MINUTE, MINUTE), "steps": 2}, "a topic between"),
        ({"output_mode": StreamJoin(MINUTE, MINUTE)}, "give two inputs"),
        ({"output_mode": StreamJoin(MINUTE, MINUTE), "inputs": {"events": EVENTS, "names": NAMES}, "transform": two},
         "a join with a Table, which needs no state, use Stateless"),
        ({"output_mode": Stateless(), "steps": 1}, "means no state"),
        ({"output_mode": Timers(MINUTE, MINUTE), "steps": 0}, "means state"),
        ({"output_mode": EmitFinal(MINUTE, MINUTE), "max_records": 5}, "leave it out"),
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
        ({"output_mode": EmitChanges(MINUTE, MINUTE), "output": TopicOutput(Topic("out"), value="n")},
         "give the output a key"),
        ({"output": {"": OUT, "b": TopicOutput(Topic("b"), value="n")}}, "a text as the tag of each output"),
        ({"output": {1: OUT}}, "a text as the tag of each output"),
        ({"output": [OUT]}, "or several by tag"),
        ({"inputs": {"events": Topic("events")}}, "this is no input"),
        ({"inputs": [EVENTS]}, "inputs is not what it should be"),
        ({"transform": None}, "transform is not what it should be"),
        ({"output_mode": Stateless}, "output_mode is not what it should be"),
        ({"name": 5}, "is not usable"),
        ({"name": "x" * 121}, "120 at most"),
        ({"every": -1.0}, "every is too small"),
        ({"max_records": -1}, "max_records is too small"),
        ({"shuffle_partitions": 0}, "shuffle_partitions is too small"),
        ({"output": TopicOutput(Topic("out", compacted=True), value="n")}, "takes no rows without a key"),
        ({"output": TopicOutput(COMMITS, key="n", value="n")}, "a topic of Penstock's own"),
        ({"inputs": {"events": Input(COMMITS)}}, "a topic of Penstock's own"),
        ({"inputs": {"events": Input(pattern="o.*")}}, "pattern='(?!out$)(?:o.*)'"),
        ({"inputs": {"events": Input(pattern=".*")}}, "pattern='(?!out$|penstock[.])(?:.*)'"),
        ({"inputs": {"events": Input(pattern="s-.*", late_records="keep")}}, "matches s-late"),
        ({"inputs": {"events": Input(Topic("events"), late_records="keep"), "names": Input(Topic("s-late"))},
          "transform": two}, "reads its own output"),
        ({"inputs": {"events": Input(pattern="e.*")}, "output_mode": EmitFinal(MINUTE, MINUTE)}, "get no heartbeats"),
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
    assert (EmitFinal(hour, MINUTE).window_length, EmitFinal(hour, MINUTE).record_retention) == (hour, timedelta(0))
    sessions = EmitFinal(hour, MINUTE, first_step=5 * MINUTE)
    assert (sessions.window_length, sessions.record_retention, sessions.heartbeat_schedule) == (
        timedelta(0),
        5 * MINUTE,
        EmitFinal(hour, MINUTE).heartbeat_schedule,
    )


def test_what_a_pattern_is_advised_to_be_is_taken() -> None:
    declared(inputs={"events": Input(pattern="(?!out$|penstock[.])(?:.*)")})


LENGTHS: list[tuple[Any, str]] = [
    (lambda: EmitFinal(timedelta(0), MINUTE), "EmitFinal(window=...)"),
    (lambda: EmitFinal(MINUTE, -MINUTE), "EmitFinal(grace=...)"),
    (lambda: EmitFinal(MINUTE, MINUTE, first_step=-MINUTE), "EmitFinal(first_step=...)"),
    (lambda: EmitFinal("1 minute", MINUTE), "EmitFinal(window=...)"),  # type: ignore[arg-type]
    (lambda: EmitFinal(None, MINUTE), "EmitFinal(window=...)"),  # type: ignore[arg-type]
    (lambda: EmitChanges(timedelta(microseconds=10), MINUTE), "EmitChanges(window=...)"),
    (lambda: EmitChanges(MINUTE, 60), "EmitChanges(grace=...)"),  # type: ignore[arg-type]
    (lambda: EmitFinal(MINUTE, MINUTE, phase=-MINUTE), "EmitFinal(phase=...)"),
    (lambda: StreamJoin(-MINUTE, MINUTE), "StreamJoin(within=...)"),
    (lambda: Timers(timedelta(0), MINUTE), "Timers(tick=...)"),
    (lambda: Input(Topic("events"), max_ahead=-MINUTE), "input events: max_ahead"),
    (lambda: Input(Topic("events"), max_ahead=timedelta.max), "input events: max_ahead"),
    (lambda: EmitChanges(MINUTE, timedelta(days=365_001)), "EmitChanges(grace=...)"),
]


@pytest.mark.parametrize(("make", "what"), LENGTHS, ids=[what for _, what in LENGTHS])
def test_a_length_of_time_that_no_clock_can_keep(make: Any, what: str) -> None:
    """A window of no length would end the heartbeats of every stream."""
    with pytest.raises(DeclarationError) as e:
        make()
    assert f"{what} is not a valid duration" in str(e.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EmitFinal(MINUTE, MINUTE, phase=MINUTE),
        lambda: EmitChanges(MINUTE, MINUTE, phase=2 * MINUTE),
        lambda: EmitFinal(MINUTE, MINUTE, first_step=MINUTE, phase=timedelta(seconds=1)),
    ],
)
def test_a_phase_that_no_window_has(make: Any) -> None:
    with pytest.raises(DeclarationError, match="phase"):
        make()


def test_lengths_that_can_be_kept() -> None:
    assert (EmitFinal(MINUTE, timedelta(0)).first_step, StreamJoin(timedelta(0), timedelta(0)).watermark_delay) == (
        None,
        timedelta(0),
    )


EVENT = "n BIGINT, at TIMESTAMP, s STRUCT<at: TIMESTAMP>, day DATE"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"late_records": "Keep"}, 'give late_records="count" or "keep"'),
        ({"dead_letters": "drop"}, 'give dead_letters="keep" or "count"'),
        ({"on_data_loss": "go on"}, 'give on_data_loss="fail" or "continue"'),
        (
            {"event_time": "timestamp_millis(m)"},
            "got: m in timestamp_millis(m); hint: take one of: n, at, s, day",
        ),
        ({"event_time": "n"}, 'event_time="timestamp_millis(n)"'),
        ({"event_time": " "}, "has an empty event time"),
        ({"schema": "timestamp BIGINT", "event_time": "timestamp"}, "got: timestamp BIGINT"),
        ({"schema": "", "event_time": "at"}, "take one of: topic, partition, offset, key, value, timestamp"),
        ({"schema": "n BIGINT DEFAULT 5, at TIMESTAMP"}, "declares more than a type and NOT NULL; got: DEFAULT 5"),
        ({"topic": "events"}, "an input needs a Topic; got: 'events'"),
        ({"tombstones": "drop"}, 'give tombstones="dead letter" or "keep"'),
        ({"tombstones": "keep"}, "nothing would tell their keys"),
        ({"record": True, "schema": "Record INT, at TIMESTAMP"}, "of the name that the record itself has"),
        ({"record": True, "combine": Combiner("n BIGINT", "SELECT 1")}, "leave out record, or combine"),
        ({"event_time": "record.timestamp"}, "got: record in record.timestamp"),
    ],
)
def test_an_input_that_cannot_be_meant(changed: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"topic": Topic("events"), "schema": EVENT, "event_time": "at"}
    with pytest.raises(DeclarationError) as e:
        Input(**given | changed)
    assert said in str(e.value)


def test_an_input_of_whole_records() -> None:
    Input(Topic("events"), schema=EVENT, event_time="coalesce(at, record.timestamp)", record=True, tombstones="keep")
    Input(Topic("events"), record=True, event_time="record.timestamp")


@pytest.mark.parametrize(("output_mode", "good"), [(Stateless(), True), (EmitFinal(MINUTE, MINUTE), False)])
def test_every_time_is_believed_where_none_ends_a_window(output_mode: OutputMode, good: bool) -> None:
    given = {"rows": Input(Topic("events"), max_ahead=None)}
    with nullcontext() if good else pytest.raises(DeclarationError, match="accepts every event time"):
        Stream("s", "a", given, lambda rows: rows, TopicOutput(Topic("out"), value="value"), output_mode)


@pytest.mark.parametrize(
    "event_time",
    [
        "AT", "`at`", "s.at", "day", "timestamp_millis(n)", "at + INTERVAL 1 HOUR", "coalesce(at, current_timestamp())",
        "try_to_timestamp(CAST(n AS STRING))", "aggregate(array(n), 0L, (a, b) -> a + b, a -> timestamp_millis(a))",
        "CASE WHEN n > 5 THEN at ELSE s.at END", "from_utc_timestamp(at, 'Europe/Berlin')", "now()",
    ],
)  # fmt: skip
def test_event_times_that_spark_can_tell(event_time: str) -> None:
    Input(Topic("events"), schema=EVENT, event_time=event_time)


@pytest.mark.parametrize("reads", ["key", ("keys",), ["key"]])
def test_what_a_combiner_reads_is_there(reads: Any) -> None:
    with pytest.raises(DeclarationError, match="a tuple of: key, offset, partition"):
        Combiner("n BIGINT", "SELECT 1", reads=reads)


@pytest.mark.parametrize("columns", [5, ("n", ""), ("n", "n"), ("n", 5), [[]]])
def test_what_is_no_column(columns: Any) -> None:
    with pytest.raises(DeclarationError, match="names neither one column nor several"):
        TopicOutput(Topic("out"), value=columns)


@pytest.mark.parametrize(
    "wrong", [{"name": "."}, {"partitions": "4"}, {"partitions": 0}, {"heartbeat_every": -1}, {"retention": -MINUTE}]
)
def test_a_topic_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        Topic(**{"name": "events"} | wrong)


@pytest.mark.parametrize(("topic", "schema"), [("names", "n BIGINT"), (NAMES.topic, "Key STRING"), (NAMES.topic, "n")])
def test_a_table_that_cannot_be(topic: Any, schema: str) -> None:
    with pytest.raises(DeclarationError):
        Table(topic, schema=schema)
