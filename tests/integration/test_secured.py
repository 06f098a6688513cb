"""Brokers with TLS and a login, a control database with TLS: all goes through them, and who is refused is told why."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.catalog import HeartbeatReader, HeartbeatTopic
from penstock.cli import app
from penstock.control import Control
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.errors import BrokerError, ControlError
from penstock.host.ports import free_port
from penstock.kafka.admin import admin, ensure_topics
from penstock.model.output_mode import HeartbeatSchedule
from penstock.model.topic import COMMITS
from penstock.monitoring.collect.sender import Sender
from penstock.settings import settings
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.testing import Record, create, read, running, send
from tests.support.caches import clear_caches
from tests.support.captures import Source, polled
from tests.support.certificates import Authority
from tests.support.guarded_broker import PASSWORD, Guarded
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

AT = 1_700_000_400_000
EVENTS, OUT = Topic("secured-events", partitions=2), Topic("secured-out", partitions=1)
STREAM = Stream(
    name="secured",
    app="tests",
    inputs={"events": Input(EVENTS, schema="n BIGINT NOT NULL, at BIGINT", event_time="timestamp_millis(at)")},
    transform=lambda events: events.selectExpr("CAST(n AS STRING) AS key", "n * 2 AS twice"),
    output=TopicOutput(OUT, key="key", value=("twice",)),
    output_mode=Stateless(),
)


class Door(Broker):
    """The way in with TLS and a login, for helpers that ask a broker for its address."""

    def __init__(self, guarded: Guarded) -> None:
        super().__init__(guarded.home, guarded.port)
        self._outside = guarded.outside

    @property
    def bootstrap(self) -> str:
        return self._outside


@pytest.fixture
def set_to(guarded: Guarded, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Sets the login and says where the broker is."""

    def chosen(**others: str) -> str:
        told = {
            "BOOTSTRAP": guarded.outside, "SECURITY_PROTOCOL": "SASL_SSL", "CA": str(authority.ca),
            "USERNAME": "penstock", "PASSWORD": PASSWORD, **others,
        }  # fmt: skip
        for name, value in told.items():
            monkeypatch.setenv(f"PENSTOCK_KAFKA_{name}", value)
        clear_caches()
        admin.cache_clear()
        return guarded.outside

    yield chosen
    monkeypatch.undo()
    clear_caches()
    admin.cache_clear()


def send_heartbeat(topic: Topic, bootstrap: str) -> None:
    due = HeartbeatSchedule(timedelta(seconds=10), timedelta(seconds=4))
    topics = {topic.name: HeartbeatTopic(topic, [HeartbeatReader(due)], 4.0)}
    with closing(HeartbeatSender(topics, None, bootstrap)) as sender:
        sender.run_once()


