"""Checkpoints in an object store and in a shared folder: drivers die, and go on with their state on another host.

Another host is another home: of the first nothing is left but what its checkpoint holds.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock.local.parts import Broker, MariaDB
from penstock.local.s3 import S3
from penstock.supervision import processes
from tests.archived import server
from tests.chaos.keeping import APP, Keeping, elsewhere, keeping, variables

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("KILLS", "3"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with server(tmp_path_factory.mktemp("store")) as part:
        yield part


@pytest.fixture
def kept(fresh_broker: Broker, mariadb: MariaDB, store: S3, tmp_path: Path) -> Iterator[Keeping]:
    place = f"s3a://state/{tmp_path.name}"
    with keeping(fresh_broker, mariadb, tmp_path / "home", place, **variables(store)) as given:
        yield given


def moved(given: Keeping, tmp_path: Path, secret: str = "") -> None:
    """A driver dies with its host in the midst of its work, and another host goes on. secret: on no command line."""
    given.send(4000)
    first = given.drivers.launch(APP)
    given.check(first.log)
    members = list(processes.members(given.drivers.row(first.incarnation)))
    assert members
    assert not secret or not any(secret in word for one in members for word in psutil.Process(one.pid).cmdline())
    given.send(4000)
    assert processes.kill(first)
    shutil.rmtree(tmp_path / "home")
    with elsewhere(tmp_path / "other"):
        second = given.drivers.launch(APP)
        given.send(4000)
        given.check(second.log)
        assert processes.kill(second)


def test_a_driver_goes_on_elsewhere_with_its_state_in_an_object_store(kept: Keeping, store: S3, tmp_path: Path) -> None:
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
        assert processes.kill(driver)
        driver = kept.drivers.launch(APP)
    kept.check(driver.log)


@pytest.mark.long
def test_a_driver_goes_on_elsewhere_with_its_state_in_a_shared_folder(
    fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path
) -> None:
    with keeping(fresh_broker, mariadb, tmp_path / "home", str(tmp_path / "shared")) as given:
        moved(given, tmp_path)
