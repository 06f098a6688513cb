"""Checks of an executor on a real cluster. That it finds nothing is tried in `supervision/test_cluster_deploy.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.devstack.servers.mariadb import MariaDB
from penstock.engine import executor_check
from penstock.settings import settings
from tests.chaos.cluster_app import cluster_app

pytestmark = [pytest.mark.integration, pytest.mark.long]


def test_what_an_executor_lacks_is_told(mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster_app(mariadb, tmp_path) as app:
        app.wait_executors()
        with monkeypatch.context() as variables:
            variables.setenv("PENSTOCK_EXECUTOR_PYTHON", "/nowhere/python")
            settings.cache_clear()
            assert "No such file" in executor_check.check_executor().error
        with monkeypatch.context() as variables:
            # The one that the environment was made from has none of its libraries.
            variables.setenv("PENSTOCK_EXECUTOR_PYTHON", str(Path(sys.executable).resolve()))
            settings.cache_clear()
            assert "penstock.engine.worker_daemon" in executor_check.check_executor().error
        with monkeypatch.context() as variables:
            variables.setenv("PENSTOCK_EXECUTOR_MEMORY", "64g")
            settings.cache_clear()
            assert "64g" in executor_check.check_executor().missing
        settings.cache_clear()
        app.check_output()
