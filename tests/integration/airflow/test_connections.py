"""Credentials that exist only as Connections of a whole Airflow: a driver has them, and nobody can read them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pymysql
import pytest

from penstock import catalog
from penstock.control import Control, DriverRow
from penstock.devstack.servers.airflow import Airflow
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.kafka.admin import ensure_topics
from penstock.model.declaration import CAPTURES_APP
from penstock.model.topic import COMMITS, DEAD_LETTERS
from penstock.settings import settings
from penstock.testing import Record, read, send
from tests.chaos.platform import call
from tests.chaos.projects import other_project
from tests.support.captures import TABLE, connect
from tests.support.certificates import Authority
from tests.support.guarded_broker import USER, Guarded, guarded_broker
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900), pytest.mark.long]

CAPTURE = """CAPTURE INTO orders FROM mysql shop KEY (id) CURSOR changed
EVERY 200 MILLISECONDS OVERLAP 1 SECOND AS SELECT id, name, changed FROM orders"""
STREAM = """
from datetime import timedelta
from penstock.streams import EmitFinal, F, Input, Stream, Topic, TopicOutput
MINUTE = timedelta(minutes=1)
def transform(sales):
    minutes = sales.groupBy(F.window("event_time", "1 minute")).agg(F.count("*").alias("count"))
    return minutes.select(F.unix_millis("window.start").alias("start"), "count")
STREAM = Stream("minutes", "sales", {"sales": Input(Topic("sales"))}, transform,
    TopicOutput(Topic("sale-minutes"), key="start", value="count"), EmitFinal(MINUTE, timedelta(0)))
"""
DAGS = """
from penstock.airflow.dags import declare_dags

globals().update(declare_dags("streams", "heartbeat"))
"""
# Parts of them are searched for: in JSON and URIs other characters look different.
BROKER_PASSWORD, OLD, NEW = 'weir-4711 "a\\b', "sluice-4712/@", "gate-4713"
SECRETS = (b"weir-4711", b"sluice-4712", b"gate-4713")
# A busy machine takes many times what a quiet one does.
TIMEOUT = 300.0


class Platform(NamedTuple):
    """What a project runs on."""

    airflow: Airflow
    broker: Guarded
    mariadb: Shop
    control: Control
    home: Path

    def insert(self, name: str) -> None:
        with connect(self.mariadb) as c, c.cursor() as cursor:
            cursor.execute("INSERT INTO orders (name) VALUES (%s)", (name,))
            c.commit()

    def captured(self) -> set[str]:
        """The names in the topic."""
        return {json.loads(r.value)["name"] for r in read(self.broker.bootstrap, "orders") if r.value}

    def driver(self) -> DriverRow | None:
        row = self.control.app(CAPTURES_APP)
        driver = self.control.driver(row.incarnation) if row and row.incarnation else None
        return driver if driver and driver.pid and driver.state != "ended" else None

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Ask Airflow's API, which may be busy."""
        with suppress(httpx.TransportError):
            return call(self.airflow, method, path, **body)
        return call(self.airflow, method, path, **body)


class Shop(MariaDB):
    """A MariaDB with a user for captures."""

    SETUP = MariaDB.SETUP + (
        f"CREATE OR REPLACE USER 'reader'@'127.0.0.1' IDENTIFIED BY '{OLD}';\n"
        "GRANT SELECT ON demo.* TO 'reader'@'127.0.0.1';\nGRANT PROCESS ON *.* TO 'reader'@'127.0.0.1';\n"
    )

    def change_password(self) -> None:
        with pymysql.connect(host="127.0.0.1", port=self.port, user="reader", password=OLD) as c:
            c.cursor().execute("SET PASSWORD = PASSWORD(%s)", (NEW,))


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    tmp_path = tmp_path_factory.mktemp("platform")
    home, project = tmp_path / "penstock", tmp_path / "project"
    authority = Authority(tmp_path_factory.mktemp("ca"), "right")
    files = {"sql/captures/orders.sql": CAPTURE, "dags/penstock_dags.py": DAGS}
    for path, text in {**files, "jobs/sales/__init__.py": "", "jobs/sales/minutes.py": STREAM}.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    with ExitStack() as stack:
        broker = stack.enter_context(guarded_broker(tmp_path_factory.mktemp("broker"), authority, BROKER_PASSWORD))
        mariadb = stack.enter_context(Shop(tmp_path_factory.mktemp("mariadb"), port=free_port()))
        with connect(mariadb) as c, c.cursor() as cursor:
            cursor.execute(TABLE.format(name="orders"))
        file = tmp_path / "control.db"
        stack.enter_context(other_project(project, {"PENSTOCK_HOME": home, "PENSTOCK_SUPERVISE_EVERY": 0.5}))
        ensure_topics([*catalog.load().topics.values(), COMMITS, DEAD_LETTERS], broker.bootstrap)
        control = Control(f"sqlite:///{file}")
        stack.callback(control.engine.dispose)
        control.migrate()
        # This process has read its settings, and reaches the broker by its plain port.
        assert not settings().connection_ids
        m = stack.enter_context(pytest.MonkeyPatch.context())
        m.setenv("PENSTOCK_CONTROL_URL", "airflow://control")
        m.setenv("PENSTOCK_KAFKA_BOOTSTRAP", "airflow://brokers")
        m.setenv("AIRFLOW__CORE__TEST_CONNECTION", "Enabled")
        airflow = stack.enter_context(Airflow(home, free_port(), project))
        made = Platform(airflow, broker, mariadb, control, home)
        stack.callback(lambda: [d.session.kill() for d in control.drivers(live=False)])
        extra = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.ca)}
        made.call(
            "POST", "connections", connection_id="brokers", conn_type="penstock_kafka", host=broker.outside,
            login=USER, password=BROKER_PASSWORD, extra=json.dumps(extra),
        )  # fmt: skip
        made.call(
            "POST", "connections", connection_id="control", conn_type="penstock_database", host=str(file),
            extra='{"dialect": "sqlite"}',
        )  # fmt: skip
        yield made


