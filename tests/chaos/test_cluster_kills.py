"""A Spark cluster and three brokers: apps share it, and count each record once, whichever of its parts dies or hangs.

What they do behind each fault is compared with all that was sent since the first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from penstock.control import DriverRow
from penstock.devstack.servers.kafka import Brokers
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.spark import SparkCluster, state
from penstock.host.ports import free_port
from penstock.settings import BROKERS, PROJECT, settings
from penstock.supervision import backends
from penstock.supervision.decision.decide import decide
from penstock.supervision.decision.facts import facts_of
from tests.chaos.clustered import Clustered, clustered, executors_of, pause, resume, suspend
from tests.chaos.counted import Counted
from tests.chaos.drivers import Drivers, drivers
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    first = free_port(2 * BROKERS)
    with Brokers(tmp_path, [first + 2 * i for i in range(BROKERS)]) as made:
        yield made


@pytest.fixture
def apps(brokers: Brokers, mariadb: MariaDB, tmp_path: Path) -> Iterator[Drivers]:
    """Drivers of the shipped apps, each of which asks for two executors of one core."""
    given = {"PENSTOCK_CLUSTER": "1", "PENSTOCK_REPLICATION": BROKERS, "PENSTOCK_SPARK_PORT": free_port(6)}
    with drivers(brokers, mariadb, tmp_path, PROJECT, **given) as made:
        yield made


def executors(cluster: SparkCluster, app: str) -> int:
    """How many executors an app has, as the workers tell it."""
    found = state(cluster.master.page)
    mine = {a["id"] for a in found.get("activeapps", ()) if a["name"] == f"penstock-{app}"}
    return sum(
        e["appid"] in mine for part in cluster.workers for e in state(worker_page(part.ports)).get("executors", ())
    )


def worker_page(ports: Mapping[str, int]) -> str:
    return f"http://127.0.0.1:{ports['page']}"


def test_an_app_for_which_nothing_is_left_says_so_and_goes_on_by_itself(apps: Drivers) -> None:
    def queued(d: DriverRow) -> str:
        row = apps.row(d.incarnation)
        return (row.reason or "") if row.state == "queued" else ""

    with SparkCluster(cores=1, memory="1g") as cluster:
        first = apps.launch("quality")
        apps.wait_running(first)
        assert executors(cluster, "quality") == 2
        second = apps.launch("metrics")
        wait_until(lambda: queued(second), what=f"the second app is queued: {second.log}")
        assert queued(second) == (
            f"waits for executors: 2 cores, 1 with 512m each; {settings().own_master} has 2 workers with "
            "0 cores and 512 MiB free, 0 cores and 512 MiB free"
        )
        facts = facts_of(apps.control, "metrics")
        assert facts
        assert decide(facts, settings()).action == "rest"
        assert backends.terminate(apps.row(first.incarnation))
        apps.wait_running(second, 180)
        assert apps.row(second.incarnation).reason is None


def test_records_are_counted_once_whichever_worker_or_broker_dies(apps: Drivers, brokers: Brokers) -> None:
    with SparkCluster(cores=2, memory="2g") as cluster:
        counted = Counted(apps.bootstrap, 20261124, "first", "second")
        d = apps.launch("quality")
        apps.wait_running(d, 180)

        def goes_on() -> None:
            counted.produce(3000)
            counted.check(d.log)
            assert apps.row(d.incarnation).state == "running"

        goes_on()
        # A worker with its executor; the other one has room for the next.
        counted.produce(20_000)
        cluster.workers[0].kill()
        goes_on()
        assert executors(cluster, "quality") == 2
        cluster.workers[0].start()
        cluster.workers[0].wait()
        # The master; executors work on without it, and it knows them again.
        counted.produce(20_000)
        cluster.master.kill()
        goes_on()
        cluster.master.start()
        cluster.master.wait()
        wait_until(lambda: executors(cluster, "quality") == 2, what="the master knows the app again")
        # One of three brokers.
        counted.produce(20_000)
        brokers.servers[0].kill()
        goes_on()
        brokers.servers[0].start()
        brokers.servers[0].wait()
        # Two of three: nothing can be written until one is back.
        counted.produce(20_000)
        for part in brokers.servers[:2]:
            part.kill()
        brokers.servers[1].start()
        brokers.servers[1].wait()
        goes_on()
        brokers.servers[0].start()
        brokers.servers[0].wait()
        goes_on()


@pytest.fixture(scope="module")
def place(mariadb: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    """One cluster for all of the following: each test leaves it as it was."""
    with clustered(mariadb, tmp_path_factory.mktemp("cluster")) as made:
        yield made


def test_a_worker_that_is_paused_for_a_moment_keeps_its_executors(place: Clustered) -> None:
    place.settles()
    before = place.executors()
    host = place.host()
    pause(host)
    time.sleep(5)  # half of what a worker may be silent
    resume(host)
    place.goes_on()
    assert place.executors() == before
    place.exact()


@pytest.mark.parametrize("returns", [True, False], ids=["and wakes up", "for ever"])
def test_a_worker_that_is_lost_to_the_network_is_given_up(place: Clustered, returns: bool) -> None:
    """What was started there in its place may still write when it wakes up."""
    place.settles()
    lost = place.host()
    place.recovers(lambda: pause(lost))
    place.settles()
    assert lost.number not in place.executors().values()
    place.exact()
    if returns:
        resume(lost)
    else:
        lost.kill()
        place.back(lost)
    wait_until(lambda: not executors_of(lost), what="what was given up has ended")
    wait_until(lambda: place.alive() == 2, what="the master has both workers")
    place.goes_on()
    place.exact()


def test_an_executor_that_hangs_is_replaced(place: Clustered) -> None:
    """Its worker is well, so that the master sees nothing of it."""
    place.settles()
    host = place.host()
    hung = {one.pid for one in executors_of(host)}
    place.recovers(lambda: suspend(executors_of(host)))
    wait_until(lambda: not hung & {one.pid for one in executors_of(host)}, what="those that hang are ended")
    place.settles()
    place.exact()


def test_a_worker_dies_while_the_master_is_away(place: Clustered) -> None:
    place.settles()
    host = place.host()
    place.recovers(place.cluster.master.kill)
    host.kill()
    place.back(place.cluster.master)
    place.goes_on()
    place.back(host)
    place.settles()
    # It gives ids of executors a second time: those of before must not be looked for.
    failed = place.failures()
    for _ in range(3):
        place.goes_on()
    assert place.failures() == failed
    place.exact()


def test_each_of_three_brokers_dies(place: Clustered) -> None:
    for part in place.brokers.servers:
        place.recovers(part.kill)
        place.back(part)
    place.exact()


def test_streams_say_so_while_two_of_three_brokers_are_away(place: Clustered) -> None:
    """Nothing can be written until one is back, and nobody has to do anything then."""
    away = place.brokers.servers[:2]
    for part in away:
        part.kill()
    wait_until(place.failing, 90, what="both streams say that they fail")
    for _ in range(15):
        time.sleep(2)
        assert place.failing(), {name: (row.state, row.error) for name, row in place.rows().items()}

    def one_returns() -> None:
        away[0].start()
        away[0].wait()

    place.recovers(one_returns)
    wait_until(
        lambda: {row.state for row in place.rows().values()} <= {"idle", "running"}, what="both say that they are well"
    )
    place.back(away[1])
    place.goes_on()
    place.exact()


def test_a_broker_that_hangs_is_done_without(place: Clustered) -> None:
    leader = place.leads()
    place.recovers(lambda: pause(leader))
    resume(leader)
    place.replicate()
    place.goes_on()
    place.exact()
