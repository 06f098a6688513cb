"""The meter as a process, against a real broker."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from penstock.control import Control
from penstock.devstack.servers.kafka import Broker
from penstock.errors import BrokerError
from penstock.host import ports
from penstock.kafka.admin import end_offsets
from penstock.monitoring.collect.samples import RECEIPTS, usable
from penstock.monitoring.collect.sender import Sender
from penstock.testing import read
from tests.support.meter_control import STREAM, filled, report
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration


def create(bootstrap: str, name: str, partitions: int = 4) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(10)
    places = [(name, p) for p in range(partitions)]

    def led() -> bool:
        with suppress(BrokerError):
            return len(end_offsets(admin, places, bootstrap)) == partitions
        return False

    wait_until(led, what=f"a leader of every partition of {name}")


def receipts_of(bootstrap: str, topic: str = RECEIPTS) -> list[dict[str, Any]]:
    return [orjson.loads(record.value or "") for record in read(bootstrap, topic)]


class Running:
    """`penstock meter`'s process, with its own home."""

    def __init__(self, home: Path, bootstrap: str, control_url: str, every: float = 1.0) -> None:
        self.port = ports.free_port()
        self.log = home / "meter.log"
        environment = {
            **os.environ,
            "PENSTOCK_HOME": str(home),
            "PENSTOCK_ENVIRONMENT": "test",
            "PENSTOCK_KAFKA_BOOTSTRAP": bootstrap,
            "PENSTOCK_CONTROL_URL": control_url,
            "PENSTOCK_METRICS_PORT": str(self.port),
            "PENSTOCK_MEASURE_EVERY": str(every),
            "PENSTOCK_AIRFLOW_PORT": str(ports.free_port()),
        }
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen([sys.executable, "-m", "penstock", "meter"], env=environment, stderr=log)

    def metrics(self) -> dict[str, float]:
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", trust_env=False, timeout=10).text
        return {
            s.name + "".join(f":{v}" for _, v in sorted(s.labels.items())): s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
        }

    def said(self, text: str) -> bool:
        return text in self.log.read_text()

    def end(self) -> float:
        """SIGTERM; seconds until it ended."""
        at = time.monotonic()
        self.popen.send_signal(signal.SIGTERM)
        self.popen.wait(60)
        return time.monotonic() - at


@pytest.fixture
def started(tmp_path: Path, control: Control) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def start(bootstrap: str, control_url: str | None = None, **options: Any) -> Running:
        url = control_url or filled(control).engine.url.render_as_string(hide_password=False)
        made.append(Running(tmp_path, bootstrap, url, **options))
        return made[-1]

    yield start
    for one in made:
        one.popen.kill()
        one.popen.wait()


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of this module's own: the tests stop it."""
    with Broker(home=tmp_path_factory.mktemp("meter"), port=ports.free_port(2), heap="256m") as found:
        yield found


@pytest.mark.long
def test_the_platform_measures_itself(
    kafka: Broker, control: Control, started: Callable[..., Running], tmp_path: Path
) -> None:
    bootstrap = kafka.bootstrap
    record = kafka.record
    assert record
    record.write(tmp_path / "run")
    meter = started(bootstrap)
    wait_until(lambda: meter.said("penstock topics --apply"), what="the missing topic is named")
    create(bootstrap, RECEIPTS)

    def values(metric: str) -> list[float]:
        return [value["value"] for value in receipts_of(bootstrap) if value["metric"] == metric]

    def metrics() -> Counter[str]:
        return Counter(value["metric"] for value in receipts_of(bootstrap))

    wanted = {
        "cpu.broker", "cpu.meter", "memory.broker", "memoryPss.broker", "cpuBusy", "cpuWait", "memoryAvailable",
        "diskFree", "dbWaitTime", "dbQueryTime", "httpErrors.airflow", "probeErrors.http", "kafkaProduceTime",
        "kafkaAppendRate", "kafkaTopics", "kafkaPartitions", "kafkaUnderReplicated", f"batchTime.{STREAM}",
        f"rowsPerSecond.{STREAM}", f"lag.{STREAM}", f"watermarkAge.{STREAM}", f"stateRows.{STREAM}",
        f"stateSize.{STREAM}", "streamsRunning", "receiptsDropped",
    }  # fmt: skip

    def complete() -> bool:
        report(control)
        found = metrics()
        return wanted <= found.keys() and found["cpuBusy"] >= 4

    wait_until(complete, every=1, what="every metric")
    # The receipts themselves are what grows, and the first sample that sees their topic has nothing to compare with.
    wait_until(lambda: any(rate > 1 for rate in values("kafkaAppendRate")), what="the growth of the receipts is seen")
    shown = meter.metrics()
    rss = psutil.Process(meter.popen.pid).memory_info().rss / 1e6
    ended = meter.end()

    assert ended < 60
    assert meter.popen.returncode == 0
    assert rss < 90
    assert shown["penstock_control_up"] == 1
    assert shown[f"penstock_stream_rows_in_total:quality:{STREAM}"] == 1000
    assert shown["penstock_part_memory_bytes:broker"] > 50e6
    records = read(bootstrap, RECEIPTS)
    assert {record.partition for record in records} == {0, 1, 2, 3}
    assert {record.key for record in records} == {None}
    receipts = [orjson.loads(record.value or "") for record in records]
    now = time.time() * 1000
    for value in receipts:
        assert list(value) == ["environment", "metric", "value", "timestamp"]
        assert value["environment"] == "test"
        assert isinstance(value["value"], float)
        assert now - 120_000 < value["timestamp"] <= now
        assert list(usable([(value["metric"], value["value"])], 1))
    # They are in partitions: which stands last says nothing of time.
    receipts.sort(key=lambda value: value["timestamp"])
    by_metric = {m: [v["value"] for v in receipts if v["metric"] == m] for m in metrics()}
    assert set(by_metric["kafkaUnderReplicated"]) == {0.0}
    assert by_metric["kafkaPartitions"][-1] == 4
    assert all(0 < ms < 5000 for ms in by_metric["kafkaProduceTime"])
    assert set(by_metric["httpErrors.airflow"]) == {1.0}
    assert "httpTime.airflow" not in by_metric
    # Samples are aligned with the clock: what is between two of them does not drift.
    at = sorted(v["timestamp"] for v in receipts if v["metric"] == "diskFree")[1:]
    assert statistics.median(ms % 1000 for ms in at) < 400


