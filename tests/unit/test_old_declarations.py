"""How declarations of before 0.2 are refused: by one error that says today's form."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import streams
from penstock.errors import DeclarationError
from penstock.sinks.influxdb.config import InfluxDB
from penstock.streams import Each, Input, Stream, Topic, TopicOutput, Updates

EVENTS = Input(Topic("events"), schema="n BIGINT, at TIMESTAMP", event_time="at")
MINUTES = Updates(timedelta(minutes=1), timedelta(minutes=1))
POINTS = InfluxDB(sink="s", database="shop", measurement="orders")
OUT = TopicOutput(Topic("out"), key="n", value="n")
KEEP = 'Input(..., late="keep")'


@pytest.mark.parametrize(
    ("old", "ways"),
    [
        ({"output": Topic("out"), "key": "n", "value": ("n", "at")},
         ["output=TopicOutput(Topic('out'), key='n', value=('n', 'at'))"]),
        ({"output": Topic("out"), "key": "n", "value": "at", "keep_late": True},
         ["output=TopicOutput(Topic('out'), key='n', value='at')", KEEP]),
        ({"output": Topic("out")}, ["output=TopicOutput(Topic('out'), key=..., value=...)"]),
        ({"output": POINTS, "key": "", "value": "line"}, ["leave key and value out"]),
        ({"output": OUT, "keep_late": True}, [KEEP]),
        ({"output": OUT, "keep_late": False}, ["no keep_late"]),
    ],
)  # fmt: skip
def test_one_error_says_todays_form(old: dict[str, Any], ways: list[str]) -> None:
    with pytest.raises(DeclarationError) as e:
        Stream("s", "a", {"events": EVENTS}, lambda events: events, promise=MINUTES, **old)
    assert "before 0.2" in e.value.what
    assert [way for way in ways if way not in e.value.hint] == []
    assert e.value.hint.count("; ") == len(ways) - 1


def test_todays_form_of_each_is_taken() -> None:
    given: dict[str, Any] = {"inputs": {"events": EVENTS}, "transform": lambda events: events}
    Stream("s", "a", output=TopicOutput(Topic("out"), key="n", value=("n", "at")), promise=MINUTES, **given)
    Stream("s", "a", output=POINTS, promise=Each(), **given)
    kept = Input(Topic("events"), schema="n BIGINT, at TIMESTAMP", event_time="at", late="keep")
    assert Stream("s", "a", output=OUT, promise=MINUTES, **{**given, "inputs": {"events": kept}}).keeps_late


@pytest.mark.parametrize("name", streams.MOVED)
def test_a_name_that_has_moved_says_where_it_is(name: str) -> None:
    with pytest.raises(DeclarationError, match=f"penstock.streams.{name} has moved; hint: ") as e:
        getattr(streams, name)
    statement, _, _ = e.value.hint.partition(",")
    exec(statement)  # it is there


def test_a_name_that_never_was_is_an_ordinary_mistake() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Strem'"):
        _ = streams.Strem  # type: ignore[attr-defined]
