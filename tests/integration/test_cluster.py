"""Short form of tests/chaos/test_cluster_kills.py: a worker of a real cluster is killed, and nothing is lost by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.local.parts import MariaDB
from tests.chaos.clustered import clustered

pytestmark = pytest.mark.integration


def test_a_killed_workers_state_and_tasks_go_to_the_other(mariadb: MariaDB, tmp_path: Path) -> None:
    with clustered(mariadb, tmp_path) as place:
        place.settles()
        before = place.executors()
        assert set(before.values()) == {1, 2}, "each worker has one"
        place.recovers(place.cluster.workers[0].kill)
        place.settles()
        after = place.executors()
        assert set(after.values()) == {2}, "both are the other's"
        assert len(before.keys() & after.keys()) == 1, "one of them has stayed"
        place.exact()
