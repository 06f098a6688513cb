"""Which partitions are due: by commit markers and closed hours of archives, through restarts, resets and outages."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from penstock.catalog import Partitioned, PartitionedArchive, PartitionedStream
from penstock.control import Control
from penstock.errors import Wait
from penstock.model.output import CommitMarker
from penstock.model.partition import Partitions, partition_start
from penstock.supervision.event_clock.partitions import ARCHIVES_EVERY, PartitionWatch

HOUR = timedelta(hours=1)
START = datetime(2026, 1, 31, 10, 20, tzinfo=UTC)
TOTALS = PartitionedStream("totals", Partitions(HOUR))
RUNS = count()
KEPT = PartitionedArchive("kept", "penstock.kept")


class Markers:
    """The commit markers of streams that have come to a watermark."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def commit(
        self,
        at: datetime | int | None,
        name: str = "totals",
        batch: int = 7,
        reset_id: str = "",
        floor: int | None = None,
        earlier: Sequence[tuple[str, int | None, int]] = (),
    ) -> None:
        mark = int(at.timestamp() * 1000) if isinstance(at, datetime) else at or 0
        plan = "v1\n" + json.dumps({"batchWatermarkMs": mark, "batchTimestampMs": 1}) + '\n{"t":{"0":1}}'
        self.values[name] = CommitMarker(
            "q", batch, {}, plans={batch: plan}, reset_id=reset_id, reset_floor=floor, earlier_resets=earlier
        ).value()

    def read(self) -> Mapping[str, bytes]:
        return self.values

    def close(self) -> None: ...


def due(control: Control, name: str = "totals") -> list[str]:
    taken = control.take_due_partitions(f"partitions/r{next(RUNS)}", {name: []}, 10_000)
    return [f"{e.partition_key}/{e.revision}" for e in taken]


def watch(control: Control, markers: Markers, *declared: Partitioned) -> PartitionWatch:
    return PartitionWatch(declared or [TOTALS], control, "", markers)


def test_the_first_partition_is_the_one_in_which_the_watermark_is_first_seen(control: Control) -> None:
    markers = Markers()
    looking = watch(control, markers)
    assert looking.look() == 0, "no marker yet"
    for at in (None, START):
        markers.commit(at)
        assert looking.look() == 0
    markers.commit(START + HOUR)
    assert looking.look() == 1
    assert looking.look() == 0
    assert due(control) == ["2026-01-31T10:00:00/1"]


def test_grace_is_in_the_watermark_and_an_earlier_step_delays_it(control: Control) -> None:
    markers = Markers()
    markers.commit(START)
    behind = PartitionedStream("totals", Partitions(HOUR), timedelta(minutes=5))
    looking = watch(control, markers, behind)
    looking.look()
    markers.commit(START.replace(hour=11, minute=4, second=59))
    assert looking.look() == 0
    markers.commit(START.replace(hour=11, minute=5))
    assert looking.look() == 1


@pytest.mark.parametrize("far", [1 << 62, 253_402_300_800_000, -62_135_596_800_000, -(1 << 62)])
def test_a_watermark_outside_of_the_calendar_holds_up_no_other_stream(control: Control, far: int) -> None:
    markers = Markers()
    markers.commit(START)
    markers.commit(START, name="far")
    looking = watch(control, markers, PartitionedStream("far", Partitions(HOUR)), TOTALS)
    looking.look()
    markers.commit(far, name="far")
    markers.commit(START + HOUR)
    assert looking.look() == 1
    assert due(control) == ["2026-01-31T10:00:00/1"]
    markers.commit(START + HOUR, name="far")
    assert looking.look() == 1


@pytest.mark.parametrize("seed", range(25))
def test_each_closed_partition_is_due_once_through_restarts_and_resets(control: Control, seed: int) -> None:
    chance = random.Random(seed)
    length = chance.choice([timedelta(minutes=1), HOUR, timedelta(days=1)])
    partitions, markers, at = Partitions(length), Markers(), START
    declared = PartitionedStream("totals", partitions)
    markers.commit(at)
    watches = [watch(control, markers, declared)]
    watches[0].look()
    found: list[str] = []
    for _ in range(30):
        match chance.choice(["moves", "moves", "moves", "restart", "reset", "two"]):
            case "moves":
                at += length * chance.choice([0.1, 0.5, 1, 2.5])
                markers.commit(at)
            case "restart":
                watches = [watch(control, markers, declared)]
            case "reset":
                # The stream reads its inputs again: no watermark, then one of the past.
                for earlier in (None, at - 3 * length):
                    markers.commit(earlier, batch=0)
                    watches[0].look()
                markers.commit(at)
            case "two":
                watches = [*watches[:1], watch(control, markers, declared)]
        for looking in watches:
            looking.look()
        found += due(control)
    starts = [partition_start(key.partition("/")[0]) for key in found]
    first = partition_start(partitions.last_closed(int(START.timestamp() * 1000))) + length
    assert starts == [first + n * length for n in range(len(starts))]
    assert first + len(starts) * length <= at < first + (len(starts) + 1) * length


