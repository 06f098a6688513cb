"""Use another project's declarations in this process for the duration of a block."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock import catalog
from penstock.control import Control
from penstock.devstack.servers.kafka import Broker, Brokers
from penstock.devstack.servers.mariadb import MariaDB
from penstock.kafka.admin import ensure_topics
from tests.support.caches import clear_caches, unload_jobs


@contextmanager
def other_project(folder: Path, variables: Mapping[str, object]) -> Iterator[None]:
    """Set the project and further PENSTOCK_* variables, and clear what was imported and cached of the present one."""
    with ExitStack() as stack:
        # Runs last, when the variables are restored.
        stack.callback(clear_caches)
        m = stack.enter_context(pytest.MonkeyPatch.context())
        m.setenv("PENSTOCK_PROJECT", str(folder))
        for key, value in variables.items():
            m.setenv(key, str(value))
        m.setattr(sys, "path", [*sys.path])
        # Both projects call their package `jobs`.
        modules_before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "jobs"}
        stack.callback(sys.modules.update, modules_before)
        stack.callback(unload_jobs)
        clear_caches()
        unload_jobs()
        yield


@contextmanager
def deployed(
    folder: Path, broker: Broker | Brokers, mariadb: MariaDB, home: Path, **variables: object
) -> Iterator[Control]:
    """A project with its topics and its control database; all its drivers are killed at the end."""
    all_variables = {
        "PENSTOCK_HOME": home,
        "PENSTOCK_KAFKA_BOOTSTRAP": broker.bootstrap,
        "PENSTOCK_CONTROL_URL": mariadb.url,
        "PENSTOCK_DRIVER_MEMORY": "512m",
        **variables,
    }
    with other_project(folder, all_variables):
        declarations = catalog.load(folder)
        ensure_topics(declarations.topics.values(), broker.bootstrap)
        control = Control(mariadb.url)
        control.migrate()
        control.sync(declarations)
        try:
            yield control
        finally:
            for d in control.drivers(live=False):
                d.session.kill()
                # The next test of this app sees these rows too.
                control.end_driver(d.incarnation, "its test is over")
            control.engine.dispose()
