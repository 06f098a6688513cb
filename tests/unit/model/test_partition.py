"""Partitions of event time: which of them a watermark closes, and who may declare them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.model.archive import Archive
from penstock.model.output import CommitMarker
from penstock.model.output_mode import OutputMode
from penstock.model.partition import LENGTHS, Partitions, partition_key, partition_start
from penstock.streams import EmitChanges, EmitFinal, Input, Stream, Topic, TopicOutput

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
HOURS = Partitions(HOUR)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000)


def declared(partition: Any, mode: OutputMode) -> Stream:
    return Stream(
        "totals",
        "shop",
        inputs={"sales": Input(Topic("sales"), schema="amount INT, at TIMESTAMP", event_time="at", max_ahead=HOUR)},
        transform=lambda sales: sales,
        output=TopicOutput(Topic("totals"), key="shop", value="amount"),
        output_mode=mode,
        partition=partition,
    )


def test_a_partition_is_closed_when_the_watermark_is_at_its_end() -> None:
    assert HOURS.last_closed(ms("2026-01-31T23:59:59.999")) == "2026-01-31T22:00:00"
    assert HOURS.last_closed(ms("2026-02-01T00:00:00")) == "2026-01-31T23:00:00"
    day = Partitions(LENGTHS["day"])
    assert day.closed_after("2026-01-29T00:00:00", ms("2026-02-01T00:00:00")) == [
        "2026-01-30T00:00:00",
        "2026-01-31T00:00:00",
    ]


def test_windows_with_a_phase() -> None:
    two = Partitions(2 * MINUTE, MINUTE)
    assert two.last_closed(ms("2026-01-31T10:05:00")) == "2026-01-31T10:03:00"
    assert two.closed_after("2026-01-31T10:03:00", ms("2026-01-31T10:09:30")) == [
        "2026-01-31T10:05:00",
        "2026-01-31T10:07:00",
    ]


def test_the_partitions_of_an_interval() -> None:
    begin, end = datetime(2026, 1, 31, 10, 30, tzinfo=UTC), datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert HOURS.overlapping(begin, end) == ["2026-01-31T10:00:00", "2026-01-31T11:00:00"]
    assert HOURS.overlapping(end, end) == []
    windows = Partitions(2 * MINUTE, MINUTE)
    assert windows.overlapping(end, end + MINUTE + timedelta(microseconds=1)) == [
        "2026-01-31T11:59:00",
        "2026-01-31T12:01:00",
    ]


def test_the_partitions_of_the_first_and_the_last_years() -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert HOURS.overlapping(first, first + 2 * HOUR) == ["0001-01-01T00:00:00", "0001-01-01T01:00:00"]
    year = datetime(999, 12, 31, 23, tzinfo=UTC)
    keys = HOURS.overlapping(year, year + 2 * HOUR)
    assert keys == ["0999-12-31T23:00:00", "1000-01-01T00:00:00"]
    assert [partition_start(key) for key in keys] == [year, year + HOUR]
    assert HOURS.overlapping(last - HOUR, last) == ["9999-12-31T22:00:00", "9999-12-31T23:00:00"]
    windows = Partitions(2 * MINUTE, MINUTE)
    # The window before it begins in no year.
    assert windows.overlapping(first, first + 2 * MINUTE) == ["0001-01-01T00:01:00"]


@pytest.mark.parametrize("seed", range(30))
def test_however_the_watermark_moves_each_partition_is_closed_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    length = chance.choice([timedelta(seconds=10), MINUTE, 7 * MINUTE, HOUR, timedelta(days=1)])
    partitions = Partitions(length, timedelta(seconds=chance.randrange(int(length.total_seconds()))))
    mark = ms("2026-01-01T00:00:00") + chance.randrange(10**8)
    last = first = partitions.last_closed(mark)
    keys: list[str] = []
    for _ in range(20):
        mark += int(length.total_seconds() * 1000 * chance.choice([0, 0.01, 0.5, 1, 3.7]))
        keys += partitions.closed_after(last, mark, limit=chance.choice([1, 2, 1000]))
        last = keys[-1] if keys else last
    keys += partitions.closed_after(last, mark)
    starts = [partition_start(key) for key in [first, *keys]]
    assert starts == [starts[0] + n * length for n in range(len(starts))]
    assert starts[-1] + length <= datetime.fromtimestamp(mark / 1000, UTC) < starts[-1] + 2 * length
    assert [partition_key(start) for start in starts] == sorted([first, *keys])


def test_another_length_begins_after_what_is_recorded() -> None:
    assert Partitions(LENGTHS["day"]).closed_after("2026-01-31T22:00:00", ms("2026-02-02T00:00:00")) == [
        "2026-02-01T00:00:00"
    ]


@pytest.mark.parametrize(
    ("partition", "mode", "why"),
    [
        ("week", EmitFinal(HOUR, MINUTE), "'week'"),
        ("hour", EmitChanges(HOUR, MINUTE), "EmitChanges"),
        ("hour", EmitFinal(2 * HOUR, MINUTE), "windows of 2:00:00 in each hour"),
        ("window", EmitFinal(timedelta(milliseconds=1500), MINUTE), "0:00:01.5"),
    ],
)
def test_partitions_that_cannot_be(partition: str, mode: OutputMode, why: str) -> None:
    with pytest.raises(DeclarationError, match="cannot have partitions") as e:
        declared(partition, mode)
    assert why in str(e.value.got)


def test_partitions_of_a_declared_stream() -> None:
    assert declared("hour", EmitFinal(MINUTE, MINUTE)).partitions == HOURS
    assert declared("window", EmitFinal(2 * MINUTE, MINUTE, phase=MINUTE)).partitions == Partitions(2 * MINUTE, MINUTE)
    assert declared(None, EmitFinal(MINUTE, MINUTE)).partitions is None


def test_an_archive_has_hours_only() -> None:
    assert Archive("kept", Topic("sales"), "lake", partition="hour").partition == "hour"
    with pytest.raises(DeclarationError, match="cannot have these partitions"):
        Archive("kept", Topic("sales"), "lake", partition="day")  # type: ignore[arg-type]


def test_the_watermark_of_a_commit_marker() -> None:
    plan = 'v1\n{"batchWatermarkMs":1700000000000,"batchTimestampMs":1}\n{"t":{"0":1}}'
    assert CommitMarker("q", 3, {}, plans={3: plan, 2: plan}).watermark_ms == 1700000000000
    assert CommitMarker("q", 3, {}, plans={2: plan}).watermark_ms == 0
    assert CommitMarker("q", -1, {}).watermark_ms == 0
