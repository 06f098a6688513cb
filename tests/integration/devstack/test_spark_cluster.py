"""Checks of an executor on a real cluster. That it finds nothing is tried in `supervision/test_cluster_deploy.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.devstack.servers.mariadb import MariaDB
from penstock.engine import executor_check
from penstock.settings import settings
from tests.chaos.clustered import clustered

pytestmark = [pytest.mark.integration, pytest.mark.long]


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
