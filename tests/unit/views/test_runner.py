"""One view in one instance: how old it says to be, whether it is ready, and what is asked of it meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from penstock.control import ProgressRow
from penstock.control.repositories.view_instances import ViewInstanceRow
from penstock.errors import BrokerError, DeclarationError, HostError
from penstock.model.input import Table
from penstock.model.topic import Topic
from penstock.model.view import ServedView, View
from penstock.tables import topic_snapshot
from penstock.tables.topic_reader import BAD_RECORDS_SCHEMA, TableDecoder, TopicBatch, TopicReader
from penstock.tables.topic_snapshot import TopicSnapshot
from penstock.views import runner
from penstock.views.api import routes
from penstock.views.api.freshness import RequestContext
from penstock.views.api.problems import NotReady
from penstock.views.api.query import Counts
from penstock.views.api.query_pool import QueryPool
from penstock.views.api.service import ViewsService
from penstock.views.cluster.partition_assignment import partition_of
from penstock.views.cluster.peers import InstanceDirectory, PeerClient
from penstock.views.driver import ViewsDriver
from penstock.views.runner import PartitionState, ViewRun
from penstock.views.store.sqlite import QueryResult, QueryTimeout, StoreDamaged

VIEW = View("shops", Topic("shops", compacted=True), "town STRING", query_by="town")


@pytest.fixture
def shops(tmp_path: Path) -> ViewRun:
    """Of a topic of two partitions, empty."""
    made = ViewRun(ServedView(VIEW, 1), cast(Topic, VIEW.topic), tmp_path, "", ProgressRow("shops@1", "views-1", ""))
    made.store.begin("id", 2, 5, {0: 0, 1: 0})
    made.store.reached(6)
    made.count = 2
    made.served = {p: PartitionState(0, 0, time.monotonic(), made.store.generation) for p in (0, 1)}
    return made


@pytest.fixture
def service(shops: ViewRun) -> Iterator[ViewsService]:
    pool = QueryPool(threads=1, waiting=2, stuck_after=0.0)
    directory = InstanceDirectory(None, ViewInstanceRow("views-1", 1, "a", ""), dict)  # type: ignore[arg-type]
    made = ViewsService("views-1", 1, ["shops"], directory, pool, pool)
    made.runs["shops"] = shops
    yield made
    pool.close()


class Feed:
    """A topic in which there is nothing."""

    def __init__(self, _: object, __: str, start: Mapping[int, int]) -> None:
        self._at = dict(start)

    def read_to(self, _: Mapping[int, int], __: Callable[[], bool]) -> Iterator[TopicBatch]:
        yield TopicBatch({}, BAD_RECORDS_SCHEMA.empty_table(), self._at)

    def close(self) -> None:
        pass


class Clock:
    """Stands still by itself."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000 + self.now


