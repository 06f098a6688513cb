"""State with timers: a machine that says nothing for ten minutes is told of once, and when it speaks again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.streams import Input, Stream, Timers, Topic, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SILENCE = 10 * 60_000
ROW = "machine STRING, since BIGINT, silent BOOLEAN"


def transform(signs: DataFrame) -> DataFrame:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Silences(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._handle = handle
            self._last = handle.getValueState("last", "at BIGINT, silent BOOLEAN")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
            at, silent = self._last.get() if self._last.exists() else (0, False)
            newest = max(int(row.event_time.timestamp() * 1000) for row in rows)
            if newest <= at:
                return
            if silent:
                yield Row(machine=key[0], since=newest, silent=False)
            elif at:
                self._handle.deleteTimer(at + SILENCE)
            self._handle.registerTimer(newest + SILENCE)
            self._last.update((newest, False))

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
            at = self._last.get()[0]
            self._last.update((at, True))
            yield Row(machine=key[0], since=at, silent=True)

        def close(self) -> None:
            pass

    return signs.groupBy("machine").transformWithState(Silences(), ROW, "Append", "EventTime")


STREAM = Stream(
    name="silences",
    app="examples",
    inputs={
        "signs": Input(
            Topic("signs", partitions=2), schema="machine STRING NOT NULL, at TIMESTAMP NOT NULL", event_time="at"
        )
    },
    transform=transform,
    output=TopicOutput(Topic("silences", partitions=1), key="machine", value=("since", "silent")),
    output_mode=Timers(tick=timedelta(minutes=1), grace=timedelta(minutes=1)),
)
