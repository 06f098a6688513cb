"""One view in one instance: how old it says to be, whether it is ready, and what is asked of it meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from penstock.control import ProgressRow
from penstock.control.views import InstanceRow
from penstock.declare.topic import Topic
from penstock.declare.view import Served, View
from penstock.engine.tablefeed import DEAD, Taken
from penstock.engine.tabletopic import Now
from penstock.errors import LocalError
from penstock.views import api, run
from penstock.views.criteria import Counts
from penstock.views.driver import ViewsDriver
from penstock.views.peers import Directory, Peers
from penstock.views.pool import Pool
from penstock.views.problems import NotReady
from penstock.views.run import Held, ViewRun
from penstock.views.service import Caller, Service
from penstock.views.store import Late, Rows

VIEW = View("shops", Topic("shops", compacted=True), "town STRING", by="town")


@pytest.fixture
def shops(tmp_path: Path) -> ViewRun:
    """Of a topic of two partitions, empty."""
    made = ViewRun(Served(VIEW, 1), cast(Topic, VIEW.topic), tmp_path, "", ProgressRow("shops@1", "views-1", ""))
    made.store.begin("id", 2, 5, {0: 0, 1: 0})
    made.store.reached(6)
    made.count = 2
    made.held = {p: Held(0, 0, time.monotonic(), made.store.generation) for p in (0, 1)}
    return made


@pytest.fixture
def service(shops: ViewRun) -> Iterator[Service]:
    pool = Pool(threads=1, waiting=2, stuck_after=0.0)
    directory = Directory(None, InstanceRow("views-1", 1, "a", ""), dict)  # type: ignore[arg-type]
    made = Service("views-1", 1, ["shops"], directory, pool)
    made.runs["shops"] = shops
    yield made
    pool.close()


class Feed:
    """A topic in which there is nothing."""

    def __init__(self, _: object, __: str, start: Mapping[int, int]) -> None:
        self._at = dict(start)

    def to(self, _: Mapping[int, int], __: Callable[[], bool]) -> Iterator[Taken]:
        yield Taken({}, DEAD.empty_table(), self._at)

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

    def look(*_: object) -> Now:
        if looked:
            assert shops.ready
            stopping.set()
        looked.append(clock.now)
        at = int(clock.time() * 1000)
        clock.now += 60
        return Now("id", {0: 0, 1: 0}, {0: 0, 1: 0}, at)

    for name, instead in {"time": clock, "look": look, "TableFeed": Feed, "IDLE": 0.0}.items():
        monkeypatch.setattr(run, name, instead)
    monkeypatch.setattr(run, "kept_by", lambda *_: list(range(count)))
    assert not ViewRun(Served(VIEW, 1), shops._topic, shops.store.path.parent, "", shops.figures).ready
    shops._keep(stopping)
    assert shops.held.keys() == mine
    assert {one.at for one in shops.held.values()} <= {looked[0]}
    assert shops.store.meta.at == (1_700_000_000 + looked[0]) * 1000


def test_what_is_made_anew_while_it_is_read_is_refused(
    shops: ViewRun, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is whole again when the query ends: what was read may have been half of it."""
    read = shops.store.read

    def meanwhile(*given: Any) -> Rows:
        found = read(*given)
        shops.store.begin("other", 2, 7, {0: 0, 1: 0})
        shops.held = {p: one._replace(made=shops.store.generation) for p, one in shops.held.items()}
        return found

    def asked() -> Any:
        return asyncio.run(service.counts("shops", Counts(), Caller(time.monotonic() + 60))).body["total"]

    assert asked() == 0
    monkeypatch.setattr(shops.store, "read", meanwhile)
    with pytest.raises(NotReady, match="made anew"):
        asked()


def test_an_instance_with_a_query_that_does_not_end_says_so_and_ends(service: Service) -> None:
    driver = object.__new__(ViewsDriver)
    driver._pool, driver._server = service.pool, None

    async def asked() -> None:
        hold = threading.Event()
        app = httpx.ASGITransport(api.made(service, ""))
        async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
            try:
                with pytest.raises(Late):
                    await service.pool.run(hold.wait, time.monotonic() + 0.2)
                live = await client.get("/v1/live")
                assert (live.status_code, live.headers["retry-after"]) == (503, "1")
                with pytest.raises(LocalError, match="does not end"):
                    driver.pulse()
            finally:
                hold.set()
            deadline = time.monotonic() + 60
            while service.pool.asked and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            assert (await client.get("/v1/live")).status_code == 200
            driver.pulse()

    asyncio.run(asked())


@pytest.mark.parametrize(
    "given", ["0", "30001", "-1", "1.5", "\xb2", "", "9" * 50, "0" * 8 + "1" + "9" * 20, "0" * 8 + "1" + "9" * 5000]
)
def test_a_deadline_is_a_number_of_milliseconds_that_may_be_asked_for(service: Service, given: str) -> None:
    async def asked() -> int:
        app = httpx.ASGITransport(api.made(service, ""), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
            head = [(b"penstock-deadline-ms", given.encode("latin-1"))]
            return (await client.get("/v1/views/shops/rows/a", headers=head)).status_code

    assert asyncio.run(asked()) == 400


def test_a_query_that_is_late_elsewhere_is_late(shops: ViewRun, service: Service) -> None:
    class Elsewhere:
        async def ask(self, *_: Any, last: bool, **__: Any) -> Any:
            assert last
            raise Late("another instance did not answer in time")

    shops.held = {}
    shops.count = 2
    service.peers = cast(Peers, Elsewhere())
    service.directory._rows = {2: InstanceRow("views-2", 2, "b", "", holds={"shops": {"count": 2, "loaded": [0, 1]}})}
    with pytest.raises(Late):
        asyncio.run(service.counts("shops", Counts(), Caller(time.monotonic() + 60)))
