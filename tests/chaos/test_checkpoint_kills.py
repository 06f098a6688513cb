"""Checkpoints in an object store and in a shared folder: drivers are killed and continue on another host.

Another host is simulated by another home: only the checkpoint of the first driver is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from penstock.control import DriverRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.s3 import S3Server
from tests.chaos.checkpoint_app import APP, CheckpointApp, checkpoint_app, other_home, s3_variables
from tests.chaos.drivers import signal_session
from tests.support.s3_store import server
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("KILLS", "2"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with server(tmp_path_factory.mktemp("store")) as store_server:
        yield store_server


@pytest.fixture
def app(fresh_broker: Broker, mariadb: MariaDB, store: S3Server, tmp_path: Path) -> Iterator[CheckpointApp]:
    location = f"s3a://state/{tmp_path.name}"
    with checkpoint_app(fresh_broker, mariadb, tmp_path / "home", location, **s3_variables(store)) as app:
        yield app


def check_continues_on_another_host(app: CheckpointApp, tmp_path: Path, secret: str = "") -> None:
    """A host is lost while its driver works, and another host continues. secret: must not be on a command line."""
    app.send(4000)
    first = app.drivers.launch(APP)
    app.check(first.log)
    members = list(app.drivers.row(first.incarnation).session.members())
    assert members
    assert not secret or not any(
        secret in argument for process in members for argument in psutil.Process(process.pid).cmdline()
    )
    app.send(4000)
    assert first.session.kill()
    shutil.rmtree(tmp_path / "home")
    with other_home(tmp_path / "other"):
        second = app.drivers.launch(APP)
        app.send(4000)
        app.check(second.log)
        assert second.session.kill()


def test_another_host_continues_from_checkpoints_in_an_object_store(
    app: CheckpointApp, store: S3Server, tmp_path: Path
) -> None:
    check_continues_on_another_host(app, tmp_path, store.secret_key)
    logs = [path.read_text() for path in tmp_path.glob("*/logs/*.log")]
    assert logs
    assert not [text for text in logs if store.secret_key in text]


def test_numbers_are_counted_once_despite_kills_with_state_in_an_object_store(app: CheckpointApp) -> None:
    driver = app.drivers.launch(APP)
    for _ in range(KILLS):
        app.send(20_000)
        # Between the start of the session and a few batches later.
        time.sleep(app.random.uniform(4, 20))
        assert driver.session.kill()
        driver = app.drivers.launch(APP)
    app.check(driver.log)


def test_a_driver_resumed_after_its_lease_does_not_harm_its_successors_checkpoint(
    fresh_broker: Broker, mariadb: MariaDB, store: S3Server, tmp_path: Path
) -> None:
    """Both use the same checkpoints; the first runs as if on another host. Each successor is then paused."""
    location, short_lease = f"s3a://state/{tmp_path.name}", {"PENSTOCK_LEASE_TTL": 5}
    with ExitStack() as stack:
        app = stack.enter_context(
            checkpoint_app(fresh_broker, mariadb, tmp_path / "home", location, **s3_variables(store), **short_lease)
        )
        paused_driver = app.drivers.launch(APP)
        stack.callback(paused_driver.session.kill)
        app.send(4000)
        app.check(paused_driver.log)
        for round_ in range(KILLS):
            successor = replace_paused_driver(
                app, paused_driver, tmp_path / f"other-{round_}", resume_early=bool(round_ % 2)
            )
            stack.callback(successor.session.kill)
            paused_driver = successor
        # The state in the store is complete.
        paused_driver, _ = app.kill_and_recover(paused_driver)
        app.check(paused_driver.log)


def replace_paused_driver(app: CheckpointApp, paused_driver: DriverRow, home: Path, *, resume_early: bool) -> DriverRow:
    """Pause a driver and return its successor. resume_early: resume it while the successor starts."""
    control = app.drivers.control
    # While a batch is computed or written.
    app.send(50_000)
    time.sleep(app.random.uniform(0.5, 4))
    signal_session(paused_driver, signal.SIGSTOP)
    control.update_driver(paused_driver.incarnation, host="elsewhere")
    wait_until(
        lambda: all(lease.expires_at < control.now() for lease in control.leases().values()),
        what="the leases run out",
    )
    with other_home(home):
        successor = app.drivers.launch(APP)
        if resume_early:
            time.sleep(app.random.uniform(4, 8))
        else:
            app.send(1000)
            app.check(successor.log)
        signal_session(paused_driver, signal.SIGCONT)
        wait_until(lambda: paused_driver.session.alive() is False, what="the paused driver has ended")
        app.send(1000)
        app.check(successor.log)
    assert app.drivers.row(successor.incarnation).state == "running"
    assert not {row.state for row in control.progress(APP).values()} & {"blocked", "failing"}
    return successor


def test_streams_wait_for_an_object_store_that_is_down(app: CheckpointApp, store: S3Server) -> None:
    driver = app.drivers.launch(APP)
    app.send(20_000)
    app.check(driver.log)
    store.kill()
    app.send(20_000)

    def all_failing() -> bool:
        rows = app.drivers.control.progress(APP).values()
        return {row.state for row in rows} == {"failing"}

    wait_until(all_failing, what="every stream reports that it fails")
    time.sleep(20)
    assert all_failing()
    store.start()
    store.wait()
    app.send(20_000)
    app.check(driver.log)
    rows = app.drivers.control.progress(APP).values()
    assert {row.incarnation for row in rows} == {driver.incarnation}
    assert {row.dead for row in rows} == {0}


def test_another_host_continues_from_checkpoints_in_a_shared_folder(
    fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path
) -> None:
    with checkpoint_app(fresh_broker, mariadb, tmp_path / "home", str(tmp_path / "shared")) as app:
        check_continues_on_another_host(app, tmp_path)
