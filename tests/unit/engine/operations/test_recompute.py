"""Which chains of streams can be computed again, as far as declarations tell, and which part of an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from jobs.metrics import RECEIPTS, bundles, minutes, summaries
from jobs.quality import counts
from penstock.engine.operations.recompute import check_chain, whole_windows
from penstock.errors import DeclarationError
from penstock.model.output_mode import OutputMode
from penstock.streams import EmitChanges, EmitFinal, Input, Stateless, Stream, Table, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTE = timedelta(minutes=1)
A, B, C = (Topic(name) for name in "abc")
START = datetime(2026, 1, 1, 10, tzinfo=UTC)


def same(given: DataFrame) -> DataFrame:
    return given


def joined(given: DataFrame, more: DataFrame) -> DataFrame:
    return given.join(more, "key")


def reading(topic: Topic, **more: Any) -> Input:
    return Input(topic, schema="at BIGINT", event_time="timestamp_millis(at)", **more)


def stream(given: Topic, target: Topic, output_mode: OutputMode | None = None, **more: Any) -> Stream:
    said: dict[str, Any] = {"output": TopicOutput(target, key="at", value="at"), "transform": same}
    said |= {"inputs": {"given": reading(given)}, "output_mode": output_mode or EmitChanges(MINUTE, MINUTE)}
    return Stream(f"{given.name}-to-{target.name}", "tests", **(said | more))


FIRST, SECOND = stream(A, B), stream(B, C, EmitFinal(2 * MINUTE, MINUTE))
TABLE = Table(Topic("t", compacted=True), schema="n INT")
REFUSED: dict[str, list[Stream]] = {
    "has no stream": [],
    "joins tables": [stream(A, B, inputs={"given": reading(A), "more": TABLE}, transform=joined)],
    "reads more than one input": [stream(A, B, inputs={"given": reading(A), "more": reading(C)}, transform=joined)],
    "reads a share": [stream(A, B, inputs={"given": reading(A, share=(1, 2))})],
    "does not count by windows alone; got: Stateless, 0": [stream(A, B, Stateless())],
    "does not count by windows alone; got: EmitFinal, 1": [stream(A, B, EmitFinal(MINUTE, MINUTE, first_step=MINUTE))],
    "does not write one topic by key; got: b;": [
        stream(A, B, EmitFinal(MINUTE, MINUTE), output=TopicOutput(B, value="at"))
    ],
    "does not write one topic by key; got: b, c;": [
        stream(A, B, output={"b": FIRST.output, "c": TopicOutput(C, key="at", value="at")})
    ],
    "does not read what a-to-b writes": [FIRST, stream(A, C)],
    "reads more of b than its values; got: no schema": [FIRST, replace(SECOND, inputs={"given": Input(B)})],
    "reads more of b than its values; got: record": [FIRST, stream(B, C, inputs={"given": reading(B, record=True)})],
    "windows that cut those of a-to-b": [FIRST, stream(B, C, EmitChanges(1.5 * MINUTE, MINUTE))],
    "windows that cut those of a-to-b; got: windows of 0:01:00 of": [
        FIRST, stream(B, C, EmitChanges(MINUTE, MINUTE, phase=MINUTE / 2))
    ],
    "does not read what is archived": [SECOND],
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_what_does_not_fit(why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        check_chain(REFUSED[why], "a")


@pytest.mark.parametrize(
    "chain", [[bundles.STREAM, summaries.STREAM], [bundles.STREAM], [minutes.STREAM], [counts.STREAM]]
)
def test_the_shipped_streams_fit(chain: Sequence[Stream]) -> None:
    check_chain(chain, RECEIPTS.name)


def test_whole_windows_of_an_interval() -> None:
    odd = stream(B, C, EmitChanges(2 * MINUTE, MINUTE, phase=MINUTE))
    for chain, start, end, low, high in (
        ([FIRST, SECOND], 0.0, 4.0, 0, 4),
        ([FIRST, SECOND], 0.5, 5.9, 2, 4),
        ([FIRST, odd], 0.0, 4.0, 1, 3),
        ([FIRST, odd], 1.0, 1.5, 1, 1),
        ([FIRST], 0.1, 0.9, 1, 1),
    ):
        found = whole_windows(chain, START + start * MINUTE, START + end * MINUTE)
        assert found == (START + low * MINUTE, START + high * MINUTE)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert whole_windows([odd], epoch - MINUTE, epoch + 2 * MINUTE) == (epoch + MINUTE, epoch + MINUTE)
    with pytest.raises(DeclarationError, match="without a zone"):
        whole_windows([FIRST], START.replace(tzinfo=None), START)
