"""What a capture remembers in Kafka comes back as it was."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from penstock.capture.output.position import (
    RECONCILES_KEPT,
    CatchUp,
    KeyRange,
    Position,
    SkippedTransactions,
    SnapshotProgress,
)
from penstock.capture.reconcile.drift import Drift
from penstock.errors import PenstockError

VALUES = [
    None, 0, 2**63, "text", 1.5, Decimal("1.10"), b"\x00\xff", UUID(int=7), date(2026, 1, 2),
    datetime(2026, 1, 2, 3, 4, 5, 600), datetime(2026, 1, 2, tzinfo=UTC), timedelta(microseconds=-5),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_it_comes_back_as_it_was(value: object) -> None:
    given = Position(
        "fingerprint",
        "topic",
        4,
        ("a", "b"),
        "server",
        (("a", "1"), ("b", "2")),
        value,
        SnapshotProgress((KeyRange(None, (value, 1)), KeyRange((value, 1))), 5, 9),
        CatchUp(value, (value, 1), value),
        SkippedTransactions(value, 1.5),
        "why",
        drift=Drift(missing=1),
        reconciles=(Drift(1, 2, 3, 4, 1.5, "why"),),
    )
    found = Position.read(given.value())
    assert found == given
    assert type(found.low) is type(value)


def test_without_snapshot_and_debt() -> None:
    given = Position("fingerprint", "topic", snapshot=SnapshotProgress())
    assert Position.read(given.value()) == given
    assert Position.read(Position("f", "t").value()) == Position("f", "t")


@pytest.mark.parametrize("fields", [["catch_up"], ["drift", "reconciles"]])
def test_one_of_an_earlier_version(fields: list[str]) -> None:
    given = Position("fingerprint", "topic", low=5)
    older = json.loads(given.value())
    for field in fields:
        del older[field]
    assert Position.read(json.dumps(older).encode()) == given


def test_the_last_reconciles_that_repaired_are_kept_with_the_last_one() -> None:
    position = Position("fingerprint", "topic", reconcile="why")
    for number in range(RECONCILES_KEPT + 2):
        position = position.repaired(missing=number).repaired(extra=1).reconciled(rows=number).reconciled(rows=50)
    found = position.reconciles
    assert [(d.missing, d.extra, d.rows) for d in found[:-1]] == [(n, 1, n) for n in range(2, RECONCILES_KEPT + 2)]
    assert (found[-1].repaired, found[-1].rows) == (0, 50)
    assert (position.reconcile, position.drift) == ("", Drift())
    assert len({int(d.ended) for d in found}) == len(found), "each second is the key of one event"


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"fingerprint": "f"}', b"\xff"])
def test_what_somebody_else_wrote_is_refused(value: bytes) -> None:
    with pytest.raises(PenstockError, match=r"penstock\.captures cannot be read.*new snapshot"):
        Position.read(value)


def test_a_cursor_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(PenstockError, match="key or cursor has a type that cannot be stored; got: complex"):
        Position("f", "t", low=complex(1)).value()
