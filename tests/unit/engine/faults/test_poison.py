"""How many records in a row are put aside, over batches that follow each other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.engine.checkpoint.layout import PlannedBatch
from penstock.engine.checkpoint.offset_log import BatchPlan
from penstock.engine.faults import poison, poison_search
from penstock.engine.faults.bisect import RecordOrder
from penstock.engine.faults.poison import PoisonRecords
from penstock.engine.faults.poison_search import PoisonSearch
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
    def order(of: PlannedBatch, _: str) -> RecordOrder:
        return RecordOrder([("t", 0, of.starts["t"][0], of.ends["t"][0])])

    monkeypatch.setattr(poison, "is_infrastructure_error", lambda _: False)
    monkeypatch.setattr(poison, "find_corrupt_offsets", lambda *_, **__: None)
    monkeypatch.setattr(poison_search, "record_order", order)
    monkeypatch.setattr(PoisonSearch, "_run_without_state", lambda _, part, without, __: run(part, without))
    stream = SimpleNamespace(name="s", app="a", max_poison=2, sources={})
    search = PoisonSearch(stream, None, "", lambda _: None, "")  # type: ignore[arg-type, return-value]
    return PoisonRecords(stream, search, lambda _: None)  # type: ignore[arg-type]


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
        held.dead_letters(of, None)  # type: ignore[arg-type]
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
