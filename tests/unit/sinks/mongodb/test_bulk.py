"""The result of each item of a bulk request to MongoDB, for every kind of answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from pymongo import DeleteOne
from pymongo.collection import Collection
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    NetworkTimeout,
    OperationFailure,
    ServerSelectionTimeoutError,
)

from penstock.errors import SinkError, Wait
from penstock.sinks.core.bulk import BulkOutcome, ItemStatus, SinkBatchResult
from penstock.sinks.mongodb.bulk import TRIES, DocumentWrite, MongoRequests
from penstock.sinks.mongodb.config import LIMITS

Answer = Callable[[list[str]], None]


class Fake:
    """A collection that answers as told, the last answer for ever; `sent` counts the requests that held each id."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers = list(answers)
        self.sent: Counter[str] = Counter()
        self.sizes: list[int] = []

    def bulk_write(self, writes: list[DeleteOne], *, ordered: bool) -> None:
        assert not ordered
        ids = [str(cast(dict[str, Any], write._filter)["_id"]) for write in writes]
        self.sent.update(ids)
        self.sizes.append(len(ids))
        answer = (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer:
            answer(ids)


def fails(code: int | None, *which: str, said: str = "said", unsure: bool = False) -> Answer:
    """The items of these ids fail."""

    def answer(ids: list[str]) -> None:
        errors = [{"index": at, "code": code, "errmsg": said} for at, key in enumerate(ids) if key in which]
        concern = [{"code": 64, "errmsg": "waiting for replication timed out"}] if unsure else []
        if errors or concern:
            raise BulkWriteError({"writeErrors": errors, "writeConcernErrors": concern})

    return answer


def fine(ids: list[str]) -> None:
    assert ids


def items(*ids: str, size: int = 1) -> list[DocumentWrite]:
    return [DocumentWrite(row, key, 1, DeleteOne({"_id": key}), size) for row, key in enumerate(ids)]


@pytest.fixture
def requests() -> Iterator[MongoRequests]:
    made = MongoRequests("host:1", 2, pause_s=0.001)
    yield made
    made.close()


def send(requests: MongoRequests, fake: Fake, *ids: str) -> BulkOutcome[DocumentWrite]:
    return requests.write(cast(Collection[Any], fake), items(*(ids or ("a", "b", "c"))), SinkBatchResult())


@pytest.mark.parametrize("code", [16500, 50, 10107, 11600, 91, 112])
def test_only_items_rejected_for_lack_of_room_are_sent_again(requests: MongoRequests, code: int) -> None:
    fake = Fake(fails(code, "b"), fails(code, "b"), fine)
    outcome = send(requests, fake)
    assert (outcome.written, outcome.retried) == (3, 2)
    assert fake.sent == {"a": 1, "b": 3, "c": 1}


def test_a_server_that_stays_busy_is_left_alone(requests: MongoRequests) -> None:
    fake = Fake(fails(16500, "b", said="Request rate is large"))
    result = SinkBatchResult()
    with pytest.raises(Wait, match="16500 Request rate is large") as e:
        requests.write(cast(Collection[Any], fake), items("a", "b", "c"), result)
    assert e.value.seconds > 0
    assert result.retried == TRIES - 1
    assert fake.sent == {"a": 1, "b": TRIES, "c": 1}


def test_what_was_written_but_not_everywhere_is_written_again(requests: MongoRequests) -> None:
    fake = Fake(fails(121, "a", unsure=True), fine)
    assert send(requests, fake).refused == {0: "MongoDB: 121 said"}
    assert fake.sent == {"a": 1, "b": 2, "c": 2}


@pytest.mark.parametrize("error", [AutoReconnect("gone"), OperationFailure("stepped down", 189)])
def test_a_request_without_an_answer_is_sent_again(requests: MongoRequests, error: Exception) -> None:
    fake = Fake(error, fine)
    outcome = send(requests, fake)
    assert (outcome.written, outcome.retried) == (3, 3)


@pytest.mark.parametrize("error", [ServerSelectionTimeoutError("none"), NetworkTimeout("slow")])
def test_an_error_after_a_long_wait_is_not_retried(requests: MongoRequests, error: Exception) -> None:
    fake = Fake(error)
    with pytest.raises(Wait, match="host:1"):
        send(requests, fake)
    assert len(fake.sizes) == 1


def test_error_texts_leave_out_the_state_of_the_client(requests: MongoRequests) -> None:
    """It is another each time, and a reason that stays is told once."""
    said = "h:1: refused (configured timeouts: connectTimeoutMS: 5.0ms), Timeout: 5s, Topology Description: <id: 6b>"
    with pytest.raises(Wait) as e:
        send(requests, Fake(ServerSelectionTimeoutError(said)))
    assert e.value.got == "h:1: refused"


def test_requests_shrink_while_the_server_is_slow(requests: MongoRequests) -> None:
    ids = [f"{n}" for n in range(1000)]
    for _ in range(2):
        with pytest.raises(Wait):
            send(requests, Fake(NetworkTimeout("slow")), "a")
    for size in (62, 124, 248, 496, 992, 1000, 1000):
        fake = Fake(fine)
        send(requests, fake, *ids)
        assert max(fake.sizes) == size


@pytest.mark.parametrize("blamed", [OperationFailure("no such name", 52), OverflowError("8 bytes"), KeyError("code")])
def test_a_request_that_fails_as_a_whole_is_bisected_to_one_item(requests: MongoRequests, blamed: Exception) -> None:
    written: list[str] = []

    def answer(ids: list[str]) -> None:
        if "7" in ids:
            raise blamed
        written.extend(ids)

    found = send(requests, Fake(answer), *(f"{n}" for n in range(100)))
    assert list(found.refused) == [7]
    assert sorted(written, key=int) == [f"{n}" for n in range(100) if n != 7]


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ('E11000 duplicate key error collection: d.c index: _id_ dup key: { _id: "b" }', True),
        ('E11000 duplicate key error index: d.c.$_id_ dup key: { : "b" }', True),
        ('E11000 duplicate key error collection: d.c index: mail_1 dup key: { mail: " index: _id_ dup key" }', False),
        ('E11000 duplicate key error index: d.c.$mail_1 dup key: { : "b" }', False),
    ],
)
def test_a_duplicate_id_is_distinguished_from_a_broken_index(requests: MongoRequests, said: str, taken: bool) -> None:
    found = send(requests, Fake(fails(11000, "b", said=said)))
    assert [item.id for item in found.conflicts] == (["b"] if taken else [])
    assert [item.id for item, _ in found.of(ItemStatus.DUPLICATE)] == ([] if taken else ["b"])
    assert found.refused == {}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (OperationFailure("Authentication failed.", 18), "user that may read and write there"),
        (fails(13, "b"), "user that may read and write there"),
        (OperationFailure("unknown", 59), "refuses a request"),
        (ConfigurationError("what?"), "PENSTOCK_MONGODB_URL"),
    ],
)
def test_what_no_repetition_mends_is_said_with_its_cure(
    requests: MongoRequests, answer: Answer | Exception, said: str
) -> None:
    with pytest.raises(SinkError, match=said):
        send(requests, Fake(answer))


def test_requests_are_bounded_in_rows_and_bytes(requests: MongoRequests) -> None:
    rows = Fake(fine)
    requests.write(cast(Collection[Any], rows), items(*(f"{n}" for n in range(2500))), SinkBatchResult())
    assert sorted(rows.sizes) == [500, 1000, 1000]
    large = Fake(fine)
    requests.write(
        cast(Collection[Any], large),
        items("a", "b", "c", size=LIMITS.request_bytes // 2 + 1),
        SinkBatchResult(),
    )
    assert large.sizes == [1, 1, 1]
