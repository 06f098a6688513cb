"""Short form of tests/chaos/test_cluster_kills.py: a worker of a real cluster is killed, and nothing is lost by it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.devstack.servers.mariadb import MariaDB
from penstock.engine import executor_check
from penstock.settings import settings
from tests.chaos.clustered import clustered

pytestmark = pytest.mark.integration


def test_a_killed_workers_state_and_tasks_go_to_the_other(mariadb: MariaDB, tmp_path: Path) -> None:
    with clustered(mariadb, tmp_path) as place:
        place.settles()
        before = place.executors()
        assert set(before.values()) == {1, 2}, "each worker has one"
        tried = executor_check.check_executor()
        assert (tried.python, tried.error, tried.missing) == (sys.executable, "", "")
        assert tried.records, "it reads from the brokers"
        place.recovers(place.cluster.workers[0].kill)
        place.settles()
        after = place.executors()
        assert set(after.values()) == {2}, "both are the other's"
        assert len(before.keys() & after.keys()) == 1, "one of them has stayed"
        place.exact()


@pytest.mark.long
def test_what_an_executor_lacks_is_told(mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with clustered(mariadb, tmp_path) as place:
        place.settles()
        with monkeypatch.context() as given:
            given.setenv("PENSTOCK_EXECUTOR_PYTHON", "/nowhere/python")
            settings.cache_clear()
            assert "No such file" in executor_check.check_executor().error
        with monkeypatch.context() as given:
            # The one that the environment was made from has none of its libraries.
            given.setenv("PENSTOCK_EXECUTOR_PYTHON", str(Path(sys.executable).resolve()))
            settings.cache_clear()
            assert "penstock.engine.worker_daemon" in executor_check.check_executor().error
        with monkeypatch.context() as given:
            given.setenv("PENSTOCK_EXECUTOR_MEMORY", "64g")
            settings.cache_clear()
            assert "64g" in executor_check.check_executor().missing
        settings.cache_clear()
        place.exact()
