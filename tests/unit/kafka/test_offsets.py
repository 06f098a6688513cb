"""Offsets asked of a broker that has just crashed."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from penstock.engine.operations import rebuild_from_inputs, reset_plan
from penstock.kafka import admin
from penstock.kafka.admin import RetentionPolicy


class Client:
    """Answers each request for offsets with the same."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def list_offsets(self, asked: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        found: dict[Any, Future[Any]] = {}
        for at in asked:
            found[at] = Future()
            if isinstance(self.answer, Exception):
                found[at].set_exception(self.answer)
            else:
                found[at].set_result(self.answer)
        return found

    def list_topics(self, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(topics={})


def test_a_client_that_knows_leaders_of_before_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its epoch is higher than the broker's, and librdkafka never takes a lower one."""
    fenced = Client(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))
    made: list[Client] = []

    def client(_: Any) -> Client:
        made.append(Client(SimpleNamespace(offset=1007)))
        return made[-1]

    monkeypatch.setattr(admin, "AdminClient", client)
    monkeypatch.setattr(admin, "RENEW_CLIENT_AFTER", 0.0)
    admin.admin.cache_clear()
    try:
        found = admin.end_offsets(fenced, [("t", 0)], "nowhere:1")  # type: ignore[arg-type]
        assert found == {("t", 0): 1007}
        assert admin.admin("nowhere:1") is made[0], "the next one asks the new client at once"  # type: ignore[comparison-overlap]
    finally:
        admin.admin.cache_clear()


def test_what_a_dead_leader_left_unsaid_is_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka was seen to answer so when one of three brokers died, with no error: the log would seem to be cut."""
    unsaid, told = (Client(SimpleNamespace(offset=offset)) for offset in (OFFSET_INVALID, 1007))
    monkeypatch.setattr(admin, "AdminClient", lambda _: told)
    monkeypatch.setattr(admin, "RENEW_CLIENT_AFTER", 0.0)
    assert admin.end_offsets(unsaid, [("t", 0)], "nowhere:1") == {("t", 0): 1007}  # type: ignore[arg-type]
    monkeypatch.setattr(admin, "REQUEST_TIMEOUT", 0.0)
    assert admin.end_offsets(unsaid, [("t", 0)], "nowhere:1") == {}  # type: ignore[arg-type]
    admin.admin.cache_clear()


@pytest.mark.parametrize(
    ("removed", "older"),
    [
        (RetentionPolicy(timestamps_increase=False, deletes_by_size=False, deleted_before=None), True),
        (RetentionPolicy(timestamps_increase=False, deletes_by_size=False, deleted_before=900), True),
        # What is removed for its age may be newer than the first that is left, and by size anything may be.
        (RetentionPolicy(timestamps_increase=False, deletes_by_size=False, deleted_before=1100), False),
        (RetentionPolicy(timestamps_increase=False, deletes_by_size=True, deleted_before=None), False),
        (RetentionPolicy(timestamps_increase=True, deletes_by_size=True, deleted_before=1100), True),
    ],
)
def test_what_was_removed_need_not_be_older_than_what_is_left(removed: RetentionPolicy, *, older: bool) -> None:
    assert rebuild_from_inputs.removed_before(removed, 1000) is older


@pytest.mark.processes
@pytest.mark.parametrize(("until", "floor"), [(None, 1000 + 60_000), (5000, 5000 + 60_000)])
def test_windows_of_what_was_removed_for_its_age_are_left_as_they_are(
    monkeypatch: pytest.MonkeyPatch, until: int | None, floor: int
) -> None:
    """Though the first that is left is stamped long ago."""
    monkeypatch.setattr(reset_plan, "_newest_timestamps", lambda *_: {("t", 0): 1000})
    monkeypatch.setattr(reset_plan, "_ahead", lambda *_: 0)
    stream: Any = SimpleNamespace(output_mode=SimpleNamespace(watermark_delay=timedelta(minutes=1)))
    removed = {"t": RetentionPolicy(timestamps_increase=False, deletes_by_size=False, deleted_before=until)}
    assert reset_plan._floor(stream, "nowhere", [reset_plan.PartitionReset("t", 0, 7, 9, 9, 7)], None, removed) == floor