@pytest.mark.long
def test_a_broker_that_comes_back_gets_each_receipt_once(kafka: Broker) -> None:
    topic = f"once-{uuid.uuid4().hex[:8]}"
    create(kafka.bootstrap, topic, 2)
    sender = Sender(kafka.bootstrap, topic)
    sender.start()
    sent = 0

    def put(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            sender.put(orjson.dumps({"n": sent}))
            sent += 1

    put(100)
    wait_until(lambda: sender.sent == 100, what="the first receipts")
    kafka.pause()
    put(700)  # more than is handed to the client at a time
    time.sleep(1)
    kafka.kill()
    put(100)
    assert sender.pending == 800
    kafka.start()
    kafka.wait(180)
    put(100)
    wait_until(lambda: sender.sent == 1000, what="all receipts")
    assert sender.stop() == 0
    assert sorted(value["n"] for value in receipts_of(kafka.bootstrap, topic)) == list(range(1000))
    slowest, lost = sender.produced()
    assert slowest is not None
    assert slowest > 900
    assert lost == 0


def test_a_topic_that_is_made_anew_gets_receipts_again(kafka: Broker) -> None:
    topic = f"anew-{uuid.uuid4().hex[:8]}"
    create(kafka.bootstrap, topic, 1)
    sender = Sender(kafka.bootstrap, topic)
    sender.LOOK_EVERY = 0.2
    sender.start()
    sender.put(b'{"n":1}')
    wait_until(lambda: sender.sent == 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(10)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics)
    sender.put(b'{"n":2}')
    wait_until(lambda: sender.failed, what="the refusal")
    create(kafka.bootstrap, topic, 1)
    sender.put(b'{"n":3}')
    wait_until(lambda: sender.sent == 2, what="the next receipt")
    sender.stop()
    assert [value["n"] for value in receipts_of(kafka.bootstrap, topic)] == [3]


def test_without_broker_database_and_airflow_the_meter_measures_and_ends_at_once(
    started: Callable[..., Running],
) -> None:
    away = ports.free_port()
    meter = started(f"127.0.0.1:{away}", f"mysql+pymysql://penstock:secret@127.0.0.1:{away}/x")
    wait_until(lambda: "probe kafka failed" in meter.log.read_text() and meter.said("probe database failed"))
    wait_until(lambda: "penstock_machine_cpu_busy_ratio" in meter.metrics())
    shown = meter.metrics()
    assert shown["penstock_control_up"] == 0
    assert shown["penstock_probe_failed:database"] == 1
    assert shown["penstock_probe_failed:machine"] == 0
    assert meter.end() < 10
    assert meter.popen.returncode == 0
    text = meter.log.read_text()
    assert "secret" not in text
    assert "Traceback" not in text
    assert text.count("probe kafka failed") == 1
    assert "not sent" in text


@pytest.mark.long
def test_a_port_that_is_taken_is_said(started: Callable[..., Running], tmp_path: Path) -> None:
    control = Control(f"sqlite:///{tmp_path / 'other.db'}")
    first = started("127.0.0.1:1", control.engine.url.render_as_string(hide_password=False))
    wait_until(lambda: first.said("measuring every"))
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "meter", "--port", str(first.port)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "PENSTOCK_METRICS_PORT" in done.stderr
    assert "Traceback" not in done.stderr
