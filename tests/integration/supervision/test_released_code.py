"""A real driver runs what was released: after an edit and a kill, after a release, and after a rollback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.control import Actor, Control
from penstock.control.repositories.captures import Captures
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.model.capture import APP, parse
from penstock.supervision import launch
from penstock.supervision.release import release
from penstock.supervision.supervisor import Supervisor
from tests.chaos.drivers import drivers
from tests.support.captures import connect
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ME = Actor("me", "cli")
NAME = "released_towns"
# The driver of captures needs no Spark.
CAPTURE = "CAPTURE INTO {name} FROM mysql demo KEY (id) CURSOR changed AS SELECT id, changed, {column} FROM {name}"
TABLE = """CREATE TABLE {name} (id BIGINT PRIMARY KEY, a INT, b INT, c INT,
changed TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), KEY (changed))"""


class Towns:
    """A capture, and its supervisor."""

    def __init__(self, control: Control, file: Path) -> None:
        self.control, self.file = control, file
        self.supervisor = Supervisor(control, APP, "test", self.command)

    @staticmethod
    def command(incarnation: str) -> list[str]:
        command = launch.python_command(APP, incarnation)
        assert command
        assert command[0] == sys.executable
        return command

    def runs(self, column: str) -> None:
        """Wait until a driver of the last release runs the statement with a column."""
        wanted = parse(text(column), self.file).fingerprint

        def reported() -> bool:
            self.supervisor.tick()
            app = self.control.app(APP)
            row = self.control.progress(APP).get(NAME)
            driver = self.control.driver(app.incarnation or "") if app else None
            own = driver is not None and row is not None and row.incarnation == driver.incarnation
            return bool(own and app and driver and driver.release_seq == app.release_seq and driver.state == "running")

        wait_until(reported, 120, every=0.5, what="a driver of the release reports")
        wait_until(lambda: Captures(self.control).rows()[NAME].fingerprint == wanted, 30, what=f"it reads {column}")

    def kill(self) -> None:
        app = self.control.app(APP)
        driver = self.control.driver(app.incarnation or "") if app else None
        assert driver
        assert driver.session.kill()


def text(column: str) -> str:
    return CAPTURE.format(name=NAME, column=column)


@pytest.fixture
def towns(broker: Broker, mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Towns]:
    file = tmp_path / "project" / "sql" / "captures" / f"{NAME}.sql"
    file.parent.mkdir(parents=True)
    file.write_text(text("a"))
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", mariadb.url_of("demo"))
    with connect(mariadb, autocommit=True) as database, database.cursor() as cursor:
        cursor.execute(TABLE.format(name=NAME))
        try:
            with drivers(broker, mariadb, tmp_path / "home", tmp_path / "project") as made:
                yield Towns(made.control, file)
        finally:
            cursor.execute(f"DROP TABLE {NAME}")


def test_a_driver_runs_what_was_released(towns: Towns) -> None:
    towns.runs("a")
    towns.file.write_text(text("b"))
    towns.kill()
    towns.runs("a")
    assert release(towns.control, APP, ME) == 1
    towns.runs("b")
    assert release(towns.control, APP, ME, to="0") == 2
    towns.runs("a")
