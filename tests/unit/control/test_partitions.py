"""Events of partitions in the control database: each is given to one run, however many ask at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.control import Control
from penstock.control.repositories import partitions
from tests.support.control_tables import create_tables

ASSET = ("topic:totals", "kafka://broker/totals")
KEYS = [f"2026-01-31T{hour:02}:00:00" for hour in range(24)]


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    monkeypatch.setattr(partitions, "RETRY_MS", -1)
    made = Control(f"sqlite:///{tmp_path / 'control.db'}")
    create_tables(made)
    yield made
    made.engine.dispose()


def taken(control: Control, run: str = "partitions/r1", limit: int = 100) -> list[tuple[str, int]]:
    return [(e.partition_key, e.revision) for e in control.take_due_partitions(run, {"totals": [ASSET]}, limit)]


def test_a_partition_is_recorded_once(control: Control) -> None:
    assert control.last_partition("totals") is None
    assert control.record_partitions("totals", [(KEYS[0], 1)], "known") == 1
    assert control.record_partitions("totals", [(key, 1) for key in KEYS[:3]]) == 2
    assert control.record_partitions("totals", [(key, 1) for key in KEYS[:3]]) == 0
    assert control.last_partition("totals") == KEYS[2]
    assert control.partition_revisions("totals") == dict.fromkeys(KEYS[:3], 1)
    assert control.partition_event_due(["totals"])
    assert not control.partition_event_due(["others"])
    assert taken(control) == [(KEYS[1], 1), (KEYS[2], 1)]
    assert taken(control) == []


def test_two_that_emit_at_once_share_the_events(control: Control) -> None:
    control.record_partitions("totals", [(key, 1) for key in KEYS])

    def take(n: int) -> list[tuple[str, int]]:
        return [one for _ in range(8) for one in taken(control, f"partitions/r{n}", 2)]

    with ThreadPoolExecutor(4) as pool:
        found = [one for part in pool.map(take, range(4)) for one in part]
    assert sorted(found) == [(key, 1) for key in KEYS]


def test_an_event_that_airflow_lacks_is_due_again_and_one_that_it_has_is_not(control: Control) -> None:
    control.record_partitions("totals", [(key, 1) for key in KEYS[:2]])
    taken(control)
    first, second = sorted(control.sent_partitions(), key=lambda e: e.partition_key)
    assert control.settle_partitions([first]) == 1
    assert control.settle_partitions([second], lacking=[ASSET]) == 1
    assert control.sent_partitions() == []
    assert taken(control, "partitions/r2") == [(KEYS[1], 1)]
    # What r1 was found to lack says nothing about r2.
    assert control.settle_partitions([second], lacking=[ASSET]) == 0
    assert [(e.run, e.attempts) for e in control.sent_partitions()] == [("partitions/r2", 2)]


def test_an_event_that_airflow_has_for_one_asset_is_due_for_the_other_alone(control: Control) -> None:
    first, second = ("topic:a", "kafka://a"), ("topic:b", "kafka://b")
    control.record_partitions("totals", [(KEYS[0], 1)])
    [event] = control.take_due_partitions("partitions/r1", {"totals": [first, second]})
    assert event.lacking == [first, second]
    control.settle_partitions(control.sent_partitions(), lacking=[second])
    # What changes the partition meanwhile concerns both.
    assert control.renew_partitions("totals", [KEYS[0]]) == 1
    moved = ("topic:b", "kafka://elsewhere")
    found = []
    for run in ("partitions/r2", "partitions/r3"):
        [event] = control.take_due_partitions(run, {"totals": [first, moved]})
        found.append((event.revision, event.lacking))
        control.settle_partitions(control.sent_partitions())
    assert found == [(2, [first, moved]), (1, [moved])]


def test_events_that_airflow_does_not_take_hold_up_no_others(control: Control) -> None:
    control.record_partitions("totals", [(key, 1) for key in KEYS[:3]])
    assert len(taken(control, "partitions/r1", 3)) == 3
    control.settle_partitions(control.sent_partitions(), lacking=[ASSET])
    control.record_partitions("totals", [(KEYS[3], 1)])
    assert taken(control, "partitions/r2", 3) == [(KEYS[3], 1), (KEYS[0], 1), (KEYS[1], 1)]


def test_a_run_that_is_cleared_has_no_second_event_of_a_partition(control: Control) -> None:
    """Airflow would tell them apart by nothing, and the second be taken for recorded."""
    control.record_partitions("totals", [(KEYS[0], 1)])
    assert taken(control, "partitions/r1") == [(KEYS[0], 1)]
    control.settle_partitions(control.sent_partitions())
    control.renew_partitions("totals", [KEYS[0]])
    assert taken(control, "partitions/r1") == []
    assert taken(control, "partitions/r2") == [(KEYS[0], 2)]


def test_what_a_reset_has_recorded_is_recorded_though_a_backfill_changes_it_too(control: Control) -> None:
    control.record_partitions("totals", [(key, 1) for key in KEYS[:3]])
    taken(control)
    control.settle_partitions(control.sent_partitions())
    assert control.renew_partitions("totals", KEYS[:2], "reset") == 2
    assert control.renew_partitions("totals", KEYS[:1]) == 0
    assert taken(control, "partitions/r2") == [(KEYS[0], 2), (KEYS[1], 2)]
    assert control.renew_partitions("totals", KEYS[:2], "reset") == 0


def test_an_event_that_airflow_lacks_waits_a_moment(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    control.record_partitions("totals", [(KEYS[0], 1)])
    taken(control)
    control.settle_partitions(control.sent_partitions(), lacking=[ASSET])
    monkeypatch.setattr(partitions, "RETRY_MS", 60_000)
    assert not control.partition_event_due(["totals"])
    assert taken(control) == []


def test_what_has_changed_is_emitted_again(control: Control) -> None:
    assert control.renew_partitions("totals", KEYS) == 0, "nothing is closed"
    control.record_partitions("totals", [(KEYS[1], 1)], "known")
    control.record_partitions("totals", [(KEYS[2], 1)])
    # Nothing is told of a partition that is not closed, and one event tells of two changes.
    assert control.renew_partitions("totals", KEYS[:4]) == 2
    assert control.renew_partitions("totals", KEYS[:4]) == 0
    assert taken(control) == [(KEYS[0], 1), (KEYS[1], 2), (KEYS[2], 1)]
    assert control.renew_partitions("totals", KEYS[:2]) == 2
    assert taken(control) == [(KEYS[0], 2), (KEYS[1], 3)]


def test_a_reset_renews_a_partition_once(control: Control) -> None:
    control.record_partitions("totals", [(key, 1) for key in KEYS[:2]])
    assert control.renew_partitions("totals", KEYS[:1], "r1") == 0, "the event that is due serves for it"
    assert taken(control) == [(KEYS[0], 1), (KEYS[1], 1)]
    assert control.renew_partitions("totals", KEYS[:2], "r1") == 1
    assert taken(control) == [(KEYS[1], 2)]
    assert control.renew_partitions("totals", KEYS[:2], "r1") == 0
    assert control.renew_partitions("totals", KEYS[:2], "r2") == 2


def test_one_run_has_one_event_of_a_partition(control: Control) -> None:
    control.record_partitions("kept", [(KEYS[0], 1), (KEYS[0], 2)])
    assert [e.revision for e in control.take_due_partitions("partitions/r1", {"kept": []})] == [1]
    assert [e.revision for e in control.take_due_partitions("partitions/r2", {"kept": []})] == [2]


def test_a_stream_that_was_removed_begins_anew(control: Control) -> None:
    for name in ("totals", "others"):
        control.record_partitions(name, [(KEYS[0], 1)])
    control.forget_partitions("totals")
    assert control.last_partition("totals") is None
    assert control.last_partition("others") == KEYS[0]


def test_old_events_are_removed_but_for_the_last_partition(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    control.record_partitions("totals", [(key, 1) for key in KEYS[:4]], "emitted")
    control.record_partitions("totals", [(KEYS[4], 1)])
    control.record_partitions("totals", [(KEYS[5], 1)], "emitted")
    control.prune_partitions("totals")
    assert len(control.partition_revisions("totals")) == 6
    monkeypatch.setattr(partitions, "KEEP_MS", -1)
    control.prune_partitions("totals")
    assert sorted(control.partition_revisions("totals")) == KEYS[4:6]


def test_old_events_of_reconciles_are_removed_when_one_is_added(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(*hours: int) -> None:
        for hour in hours:
            with control.begin() as c:
                partitions.add_reconciles(c, "shops", [3600.0 * hour])

    add(1, 2)
    control.take_due_partitions("partitions/r1", {"capture:shops": []}, limit=1)
    assert control.settle_partitions(control.sent_partitions()) == 1
    add(3)
    assert len(control.partition_revisions("capture:shops")) == 3
    monkeypatch.setattr(partitions, "KEEP_MS", -1)
    add(3)
    assert [key[11:13] for key in sorted(control.partition_revisions("capture:shops"))] == ["02", "03"]
    ends = [3600.0, 7200.0, 10800.0]
    with control.begin() as c:
        partitions.add_reconciles(c, "shops", ends)
    for run in ("partitions/r2", "partitions/r3", "partitions/r4"):
        [event] = control.take_due_partitions(run, {"capture:shops": []})
        control.settle_partitions([event])
    for _ in range(2):
        with control.begin() as c:
            partitions.add_reconciles(c, "shops", ends)
    assert not control.partition_event_due(["capture:shops"]), "what is named again is not forgotten"
