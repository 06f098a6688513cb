"""The partitions of a stream that a backfill has changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.backfill.changed_partitions import emit_changed_partitions
from penstock.catalog import build
from penstock.control import Control
from penstock.streams import EmitFinal, Input, Stream, Topic, TopicOutput
from tests.support.control_tables import create_tables

MINUTE = timedelta(minutes=1)
TOTALS = Stream(
    "shop-totals",
    "shop",
    {"sales": Input(Topic("sales"), schema="shop STRING, at TIMESTAMP", event_time="at", max_ahead=MINUTE)},
    lambda sales: sales,
    TopicOutput(Topic("totals"), key="shop", value="shop"),
    EmitFinal(MINUTE, MINUTE),
    partition="hour",
)


def test_closed_partitions_of_the_interval_get_an_event(tmp_path: Path) -> None:
    control, catalog = Control(f"sqlite:///{tmp_path / 'control.db'}"), build([TOTALS])
    create_tables(control)
    control.record_partitions("shop-totals", [("2026-01-31T10:00:00", 1), ("2026-01-31T11:00:00", 1)], "emitted")

    def changed(target: str, begin: int | None, end: int) -> list[str]:
        day = datetime(2026, 1, 31, tzinfo=UTC)
        hour = None if begin is None else day.replace(hour=begin, minute=30)
        count = emit_changed_partitions(catalog, control, target, hour, day.replace(hour=end))
        keys = [e.partition_key[11:13] for e in control.take_due_partitions("partitions/r", {"shop-totals": []})]
        assert count == len(keys)
        return keys

    assert changed("others", 10, 12) == []
    assert changed("totals", 10, 15) == ["10", "11"]
    assert changed("totals", 8, 11) == ["08", "09", "10"]
    assert changed("totals", None, 10) == ["08", "09"]
    control.engine.dispose()