SHOP: dict[str, Any] = {
    "connection_id": "shop", "conn_type": "penstock_database", "host": "127.0.0.1", "login": "reader", "schema": "demo",
    "extra": '{"dialect": "mysql"}',
}  # fmt: skip


def test_a_driver_is_launched_with_what_only_airflow_has(platform: Platform) -> None:
    """First without the capture's Connection, which is reported; then with it; then with a changed password."""
    p, shop = platform, {**SHOP, "port": platform.mariadb.port}

    def fault() -> str:
        row = p.control.progress(CAPTURES_APP).get("orders")
        return row.error or "" if row else ""

    p.insert("first")
    send(p.broker.bootstrap, [Record("sales", None, "1")])
    wait_until(lambda: "connection shop is missing" in fault(), TIMEOUT, every=1, what="the capture fails")
    assert "AIRFLOW_CONN_SHOP" in fault()

    # The button, as the page presses it.
    answer = p.call("POST", "connections/test", **shop, password="wrong")
    assert (answer["status"], "Access denied" in answer["message"]) == (False, True), answer
    answer = p.call("POST", "connections/test", **shop, password=OLD)
    assert (answer["status"], answer["message"].startswith("mysql 1")) == (True, True), answer

    p.call("POST", "connections", **shop, password=OLD)
    driver = p.driver()
    assert driver is not None
    driver.session.kill()
    wait_until(lambda: "first" in p.captured(), TIMEOUT, every=1, what="the capture works")
    hidden_from_others(p)
    # The API server reads the control database for the operator page.
    headers = {"Authorization": f"Bearer {p.airflow.token()}"}
    page = httpx.get(f"{p.airflow.url}/penstock/api/streams", headers=headers, timeout=60).raise_for_status()
    assert '"orders"' in page.text

    # Rotation: connections that are open stay, and the next driver logs in anew.
    p.mariadb.change_password()
    p.call("PATCH", "connections/shop", **shop, password=NEW)
    driver = p.driver()
    assert driver is not None
    driver.session.kill()
    p.insert("second")
    wait_until(lambda: "second" in p.captured(), TIMEOUT, every=1, what="the next driver has the new password")
    hidden_from_others(p)

    # A driver on Spark, and the heartbeats: no further record closes the minute.
    def minutes() -> list[str | None]:
        return [r.value for r in read(p.broker.bootstrap, "sale-minutes")]

    wait_until(lambda: minutes() == ["1"], TIMEOUT, every=1, what="a heartbeat closes the minute")


def hidden_from_others(p: Platform) -> None:
    """The driver has the secrets in its environment; no command line, log, database or other file has."""
    driver = p.driver()
    assert driver is not None
    environment = Path(f"/proc/{driver.pid}/environ").read_bytes()
    assert b"AIRFLOW_CONN_BROKERS=" in environment
    assert SECRETS[0] in environment
    assert not {"AIRFLOW_CONN_BROKERS", "AIRFLOW_CONN_SHOP"} & os.environ.keys()
    searched = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            assert not any(secret in command for secret in SECRETS), process
            searched += 1
    files = [path for path in p.home.parent.rglob("*") if path.is_file()]
    for path in files:
        with suppress(FileNotFoundError):
            content = path.read_bytes()
            assert not any(secret in content for secret in SECRETS), path
    names = {path.name for path in files}
    assert searched
    assert {"airflow.db", "control.db"} <= names
    assert any(name.startswith(f"driver-{CAPTURES_APP}-") for name in names)
    assert any(path.is_relative_to(p.home / "logs" / "airflow") for path in files)
