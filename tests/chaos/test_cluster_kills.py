"""A Spark cluster and three brokers: apps share the cluster and count each record once, whatever is killed or hangs.

After each fault, the whole output is compared with all records sent so far.
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
from tests.chaos.cluster_app import ClusterApp, cluster_app, pause, processes_of_worker, resume, suspend
from tests.chaos.drivers import Drivers, drivers
from tests.chaos.quality_records import QualityRecords
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    first_port = free_port(2 * BROKERS)
    with Brokers(tmp_path, [first_port + 2 * i for i in range(BROKERS)]) as brokers:
        yield brokers


@pytest.fixture
def apps(brokers: Brokers, mariadb: MariaDB, tmp_path: Path) -> Iterator[Drivers]:
    """Drivers of the shipped apps, each with two executors of one core."""
    variables = {"PENSTOCK_CLUSTER": "1", "PENSTOCK_REPLICATION": BROKERS, "PENSTOCK_SPARK_PORT": free_port(6)}
    with drivers(brokers, mariadb, tmp_path, PROJECT, **variables) as apps:
        yield apps


def executors(cluster: SparkCluster, app: str) -> int:
    """Number of executors of an app, as the workers report it."""
    master_state = state(cluster.master.page)
    app_ids = {a["id"] for a in master_state.get("activeapps", ()) if a["name"] == f"penstock-{app}"}
    return sum(
        e["appid"] in app_ids
        for worker in cluster.workers
        for e in state(worker_page(worker.ports)).get("executors", ())
    )


def worker_page(ports: Mapping[str, int]) -> str:
    return f"http://127.0.0.1:{ports['page']}"


def test_an_app_without_executors_is_queued_with_the_reason_until_some_are_free(apps: Drivers) -> None:
    def queued(d: DriverRow) -> str:
        row = apps.row(d.incarnation)
        return (row.reason or "") if row.state == "queued" else ""

    with SparkCluster(cores=1, memory="1g") as cluster:
        first_driver = apps.launch("quality")
        apps.wait_running(first_driver)
        assert executors(cluster, "quality") == 2
        second_driver = apps.launch("metrics")
        wait_until(lambda: queued(second_driver), what=f"the second app is queued: {second_driver.log}")
        assert queued(second_driver) == (
            f"waits for executors: 2 cores, 1 with 512m each; {settings().own_master} has 2 workers with "
            "0 cores and 512 MiB free, 0 cores and 512 MiB free"
        )
        facts = facts_of(apps.control, "metrics")
        assert facts
        assert decide(facts, settings()).action == "rest"
        assert backends.terminate(apps.row(first_driver.incarnation))
        apps.wait_running(second_driver, 180)
        assert apps.row(second_driver.incarnation).reason is None


def test_records_are_counted_once_when_workers_master_or_brokers_are_killed(apps: Drivers, brokers: Brokers) -> None:
    with SparkCluster(cores=2, memory="2g") as cluster:
        quality_records = QualityRecords(apps.bootstrap, 20261124, "first", "second")
        d = apps.launch("quality")
        apps.wait_running(d, 180)

        def wait_progress() -> None:
            quality_records.produce(3000)
            quality_records.check(d.log)
            assert apps.row(d.incarnation).state == "running"

        wait_progress()
        # A worker with its executor; the other worker has free cores for another.
        quality_records.produce(20_000)
        cluster.workers[0].kill()
        wait_progress()
        assert executors(cluster, "quality") == 2
        cluster.workers[0].start()
        cluster.workers[0].wait()
        # The master; executors work without it and register with it again.
        quality_records.produce(20_000)
        cluster.master.kill()
        wait_progress()
        cluster.master.start()
        cluster.master.wait()
        wait_until(lambda: executors(cluster, "quality") == 2, what="the master lists the app again")
        # One of three brokers.
        quality_records.produce(20_000)
        brokers.servers[0].kill()
        wait_progress()
        brokers.servers[0].start()
        brokers.servers[0].wait()
        # Two of three: nothing can be written until one is started.
        quality_records.produce(20_000)
        for broker in brokers.servers[:2]:
            broker.kill()
        brokers.servers[1].start()
        brokers.servers[1].wait()
        wait_progress()
        brokers.servers[0].start()
        brokers.servers[0].wait()
        wait_progress()


@pytest.fixture(scope="module")
def app(mariadb: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterApp]:
    """One cluster for the tests below; each test leaves all servers running."""
    with cluster_app(mariadb, tmp_path_factory.mktemp("cluster")) as app:
        yield app


def test_a_worker_that_is_paused_for_a_moment_keeps_its_executors(app: ClusterApp) -> None:
    app.wait_executors()
    executors_before = app.executors()
    worker = app.worker_with_executor()
    pause(worker)
    time.sleep(5)  # half the time after which a silent worker is lost
    resume(worker)
    app.wait_progress()
    assert app.executors() == executors_before
    app.check_output()


@pytest.mark.parametrize("resumes", [True, False], ids=["resumed", "killed"])
def test_a_worker_that_is_lost_to_the_network_is_replaced(app: ClusterApp, resumes: bool) -> None:
    """Its executors may still write when it is resumed."""
    app.wait_executors()
    lost_worker = app.worker_with_executor()
    app.recovery_time(lambda: pause(lost_worker))
    app.wait_executors()
    assert lost_worker.number not in app.executors().values()
    app.check_output()
    if resumes:
        resume(lost_worker)
    else:
        lost_worker.kill()
        app.restart_server(lost_worker)
    wait_until(lambda: not processes_of_worker(lost_worker), what="executors of the lost worker have ended")
    wait_until(lambda: app.live_workers() == 2, what="the master has both workers")
    app.wait_progress()
    app.check_output()


def test_an_executor_that_hangs_is_replaced(app: ClusterApp) -> None:
    """Its worker is healthy, so the master does not notice."""
    app.wait_executors()
    worker = app.worker_with_executor()
    hung_pids = {process.pid for process in processes_of_worker(worker)}
    app.recovery_time(lambda: suspend(processes_of_worker(worker)))
    wait_until(
        lambda: not hung_pids & {process.pid for process in processes_of_worker(worker)},
        what="hung executors are ended",
    )
    app.wait_executors()
    app.check_output()


def test_a_worker_is_killed_while_the_master_is_down(app: ClusterApp) -> None:
    app.wait_executors()
    worker = app.worker_with_executor()
    app.recovery_time(app.cluster.master.kill)
    worker.kill()
    app.restart_server(app.cluster.master)
    app.wait_progress()
    app.restart_server(worker)
    app.wait_executors()
    # The new master reuses executor ids; the old executors must not be looked for.
    restarts_before = app.query_restarts()
    for _ in range(3):
        app.wait_progress()
    assert app.query_restarts() == restarts_before
    app.check_output()


def test_each_of_three_brokers_is_killed(app: ClusterApp) -> None:
    for broker in app.brokers.servers:
        app.recovery_time(broker.kill)
        app.restart_server(broker)
    app.check_output()


def test_streams_report_that_two_of_three_brokers_are_down(app: ClusterApp) -> None:
    """Nothing can be written until one is started; then the streams continue by themselves."""
    stopped_brokers = app.brokers.servers[:2]
    for broker in stopped_brokers:
        broker.kill()
    wait_until(app.all_failing, 90, what="both streams report that they fail")
    for _ in range(15):
        time.sleep(2)
        assert app.all_failing(), {name: (row.state, row.error) for name, row in app.progress().items()}

    def start_one_broker() -> None:
        stopped_brokers[0].start()
        stopped_brokers[0].wait()

    app.recovery_time(start_one_broker)
    wait_until(
        lambda: {row.state for row in app.progress().values()} <= {"idle", "running"},
        what="both streams report that they work",
    )
    app.restart_server(stopped_brokers[1])
    app.wait_progress()
    app.check_output()


def test_streams_continue_without_a_broker_that_hangs(app: ClusterApp) -> None:
    leader = app.partition_leader()
    app.recovery_time(lambda: pause(leader))
    resume(leader)
    app.wait_replicated()
    app.wait_progress()
    app.check_output()
