"""Two apps whose drivers share a JVM: each is started, killed, released and stopped by itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from penstock.control import Actor, Control, DriverRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.shared_session import SharedSessionServer
from penstock.supervision import launch
from penstock.supervision.release import release
from penstock.supervision.supervisor import Supervisor
from penstock.testing import Record, read, send
from tests.chaos.drivers import drivers
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ME = Actor("me", "cli")
APPS = ("left", "right")
STREAM = """from penstock.streams import F, Input, Stateless, Stream, Topic, TopicOutput

WORD = "first"
ORDERS = Input(Topic("{app}-orders", partitions=2), schema="n INT NOT NULL, at TIMESTAMP NOT NULL", event_time="at")


def word(n):
    return WORD


STREAM = Stream(
    name="{app}-words",
    app="{app}",
    inputs={{"orders": ORDERS}},
    transform=lambda orders: orders.select("n", F.udf(word, "string")("n").alias("word")),
    output=TopicOutput(Topic("{app}-words", partitions=1), key="n", value="word"),
    output_mode=Stateless(),
)
"""


class Apps:
    """The two apps, with a supervisor of each."""

    def __init__(self, control: Control, project: Path, broker: Broker) -> None:
        self.control, self.project, self._broker = control, project, broker
        self._supervisors = [Supervisor(control, app, "test", self._command(app)) for app in APPS]
        self._sent = dict.fromkeys(APPS, 0)

    @staticmethod
    def _command(app: str) -> Callable[[str], Sequence[str]]:
        def command(incarnation: str) -> list[str]:
            found = launch.python_command(app, incarnation)
            assert found
            return found

        return command

    def driver(self, app: str) -> DriverRow:
        row = self.control.app(app)
        driver = self.control.driver(row.incarnation or "") if row else None
        assert driver
        return driver

    def send(self) -> None:
        """Send ten records to each app."""
        for app in APPS:
            numbers = range(self._sent[app], self._sent[app] + 10)
            texts = [json.dumps({"n": n, "at": "2026-11-01T00:00:00Z"}) for n in numbers]
            send(self._broker.bootstrap, [Record(f"{app}-orders", None, text, n % 2) for n, text in enumerate(texts)])
            self._sent[app] += 10

    def words(self, app: str) -> dict[int, str]:
        """The word of each number that was written. AssertionError if one was written twice."""
        records = read(self._broker.bootstrap, f"{app}-words")
        assert max(Counter(r.key for r in records).values(), default=1) == 1
        return {int(r.key or ""): r.value or "" for r in records}

    def wait_released(self, app: str) -> None:
        def is_released() -> bool:
            self._tick()
            return self.driver(app).release_seq == 1

        wait_until(is_released, 120, every=0.5, what=f"{app} has a driver of its release")

    def _tick(self) -> None:
        for supervisor in self._supervisors:
            supervisor.tick()

    def wait_written(self, *apps: str) -> None:
        def is_written() -> bool:
            self._tick()
            return all(self.words(app).keys() == set(range(self._sent[app])) for app in apps)

        wait_until(is_written, 120, every=0.5, what=f"all is written of {apps}")


@pytest.fixture
def apps(broker: Broker, mariadb: MariaDB, tmp_path: Path) -> Iterator[Apps]:
    project, home = tmp_path / "project", tmp_path / "home"
    for app in APPS:
        (project / "jobs" / app).mkdir(parents=True)
        (project / "jobs" / app / "words.py").write_text(STREAM.format(app=app))
    with drivers(broker, mariadb, home, project, PENSTOCK_TOGETHER="all", PENSTOCK_TOGETHER_MEMORY="512m") as made:
        server = SharedSessionServer()
        try:
            yield Apps(made.control, project, broker)
        finally:
            for driver in made.control.drivers():
                driver.session.kill()
            server.stop()


def is_java(one: psutil.Process) -> bool:
    return one.name() == "java"


def java(server: SharedSessionServer) -> list[psutil.Process]:
    assert server.record
    return [one for one in server.record.session.processes() if is_java(one)]


def worker_parents(server: SharedSessionServer) -> int:
    """How many processes there are that Spark forks Python workers from."""
    children = [one for jvm in java(server) for one in jvm.children() if one.status() != psutil.STATUS_ZOMBIE]
    return sum("penstock.engine.worker_daemon" in one.cmdline() for one in children)


def test_each_app_is_killed_released_and_stopped_by_itself(apps: Apps) -> None:
    apps.send()
    apps.wait_written(*APPS)
    shared = SharedSessionServer()
    assert len(java(shared)) == worker_parents(shared) == 1
    assert not any(is_java(one) for app in APPS for one in apps.driver(app).session.processes())

    killed, other = apps.driver("left"), apps.driver("right")
    assert killed.session.kill()
    apps.send()
    apps.wait_written(*APPS)
    assert f"driver {killed.incarnation[:8]} has left; stopped left-words" in shared.log.read_text()
    assert apps.driver("left").incarnation != killed.incarnation
    assert apps.driver("right").incarnation == other.incarnation

    file = apps.project / "jobs" / "left" / "words.py"
    file.write_text(file.read_text().replace('"first"', '"second"'))
    assert release(apps.control, "left", ME) == 1
    apps.wait_released("left")
    apps.send()
    apps.wait_written(*APPS)
    assert {apps.words("left")[n] for n in range(20, 30)} == {"second"}
    assert {*apps.words("right").values()} == {"first"}
    assert worker_parents(shared) == 2

    before = [apps.driver(app).incarnation for app in APPS]
    [jvm] = java(shared)
    with shared.log.open("a") as log:
        # What the JVM writes when it ends because of that.
        log.write("Terminating due to java.lang.OutOfMemoryError: Java heap space\n")
    jvm.kill()
    apps.send()
    apps.wait_written(*APPS)
    assert not {apps.driver(app).incarnation for app in APPS} & {*before}
    assert {driver.end_code for one in before if (driver := apps.control.driver(one))} == {"memory"}

    other = apps.driver("right")
    apps.control.set_desired(["left-words"], "off", ME)
    wait_until(lambda: len(apps.control.drivers()) == 1, 30, what="the stopped app has no driver")
    wait_until(lambda: worker_parents(shared) == 1, 10, what="its workers have ended")
    apps.send()
    apps.wait_written("right")
    assert apps.driver("right").incarnation == other.incarnation
