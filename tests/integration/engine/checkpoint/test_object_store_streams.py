"""Streams whose checkpoint in an object store lost objects, is older than what was written, was copied, or is reset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.kafka.admin import admin
from penstock.model.topic import COMMITS
from penstock.object_store.bucket import Bucket
from penstock.testing import create, send
from tests.support.recovered_streams import EVENTS, OUT, events, values
from tests.support.s3_store import endpoint_of, server
from tests.support.stream_process import Far, far
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = "s3a://state/here"
# The fold's way is the one of its own; Spark's are long tests here.
STREAMS = [*(pytest.param(name, marks=pytest.mark.long) for name in ("each", "counts")), "sums"]
# What each stream makes of 1, 2, 3, 4 and 5, one by one.
WRITES = {"each": [1, 2, 3, 4, 5], "counts": [1, 2, 3, 4, 5], "sums": [1, 3, 6, 10, 15], "timed": [1, 3, 6, 10, 15]}


class Place(NamedTuple):
    """The process, its broker without records, and the store without objects."""

    far: Far
    bootstrap: str
    store: Bucket

    def three_batches(self, stream: str) -> None:
        self.far.do("batches", stream, root=ROOT, numbers=[1, 2, 3])
        assert values(self.bootstrap) == WRITES[stream][:3]

    def resume(self, stream: str, number: int, root: str = ROOT) -> None:
        """Send the next number: its row comes as if nothing had happened."""
        send(self.bootstrap, events(number))
        found = self.far.do("run", stream, root=root, rows=number)
        assert found["state"] != "blocked", found
        assert values(self.bootstrap) == WRITES[stream][:number]

    def below(self, prefix: str) -> set[str]:
        """The objects of a folder and of those below it, by their keys behind its name."""
        return {one.key.removeprefix(prefix) for one in self.store.list_objects(prefix.rstrip("/"))}

    def copy(self, prefix: str, to: str) -> None:
        for key in self.below(prefix):
            self.store.put(f"{to}{key}", self.store.get(f"{prefix}{key}"))


@pytest.fixture(scope="module")
def process(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Far, Bucket]]:
    with server(tmp_path_factory.mktemp("store")) as part:
        at = endpoint_of(part)
        store = Bucket(at, "state")
        store.ensure_exists()
        given = {
            "PENSTOCK_S3_URL": at.url, "PENSTOCK_S3_ACCESS_KEY": at.access_key, "PENSTOCK_S3_SECRET_KEY": at.secret_key,
            "PENSTOCK_CHECKPOINTS": ROOT, "PENSTOCK_HOME": tmp_path_factory.mktemp("far"),
        }  # fmt: skip
        with far(broker.bootstrap, tmp_path_factory.mktemp("far-log") / "log", **given) as made:
            yield made, store


@pytest.fixture
def place(process: tuple[Far, Bucket], fresh_broker: Broker) -> Place:
    made, store = process
    create(fresh_broker.bootstrap, EVENTS, OUT, COMMITS)
    for one in store.list_objects(""):
        store.delete(one.key)
    return Place(made, fresh_broker.bootstrap, store)


@pytest.mark.long
def test_the_store_takes_one_of_two_writers_of_an_entry(place: Place) -> None:
    assert place.far.do("write_twice", "sums", root=f"{ROOT}/one/commits")["calls"] == [
        "written", "FileAlreadyExistsException", "written", "written",
        "first", "second", None, ["False", "True"], True, False, "mine", False, "third", True, True, "{}",
    ]  # fmt: skip
    assert place.store.endpoint.secret_key not in place.far.output()


@pytest.mark.long
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(("how", "batches"), [pytest.param("missing", 2, marks=pytest.mark.long), ("empty", 1)])
def test_a_checkpoint_that_lost_objects_is_recovered(place: Place, stream: str, how: str, batches: int) -> None:
    """A first batch that was cut off, then objects that are lost, then an older log of batches."""
    folder = f"here/{stream}"
    # The plan is not whole, and state of its batch is there: the stream begins with a new first batch.
    for name in ("offsets/0", "state/0/0/1.changelog", "folds/sums/0/0-1a.json"):
        place.store.put(f"{folder}/{name}", b"")
    place.three_batches(stream)
    for name in ("metadata", "offsets/2", "commits/1", "commits/2", "sources/0/0", "penstock.json"):
        place.store.delete(f"{folder}/{name}")
        if how == "empty":
            place.store.put(f"{folder}/{name}", b"")
    place.resume(stream, 4)
    # What the commit marker holds is put back, and run again for its state.
    for log in ("offsets", "commits"):
        for n in range(batches + 1, 4):
            place.store.delete(f"{folder}/{log}/{n}")
    place.resume(stream, 5)


@pytest.mark.parametrize(
    ("stream", "lost"),
    [
        pytest.param("counts", "state/0/0/3.changelog", marks=pytest.mark.long),
        pytest.param("counts", "state/", marks=pytest.mark.long),
        ("sums", "folds/sums/2.json"),
        pytest.param("sums", "folds/", marks=pytest.mark.long),
    ],
    ids=["a change", "all", "what names a fold's files", "all of a fold"],
)
def test_lost_state_blocks_the_stream(place: Place, stream: str, lost: str) -> None:
    place.three_batches(stream)
    prefix = f"here/{stream}/"
    for key in place.below(prefix):
        if key.startswith(lost):
            place.store.delete(f"{prefix}{key}")
    send(place.bootstrap, events(4))
    found = place.far.do("run", stream, root=ROOT, rows=4)
    assert found["state"] == "blocked"
    assert f"the checkpoint of stream {stream} is damaged" in found["error"]
    # There is no rebuild in an object store.
    assert "rebuild" not in found["error"]
    assert f"penstock streams reset {stream}" in found["error"]
    assert values(place.bootstrap) == WRITES[stream][:3]


@pytest.mark.parametrize("stream", [*STREAMS, pytest.param("timed", marks=pytest.mark.long)])
def test_a_copy_left_behind_and_a_checkpoint_that_is_too_old_stop(place: Place, stream: str) -> None:
    place.three_batches(stream)
    place.copy(f"here/{stream}/", f"there/{stream}/")
    # The copy needs nothing of it, the schemas of its state neither.
    for key in place.below(f"here/{stream}/state/"):
        place.store.delete(f"here/{stream}/state/{key}")
    place.resume(stream, 4, "s3a://state/there")
    send(place.bootstrap, events(5))
    found = place.far.do("run", stream, root=ROOT, rows=5)
    assert (found["state"], "goes on from a copy of this checkpoint" in found["error"]) == ("blocked", True)
    assert "s3a://state/there" in found["error"]
    assert values(place.bootstrap) == WRITES[stream][:4]
    found = place.far.do("run", stream, root="s3a://state/there", rows=5)
    assert values(place.bootstrap) == WRITES[stream]
    if stream == "each":
        return
    # An older checkpoint whose state lacks what was read.
    for key in place.below(f"there/{stream}/"):
        if key.startswith(("offsets/", "commits/")):
            place.store.delete(f"there/{stream}/{key}")
    found = place.far.do("run", stream, root="s3a://state/there", rows=6)
    assert (found["state"], "in doubt are offsets events[0] 0 to 4" in found["error"]) == ("blocked", True)


@pytest.mark.long
@pytest.mark.parametrize("stream", STREAMS)
def test_a_checkpoint_without_commit_markers_continues_once_accepted(place: Place, stream: str) -> None:
    place.three_batches(stream)
    client = admin(place.bootstrap)
    client.delete_topics([COMMITS.name])[COMMITS.name].result(30)
    wait_until(lambda: COMMITS.name not in client.list_topics(timeout=10).topics)
    create(place.bootstrap, COMMITS)
    found = place.far.do("run", stream, root=ROOT, rows=4)
    assert (found["state"], "no commit marker" in found["error"]) == ("blocked", True)
    send(place.bootstrap, events(4))
    found = place.far.do("run", stream, root=ROOT, rows=4, accepts=True)
    assert values(place.bootstrap) == WRITES[stream][:4]


# What three numbers that are read again at once give, and a fourth behind them.
AGAIN = {"each": [1, 2, 3, 4], "counts": [3, 4], "sums": [6, 10]}


@pytest.mark.long
@pytest.mark.parametrize("dies", [None, 0, 0.5, 1, "copied"])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_reset_is_completed_after_a_crash_at_any_step(place: Place, stream: str, dies: float | str | None) -> None:
    """Nothing is moved by one request: what is to be moved is copied, then deleted."""
    place.three_batches(stream)
    was = place.below(f"here/{stream}/")
    assert place.far.do("reset", stream, root=ROOT, to="earliest") == {"against": [], "again": 3}
    if dies is not None:
        done = place.far.do("dies", stream, root=ROOT, moves=1 if dies == "copied" else dies)
        assert done == {"error": "killed"}
    if dies == "copied":
        place.copy(f"here/{stream}.reset/", f"here/{stream}/")
    count = len(AGAIN[stream])
    found = place.far.do("run", stream, root=ROOT, rows=3 + count - 1)
    assert found["state"] != "blocked", found
    send(place.bootstrap, events(4))
    place.far.do("run", stream, root=ROOT, rows=3 + count)
    assert values(place.bootstrap) == WRITES[stream][:3] + AGAIN[stream]
    assert place.below(f"here/{stream}.before/") == was
    assert not place.below(f"here/{stream}.reset/")