def test_a_stream_runs_over_tls_with_a_login(
    set_to: Callable[..., str], spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bootstrap = set_to()
    create(bootstrap, EVENTS, Topic(EVENTS.dead_letters, partitions=1), OUT, COMMITS)
    send(bootstrap, [Record(EVENTS.name, None, json.dumps({"n": n, "at": AT}), n % 2) for n in range(100)])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
    assert sorted(json.loads(one.value or "")["twice"] for one in read(bootstrap, OUT.name)) == list(range(0, 200, 2))
    logged = capfd.readouterr()
    assert "hidden" not in logged.out + logged.err
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        assert b"hidden" not in file.read_bytes(), file


def test_a_capture_heartbeats_receipts_and_commands_run_over_tls_with_a_login(
    set_to: Callable[..., str], guarded: Guarded, mariadb: MariaDB, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", mariadb.url_of("demo"))
    bootstrap = set_to()
    source = Source("secured_rows", mariadb, Door(guarded), home)
    source.sql("INSERT INTO secured_rows (name) VALUES ('a'), ('b')")
    polled(source.poller())
    assert len(source.topic()) == 2
    source.pollers[0].close()

    beaten = Topic("secured-beaten", partitions=2)
    ensure_topics([beaten], bootstrap)
    send_heartbeat(beaten, bootstrap)
    assert {one.partition for one in read(bootstrap, beaten.name)} == {0, 1}

    sender = Sender(bootstrap, beaten.name)
    sender.start()
    sender.put(b"receipt")
    wait_until(lambda: not sender.pending)
    sender.stop()
    assert "receipt" in {one.value for one in read(bootstrap, beaten.name)}

    found = CliRunner().invoke(app, ["topics", "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["topics"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"PASSWORD": "hidden too"}, r"refused Penstock.s login.*PENSTOCK_KAFKA_PASSWORD"),
        ({"SASL_MECHANISM": "PLAIN"}, r"refused Penstock.s login.*SCRAM-SHA-512.*PENSTOCK_KAFKA_SASL_MECHANISM"),
        ({"CA": "wrong"}, r"no TLS connection.*certificate verify failed.*PENSTOCK_KAFKA_CA"),
        ({"SECURITY_PROTOCOL": "SASL_PLAINTEXT", "CA": ""}, r"did not answer.*PENSTOCK_KAFKA_SECURITY_PROTOCOL"),
    ],
)
def test_a_refused_login_names_the_setting(
    set_to: Callable[..., str],
    tmp_path: Path,
    wrong: dict[str, str],
    said: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.kafka.admin.TIMEOUT", 3.0)
    if wrong.get("CA") == "wrong":
        wrong = {"CA": str(Authority(tmp_path, "wrong").ca)}
    bootstrap = set_to(**wrong)
    found = CliRunner().invoke(app, ["topics"])
    assert found.exit_code == 1
    (line,) = found.stderr.splitlines()
    assert re.search(said, line), line
    assert "hidden" not in found.output

    with pytest.raises(BrokerError, match=f"(?s){said}"):
        send_heartbeat(Topic("x"), bootstrap)
    if wrong.get("PASSWORD"):
        sender = Sender(bootstrap, "x")
        with caplog.at_level(logging.WARNING):
            sender.start()
            sender.put(b"receipt")
            wait_until(lambda: re.search(said, caplog.text))
        sender.stop()
        assert "hidden" not in caplog.text


class Encrypted(MariaDB):
    """A MariaDB that offers TLS."""

    def __init__(self, home: Path, port: int, authority: Authority) -> None:
        super().__init__(home, port)
        self._certificate, self._key = authority.issue("database")

    def command(self) -> list[str]:
        plain = [word for word in super().command() if word != "--skip-ssl"]
        return [*plain, f"--ssl-cert={self._certificate}", f"--ssl-key={self._key}"]


def test_the_control_database_needs_its_ca_for_tls(
    authority: Authority, mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Encrypted(tmp_path / "encrypted", free_port(), authority) as server:
        monkeypatch.setenv("PENSTOCK_CONTROL_URL", server.url)
        monkeypatch.setenv("PENSTOCK_CONTROL_CA", str(authority.ca))
        clear_caches()
        assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
        control = Control(server.url, settings().control_ca)
        with control.begin() as c:
            assert c.exec_driver_sql("SHOW STATUS LIKE 'Ssl_cipher'").one()[1]
        control.engine.dispose()
        for url, ca in (
            (server.url, Authority(tmp_path, "other").ca),
            (server.url.replace("127.0.0.1", "localhost"), authority.ca),
            (mariadb.url, authority.ca),
        ):
            monkeypatch.setenv("PENSTOCK_CONTROL_URL", url)
            monkeypatch.setenv("PENSTOCK_CONTROL_CA", str(ca))
            clear_caches()
            refused = Control(url, str(ca))
            with pytest.raises(ControlError, match=r"PENSTOCK_CONTROL_CA"):
                refused.now()
            refused.engine.dispose()
    monkeypatch.undo()
    clear_caches()
