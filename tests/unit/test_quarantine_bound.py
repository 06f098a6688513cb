"""How many records in a row are put aside, over batches that follow each other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.engine.checkpoint.layout import PlannedBatch
from penstock.engine.checkpoint.offset_log import BatchPlan
from penstock.engine.faults import poison
from penstock.engine.faults.bisect import RecordOrder
from penstock.engine.faults.poison import PoisonRecords
from penstock.engine.query.source import RecordPosition
from penstock.errors import Blocked

BAD = {3, 12, 15}


def batch(number: int, start: int, end: int) -> PlannedBatch:
    return PlannedBatch(number, 0, 0, {"t": {0: start}}, {"t": {0: end}}, BatchPlan("", {}, ()), None)


def run(part: PlannedBatch, without: list[RecordPosition]) -> str:
    here = range(part.starts["t"][0], part.ends["t"][0])
    left = BAD - {place.offset for place in without}
    return "it is bad" if any(at in here for at in left) else ""


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> PoisonRecords:
    def search(self: PoisonRecords, of: PlannedBatch, _: object) -> dict[RecordPosition, str]:
        order = RecordOrder([("t", 0, of.starts["t"][0], of.ends["t"][0])])
        return self._found(of, order, run, lambda: False)

    monkeypatch.setattr(poison, "_is_infrastructure", lambda _: False)
    monkeypatch.setattr(PoisonRecords, "_search", search)
    stream = SimpleNamespace(name="s", app="a", max_poison=2, sources={})
    return PoisonRecords(stream, None, "", lambda _: None, "", lambda _: None)  # type: ignore[arg-type, return-value]


def take(held: PoisonRecords, of: PlannedBatch) -> None:
    """As a stream does: what fails is tried again, without what was found."""

    def work() -> None:
        if why := run(of, list(held.left_out)):
            raise ValueError(why)

    for _ in range(5):
        try:
            held.watch(of, work, lambda: False, written=False)
        except ValueError:
            continue
        held.letters(of, None)  # type: ignore[arg-type]
        return
    pytest.fail("the batch never passed")


def test_records_of_batches_behind_each_other_count_together(held: PoisonRecords) -> None:
    take(held, batch(0, 0, 10))
    # Spark runs batches without records too: these end no row.
    take(held, batch(1, 10, 10))
    with pytest.raises(Blocked, match="more than 2, up to batch 2"):
        take(held, batch(2, 10, 20))


def test_a_good_batch_ends_the_row(held: PoisonRecords) -> None:
    take(held, batch(0, 0, 10))
    take(held, batch(1, 10, 11))
    take(held, batch(2, 11, 20))
    assert {place.offset for place in held.left_out} == {12, 15}
