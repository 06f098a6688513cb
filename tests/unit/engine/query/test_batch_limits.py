"""When the batches of a stream with `every` and `max_records` begin."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.engine.query.source import batch_limits, has_trigger
from penstock.model.input import Input
from penstock.model.output import TopicOutput
from penstock.model.output_mode import Stateless
from penstock.model.stream import Stream
from penstock.model.topic import Topic

TRANSFORMS: dict[int, Any] = {1: lambda i0: i0, 2: lambda i0, i1: i0.union(i1)}


def stream(inputs: int, every: float) -> Stream:
    return Stream(
        name="copying",
        app="tests",
        inputs={
            f"i{n}": Input(Topic(f"events{n}"), schema="n BIGINT", event_time="timestamp_millis(n)")
            for n in range(inputs)
        },
        transform=TRANSFORMS[inputs],
        output=TopicOutput(Topic("copies"), key="n", value=("n",)),
        output_mode=Stateless(),
        every=every,
        max_records=5,
    )


@pytest.mark.parametrize(
    ("inputs", "every", "limited", "trigger", "options"),
    [
        (1, 6.0, True, False, {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "3", "maxTriggerDelay": "6000ms"}),
        (1, 6.0, False, True, {}),
        (1, 0.0, True, False, {"maxOffsetsPerTrigger": "5"}),
        # The records of one input do not wait while a batch reads those of the other.
        (2, 6.0, True, True, {"maxOffsetsPerTrigger": "5"}),
        (2, 0.0, True, False, {"maxOffsetsPerTrigger": "5"}),
    ],
)
def test_who_begins_batches(inputs: int, every: float, limited: bool, trigger: bool, options: dict[str, str]) -> None:
    one = stream(inputs, every)
    assert has_trigger(one, limited=limited) == trigger
    if limited:
        assert batch_limits(one, 5) == options
