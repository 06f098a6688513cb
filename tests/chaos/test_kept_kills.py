"""Checkpoints in an object store and in a shared folder: drivers die, and go on with their state on another host.

Another host is another home: of the first nothing is left but what its checkpoint holds.
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
from tests.chaos.drivers import signal_session
from tests.chaos.keeping import APP, Keeping, elsewhere, keeping, variables
from tests.support.s3_store import server
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("KILLS", "2"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with server(tmp_path_factory.mktemp("store")) as part:
        yield part


@pytest.fixture
def kept(fresh_broker: Broker, mariadb: MariaDB, store: S3Server, tmp_path: Path) -> Iterator[Keeping]:
    place = f"s3a://state/{tmp_path.name}"
    with keeping(fresh_broker, mariadb, tmp_path / "home", place, **variables(store)) as given:
        yield given


def moved(given: Keeping, tmp_path: Path, secret: str = "") -> None:
    """A driver dies with its host in the midst of its work, and another host goes on. secret: on no command line."""
    given.send(4000)
    first = given.drivers.launch(APP)
    given.check(first.log)
    members = list(given.drivers.row(first.incarnation).session.members())
    assert members
    assert not secret or not any(secret in word for one in members for word in psutil.Process(one.pid).cmdline())
    given.send(4000)
    assert first.session.kill()
    shutil.rmtree(tmp_path / "home")
    with elsewhere(tmp_path / "other"):
        second = given.drivers.launch(APP)
        given.send(4000)
        given.check(second.log)
        assert second.session.kill()


def test_a_driver_goes_on_elsewhere_with_its_state_in_an_object_store(
    kept: Keeping, store: S3Server, tmp_path: Path
) -> None:
    moved(kept, tmp_path, store.secret_key)
    logs = [path.read_text() for path in tmp_path.glob("*/logs/*.log")]
    assert logs
    assert not [text for text in logs if store.secret_key in text]


@pytest.mark.long
def test_numbers_are_counted_once_through_kills_with_state_in_an_object_store(kept: Keeping) -> None:
    driver = kept.drivers.launch(APP)
    for _ in range(KILLS):
        kept.send(20_000)
        # From the start of the session to behind a few batches.
        time.sleep(kept.chance.uniform(4, 20))
        assert driver.session.kill()
        driver = kept.drivers.launch(APP)
    kept.check(driver.log)


@pytest.mark.long
def test_a_driver_that_wakes_up_behind_its_lease_leaves_the_store_to_its_heir(
    fresh_broker: Broker, mariadb: MariaDB, store: S3Server, tmp_path: Path
) -> None:
    """Both have the same checkpoints; nobody can kill the first, as its host is another. Each heir sleeps next."""
    place, short = f"s3a://state/{tmp_path.name}", {"PENSTOCK_LEASE_TTL": 5}
    with ExitStack() as stack:
        kept = stack.enter_context(
            keeping(fresh_broker, mariadb, tmp_path / "home", place, **variables(store), **short)
        )
        sleeper = kept.drivers.launch(APP)
        stack.callback(sleeper.session.kill)
        kept.send(4000)
        kept.check(sleeper.log)
        for round_ in range(KILLS):
            heir = replaced(kept, sleeper, tmp_path / f"other-{round_}", starting=bool(round_ % 2))
            stack.callback(heir.session.kill)
            sleeper = heir
        # What they left of the state is whole.
        sleeper, _ = kept.recovered(sleeper)
        kept.check(sleeper.log)


def replaced(kept: Keeping, sleeper: DriverRow, home: Path, *, starting: bool) -> DriverRow:
    """The driver that goes on while one sleeps. starting: whether that wakes up while this one begins."""
    control = kept.drivers.control
    # In the midst of a batch, or of its writing.
    kept.send(50_000)
    time.sleep(kept.chance.uniform(0.5, 4))
    signal_session(sleeper, signal.SIGSTOP)
    control.update_driver(sleeper.incarnation, host="elsewhere")
    wait_until(
        lambda: all(lease.expires_at < control.now() for lease in control.leases().values()),
        what="the leases run out",
    )
    with elsewhere(home):
        heir = kept.drivers.launch(APP)
        if starting:
            time.sleep(kept.chance.uniform(4, 8))
        else:
            kept.send(1000)
            kept.check(heir.log)
        signal_session(sleeper, signal.SIGCONT)
        wait_until(lambda: sleeper.session.alive() is False, what="the sleeper has ended")
        kept.send(1000)
        kept.check(heir.log)
    assert kept.drivers.row(heir.incarnation).state == "running"
    assert not {row.state for row in control.progress(APP).values()} & {"blocked", "failing"}
    return heir


@pytest.mark.long
def test_a_store_that_is_away_for_a_while_is_waited_for(kept: Keeping, store: S3Server) -> None:
    driver = kept.drivers.launch(APP)
    kept.send(20_000)
    kept.check(driver.log)
    store.kill()
    kept.send(20_000)

    def told() -> bool:
        rows = kept.drivers.control.progress(APP).values()
        return {row.state for row in rows} == {"failing"}

    wait_until(told, what="every stream says that it fails")
    time.sleep(20)
    assert told()
    store.start()
    store.wait()
    kept.send(20_000)
    kept.check(driver.log)
    rows = kept.drivers.control.progress(APP).values()
    assert {row.incarnation for row in rows} == {driver.incarnation}
    assert {row.dead for row in rows} == {0}


@pytest.mark.long
def test_a_driver_goes_on_elsewhere_with_its_state_in_a_shared_folder(
    fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path
) -> None:
    with keeping(fresh_broker, mariadb, tmp_path / "home", str(tmp_path / "shared")) as given:
        moved(given, tmp_path)