@pytest.mark.parametrize(("count", "mine"), [(2, {0, 1}), (0, set[int]())])
def test_an_age_is_counted_from_before_the_end_was_asked_for(
    shops: ViewRun, count: int, mine: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer may be long on its way, as where the process is paused; a view of no partition here is ready too."""
    clock, stopping, looked = Clock(), threading.Event(), list[float]()

    def look(*_: object) -> TopicSnapshot:
        if looked:
            assert shops.ready
            stopping.set()
        looked.append(clock.now)
        at = int(clock.time() * 1000)
        clock.now += 60
        return TopicSnapshot("id", {0: 0, 1: 0}, {0: 0, 1: 0}, {0: 0, 1: 0}, at)

    for name, instead in {"time": clock, "take_snapshot": look, "TopicReader": Feed, "IDLE_POLL_EVERY": 0.0}.items():
        monkeypatch.setattr(runner, name, instead)
    monkeypatch.setattr(runner, "assigned_partitions", lambda *_: list(range(count)))
    assert not ViewRun(ServedView(VIEW, 1), shops._topic, shops.store.path.parent, "", shops.figures).ready
    shops._follow(stopping)
    assert shops.served.keys() == mine
    assert {one.at for one in shops.served.values()} <= {looked[0]}
    assert shops.store.meta.at == (1_700_000_000 + looked[0]) * 1000


class Scripted:
    """A view that reads what it is given. clock: of all that it looks at."""

    def __init__(self, shops: ViewRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shops, self.clock, self.kept = shops, Clock(), 60_000
        self._decoder = TableDecoder(Table(cast(Topic, VIEW.topic), VIEW.schema))
        for where, name, instead in (
            (runner, "time", self.clock), (topic_snapshot, "time", self.clock),
            (topic_snapshot, "topic_config", self._setting),
        ):  # fmt: skip
            monkeypatch.setattr(where, name, instead)

    def _setting(self, *_: object) -> str:
        return str(self.kept)

    def open(self, ends: Mapping[int, int], log_ends: Mapping[int, int] | None = None) -> TopicSnapshot:
        now = self.now(ends, log_ends)
        self.shops._open(self.clock.now, now)
        return now

    def now(self, ends: Mapping[int, int], log_ends: Mapping[int, int] | None = None) -> TopicSnapshot:
        at = int(self.clock.time() * 1000)
        return TopicSnapshot("id", {0: 0, 1: 0}, dict(ends), dict(log_ends or ends), at)

    def read(self, now: TopicSnapshot, *records: tuple[str, int, int], takes: float = 0.0) -> None:
        """Read to its ends. records: keys, partitions and offsets; a key of capitals is a tombstone's."""
        asked = self.clock.now

        class Given:
            def read_to(_, ends: Mapping[int, int], __: object) -> Iterator[TopicBatch]:  # noqa: N805
                self.clock.now += takes
                raw: list[tuple[bytes | None, bytes | None, int, int]] = [
                    (key.lower().encode(), b'{"town":"x"}' if key.islower() else None, partition, offset)
                    for key, partition, offset in records
                ]
                yield self._decoder.decode(raw, {**self.shops.store.next, **ends})

        self.shops._read_to_ends(cast(TopicReader, Given()), now, asked, lambda: False)

    def age(self, partition: int) -> float:
        return self.clock.now - self.shops.served[partition].at


@pytest.fixture
def scripted(shops: ViewRun, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    made = Scripted(shops, monkeypatch)
    made.read(made.open({0: 0, 1: 0}))
    return made


def test_what_an_open_transaction_hides_makes_a_partition_old_and_no_other(scripted: Scripted) -> None:
    """Its records may have been committed long ago by others."""
    shops, clock = scripted.shops, scripted.clock
    scripted.read(scripted.now({0: 5, 1: 5}))
    for _ in range(3):
        clock.now += 10
        scripted.read(scripted.now({0: 5, 1: 9}, {0: 8, 1: 9}))
    assert (scripted.age(0), scripted.age(1)) == (30, 0)
    assert (shops.served[0].end, shops.served[0].next, shops.report().lag) == (8, 5, 3)
    assert shops.report().behind_ms == 30_000
    # Transactions that overlap all the time hide no more than what they last.
    clock.now += 10
    scripted.read(scripted.now({0: 8, 1: 9}, {0: 20, 1: 9}))
    assert scripted.age(0) == 10
    clock.now += 1
    scripted.read(scripted.now({0: 30, 1: 9}))
    assert (scripted.age(0), shops.report().lag) == (0, 0)


def test_an_open_transaction_makes_a_store_of_before_old_and_a_new_one_wait(scripted: Scripted) -> None:
    shops, clock = scripted.shops, scripted.clock
    scripted.read(scripted.now({0: 5, 1: 5}))
    clock.now += 20
    scripted.read(scripted.open({0: 5, 1: 5}, {0: 8, 1: 5}))
    assert scripted.age(0) == 20
    shops.store.begin("id", 2, int(clock.time() * 1000), {0: 0, 1: 0})
    scripted.read(scripted.open({0: 5, 1: 5}, {0: 8, 1: 5}))
    assert (set(shops.served), shops.ready) == ({1}, False)
    assert "partitions [0] are hidden by a transaction that is open" in shops.waits
    scripted.read(scripted.now({0: 9, 1: 5}))
    assert shops.ready


@pytest.mark.parametrize("stopped", [False, True])
def test_a_partition_new_to_a_store_waits(scripted: Scripted, stopped: bool) -> None:
    """Its committed records that an open transaction hides were never read, also where it stopped before its end."""
    shops, clock = scripted.shops, scripted.clock
    scripted.read(scripted.now({0: 5, 1: 5}))
    shops.store.without([1])
    clock.now += 20
    now = scripted.open({0: 5, 1: 5}, {0: 8, 1: 8})
    if stopped:
        shops.store.apply({}, {1: 3})
        now = scripted.open({0: 5, 1: 5}, {0: 5, 1: 8})
    scripted.read(now)
    assert (set(shops.served), shops.ready, scripted.age(0)) == ({0}, False, 0 if stopped else 20)
    scripted.read(scripted.now({0: 8, 1: 9}))
    assert (shops.ready, scripted.age(1)) == (True, 0)


@pytest.mark.parametrize("loaded", [True, False])
def test_what_is_read_for_longer_than_tombstones_are_kept_is_read_anew(scripted: Scripted, loaded: bool) -> None:
    """A tombstone may have gone before the reading came to it, and its key stays."""
    shops, clock = scripted.shops, scripted.clock
    if not loaded:
        shops.store.begin("id", 2, int(clock.time() * 1000), {0: 0, 1: 0})
    now = scripted.open({0: 5, 1: 0})
    with pytest.raises(BrokerError, match="longer than its tombstones are kept"):
        scripted.read(now, (KEYS[0][0], 0, 3), takes=61)
    assert scripted.shops._rebuild_reason(scripted.open({0: 5, 1: 0})), "though there is nothing more to read"
    shops._rebuild(now := scripted.now({0: 5, 1: 0}), [0, 1], "it was read too slowly")
    scripted.read(scripted.open({0: 5, 1: 0}), takes=59)
    assert shops.ready
    clock.now += 1000
    assert scripted.shops._rebuild_reason(scripted.open({0: 5, 1: 0})) == "", "nothing was written since"


def test_damage_that_only_queries_meet_makes_a_store_be_read_anew(scripted: Scripted) -> None:
    store, keys = scripted.shops.store, [f"k{n}" for n in range(2000)]
    scripted.read(scripted.now({0: 5, 1: 5}), *((key, partition_of(key, 2), n) for n, key in enumerate(keys)))
    now = scripted.open({0: 5, 1: 5})
    assert scripted.shops._rebuild_reason(now) == ""
    with store.path.open("r+b") as file:
        file.seek(8192)
        file.write(bytes(store.path.stat().st_size - 8192))
    with pytest.raises(StoreDamaged):
        store.read("SELECT value FROM rows WHERE key = ?", (keys[0],))
    assert "malformed" in scripted.shops._rebuild_reason(now)
    scripted.shops._rebuild(now, [0, 1], "it is damaged")
    assert scripted.shops._rebuild_reason(now) == ""


KEYS = [[key for key in map(chr, range(ord("a"), ord("z"))) if partition_of(key, 2) == p] for p in (0, 1)]


def test_a_stray_record_says_the_way_out_and_its_tombstone_is_that(scripted: Scripted) -> None:
    shops, (here, there) = scripted.shops, (KEYS[0][0], KEYS[1][0])
    for number in (1, 2):
        now = scripted.now({0: number, 1: 0})
        with pytest.raises(DeclarationError, match=f"'{there}' in partition 0, not in 1") as found:
            scripted.read(now, *([(here, 0, 0), (there, 0, 1)] if number == 1 else []))
        assert "write a tombstone with that key into partition 0" in str(found.value)
        assert shops.served == {}
        scripted.open({0: number, 1: 0})
    scripted.read(scripted.now({0: 3, 1: 1}), (there.upper(), 0, 2), (there, 1, 0))
    assert (shops.ready, shops.store.meta.dead) == (True, 0)
    scripted.read(scripted.now({0: 4, 1: 1}), (there.upper(), 0, 3))
    assert [key for (key,) in shops.store.read("SELECT key FROM rows ORDER BY key")] == sorted([here, there])
    assert (shops.report().dead, shops.store.meta.reason) == (1, "a tombstone of a key that partition 0 cannot have")


def test_a_topic_that_got_more_partitions_is_not_said_to_have_another_partitioner(scripted: Scripted) -> None:
    with pytest.raises(DeclarationError, match="they fit 1 partitions, and there are 2") as found:
        scripted.read(scripted.now({0: 30, 1: 0}), *((key, 0, n) for n, key in enumerate(KEYS[0] + KEYS[1])))
    assert "copy the topic into a new one" in str(found.value)
    assert "partitioner" not in str(found.value)


def test_a_view_that_cannot_be_served_holds_up_no_other(shops: ViewRun, service: ViewsService, tmp_path: Path) -> None:
    """An instance is ready once all is loaded that waiting loads."""

    def ready() -> tuple[int, dict[str, Any]]:
        async def asked() -> httpx.Response:
            app = httpx.ASGITransport(routes.create_app(service, ""))
            async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
                return await client.get("/v1/ready")

        found = asyncio.run(asked())
        return found.status_code, found.json()

    other = ViewRun(ServedView(replace(VIEW, name="other"), 1), shops._topic, tmp_path, "", replace(shops.figures))
    service.runs["other"] = other
    for one in (shops, other):
        one._thread = threading.current_thread()
    other._failed(BrokerError("the broker is away"))
    status, body = ready()
    assert (status, "other: failing" in body["detail"], "/v1/views/other" in body["detail"]) == (503, True, True)
    other.refused = DeclarationError("its records lie elsewhere", got="what only those may see who have the token")
    assert ready() == (200, {"ready": True, "views": ["shops"], "refused": {"other": "its records lie elsewhere"}})
    shops.served, shops._assigned, shops.refused = {}, [0, 1], DeclarationError("so do these")
    status, body = ready()
    assert (status, "so do these" in body["detail"]) == (503, True)


def test_what_is_made_anew_while_it_is_read_is_refused(
    shops: ViewRun, service: ViewsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is whole again when the query ends: what was read may have been half of it."""
    read = shops.store.read

    def meanwhile(*given: Any) -> QueryResult:
        found = read(*given)
        shops.store.begin("other", 2, 7, {0: 0, 1: 0})
        shops.served = {p: one._replace(made=shops.store.generation) for p, one in shops.served.items()}
        return found

    def asked() -> Any:
        return asyncio.run(service.counts("shops", Counts(), RequestContext(time.monotonic() + 60))).body["total"]

    assert asked() == 0
    monkeypatch.setattr(shops.store, "read", meanwhile)
    with pytest.raises(NotReady, match="rebuilt"):
        asked()


def test_an_instance_with_a_query_that_does_not_end_says_so_and_ends(service: ViewsService) -> None:
    driver = object.__new__(ViewsDriver)
    driver._service, driver._server = service, None

    async def asked() -> None:
        hold = threading.Event()
        app = httpx.ASGITransport(routes.create_app(service, ""))
        async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
            try:
                with pytest.raises(QueryTimeout):
                    await service.pool.run(hold.wait, time.monotonic() + 0.2)
                live = await client.get("/v1/live")
                assert (live.status_code, live.headers["retry-after"]) == (503, "1")
                with pytest.raises(HostError, match="does not end"):
                    driver.health_check()
            finally:
                hold.set()
            deadline = time.monotonic() + 60
            while service.pool.query_count and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            assert (await client.get("/v1/live")).status_code == 200
            driver.health_check()

    asyncio.run(asked())


@pytest.mark.parametrize(
    "given", ["0", "30001", "-1", "1.5", "\xb2", "", "9" * 50, "0" * 8 + "1" + "9" * 20, "0" * 8 + "1" + "9" * 5000]
)
def test_a_deadline_is_a_number_of_milliseconds_that_may_be_asked_for(service: ViewsService, given: str) -> None:
    async def asked() -> int:
        app = httpx.ASGITransport(routes.create_app(service, ""), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
            head = [(b"penstock-deadline-ms", given.encode("latin-1"))]
            return (await client.get("/v1/views/shops/rows/a", headers=head)).status_code

    assert asyncio.run(asked()) == 400


def test_a_query_that_is_late_elsewhere_is_late(shops: ViewRun, service: ViewsService) -> None:
    class Elsewhere:
        async def ask(self, *_: Any, last: bool, **__: Any) -> Any:
            assert last
            raise QueryTimeout("another instance did not answer in time")

    shops.served = {}
    shops.count = 2
    service.peers = cast(PeerClient, Elsewhere())
    service.directory._rows = {
        2: ViewInstanceRow("views-2", 2, "b", "", partitions={"shops": {"count": 2, "loaded": [0, 1]}})
    }
    with pytest.raises(QueryTimeout):
        asyncio.run(service.counts("shops", Counts(), RequestContext(time.monotonic() + 60)))