@pytest.mark.parametrize("last", ["r2", "rebuilt"])
@pytest.mark.parametrize("is_looking", [True, False])
def test_what_a_reset_had_computed_again_is_due_though_another_came_before_a_look(
    control: Control, last: str, is_looking: bool
) -> None:
    """As when Airflow is down. A rebuilt state computes nothing again, and knows of the reset before it."""
    markers = Markers()
    markers.commit(START)
    watch(control, markers).look()
    markers.commit(START + 10 * HOUR)
    watch(control, markers).look()
    assert len(due(control)) == 10
    control.settle_partitions(control.sent_partitions())

    def at(hour: int) -> int:
        return int(START.replace(hour=hour, minute=0).timestamp() * 1000)

    markers.commit(START + 8 * HOUR, reset_id="r1", floor=at(12))
    if is_looking:
        watch(control, markers).look()
    # The first reset had come to 18:20.
    earlier = [("r1", at(12), at(18) + 1_200_000)]
    now = START + 10 * HOUR
    markers.commit(now, reset_id="r2" if last == "r2" else "", floor=at(16) if last == "r2" else None, earlier=earlier)
    looking = watch(control, markers)
    looking.look()
    hours = range(12, 20 if last == "r2" else 18)
    found = due(control)
    assert {key.partition("/")[0] for key in found} == {f"2026-01-31T{hour}:00:00" for hour in hours}
    assert len(found) == len(hours), "one event serves for both"
    control.settle_partitions(control.sent_partitions())
    for one in (looking, watch(control, markers), watch(control, markers)):
        one.look()
    assert due(control) == []


def test_what_a_reset_computes_again_is_due_again_when_it_is_closed_again(control: Control) -> None:
    markers = Markers()
    markers.commit(START)
    looking = watch(control, markers)
    looking.look()
    markers.commit(START + 4 * HOUR)
    looking.look()
    assert due(control) == [f"2026-01-31T{hour}:00:00/1" for hour in (10, 11, 12, 13)]
    floor = int((START + 2 * HOUR).replace(minute=0).timestamp() * 1000)
    found: list[list[str]] = []
    for ahead in (None, HOUR, 3 * HOUR, 3 * HOUR, 6 * HOUR, 7 * HOUR):
        markers.commit(None if ahead is None else START + ahead, reset_id="r1", floor=floor)
        for one in (looking, watch(control, markers)):
            one.look()
        found.append(due(control))
    assert found == [
        [],
        [],
        ["2026-01-31T12:00:00/2"],
        [],
        [*(f"2026-01-31T{h}" for h in ("13:00:00/2", "14:00:00/1", "15:00:00/1"))],
        ["2026-01-31T16:00:00/1"],
    ]
    markers.commit(START + 2 * HOUR, reset_id="r2")
    looking.look()
    assert due(control) == ["2026-01-31T09:00:00/2", "2026-01-31T10:00:00/2", "2026-01-31T11:00:00/2"]


def test_a_long_pause_is_made_up_in_steps(control: Control) -> None:
    markers = Markers()
    markers.commit(START)
    looking = watch(control, markers, PartitionedStream("totals", Partitions(timedelta(minutes=1))))
    looking.look()
    markers.commit(START + timedelta(days=1))
    assert [looking.look() for _ in range(3)] == [1000, 440, 0]


def test_a_marker_that_cannot_be_read_holds_up_no_other_stream(control: Control) -> None:
    markers = Markers()
    looking = watch(control, markers, TOTALS, PartitionedStream("others", Partitions(HOUR)))
    for at in (START, START + HOUR):
        markers.commit(at, "others")
        markers.values["totals"] = b'{"plans": 1}'
        looking.look()
    assert due(control, "others") == ["2026-01-31T10:00:00/1"]


class Hours:
    """An archive, its closed hours with their revisions, and a clock."""

    def __init__(self) -> None:
        self.closed: dict[str, int] = {}
        self.down, self.now = False, 0.0

    def read(self, archive: PartitionedArchive) -> Mapping[datetime, int]:
        assert archive == KEPT
        self.now += ARCHIVES_EVERY
        if self.down:
            raise Wait("the store does not answer", seconds=1.0)
        return {datetime.fromisoformat(f"{hour}:00Z"): revision for hour, revision in self.closed.items()}

    def watch(self, control: Control) -> PartitionWatch:
        self.now += ARCHIVES_EVERY
        return PartitionWatch([KEPT], control, "", Markers(), self.read, lambda: self.now)


@pytest.mark.parametrize("earlier", [{}, {"2026-01-31T08": 2}])
def test_hours_of_an_archive_are_due_once_for_each_time_that_they_are_closed(
    control: Control, earlier: dict[str, int]
) -> None:
    hours = Hours()
    hours.closed |= earlier
    looking = hours.watch(control)
    assert looking.look() == 0
    hours.closed["2026-01-31T10"] = 1
    assert looking.look() == 1
    looking = hours.watch(control)
    assert looking.look() == 0
    assert due(control, "kept") == ["2026-01-31T10:00:00/1"]
    hours.down = True
    assert looking.look() == 0
    hours.down = False
    # Records came later; and an hour before the first one that was ever closed.
    hours.closed |= {"2026-01-31T10": 2, "2026-01-31T07": 1}
    assert looking.look() == 2
    assert due(control, "kept") == ["2026-01-31T07:00:00/1", "2026-01-31T10:00:00/2"]
