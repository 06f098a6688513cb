"""CPU and memory of parts: whose process is whose, and no second counted twice."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from penstock.errors import ControlError
from penstock.host import process, session
from penstock.monitoring.collect.host import HostProbe, ProcessInfo, ProcessProbe, ProcessUsage, assign, recorded, used
from penstock.monitoring.collect.samples import Probe, usable
from tests.support.meter_control import collect

pytestmark = pytest.mark.processes

BUSY = "import time; at = time.process_time()\nwhile time.process_time() - at < {}: pass\nprint('done', flush=True)\n"


def figures(probe: Probe) -> dict[str, float]:
    """What is known of a probe's figures; every name is a listed one."""
    return {s.metric: s.value for s in usable(probe.measure(), 1)}


def proc(
    pid: int, parent: int = 1, session: int = 0, *, name: str = "python", command: str = "", **figures: float
) -> ProcessInfo:
    return ProcessInfo(
        pid=pid,
        parent=parent,
        session=session or pid,
        started=figures.get("started", 1.0),
        name=name,
        command=lambda: command,
        cpu=figures.get("cpu", 0.0),
        ended=figures.get("ended", 0.0),
        rss=0,
        pss=lambda: 0,
    )  # fmt: skip


def test_each_process_belongs_to_one_part() -> None:
    table = [
        proc(10, name="java"),  # broker
        proc(20, command="airflow standalone"),
        proc(21, 20, 20, command="airflow scheduler"),
        proc(22, 21, 20, command="airflow scheduler -- LocalExecutor"),
        proc(23, 20, 20, command="/env/bin/airflow api-server --port 1"),
        proc(24, 20, 20, command="airflow triggerer"),
        proc(30, 24, 30, name="java"),  # a driver, started by the triggerer in its own session
        proc(31, 30, 30),
        proc(32, 1, 30),  # a worker whose parent died
        proc(40),  # a stranger
        proc(50, command="python -m airflow dag-processor"),
        proc(51, 50, 50, command="airflow api-server of some DAG file"),
        proc(41, 999),
    ]
    found = assign(
        {p.pid: p for p in table}, {10: "broker", 20: "airflow", 30: "driver.quality", 50: "airflowDagProcessor"}
    )
    assert {part: [p.pid for p in procs] for part, procs in found.items()} == {
        "broker": [10],
        "airflow": [20],
        "airflowScheduler": [21],
        "airflowTasks": [22],
        "airflowApi": [23],
        "airflowTriggerer": [24],
        "airflowDagProcessor": [50, 51],
        "driverJvm.quality": [30],
        "driverPython.quality": [31, 32],
    }


def test_seconds_of_an_ended_child_are_counted_once() -> None:
    last = {(1, 1.0): ProcessUsage("p", 10.0, 2.0), (2, 1.0): ProcessUsage("p", 5.0, 0.0, (1, 1.0))}
    # The child used 1 s more, ended, and its parent inherited all its 6 s.
    now = [proc(1, cpu=10.5, ended=8.0)]
    assert used(now, last, {(1, 1.0)}, since=50) == pytest.approx(1.5)


def test_seconds_of_a_grandchild_and_of_another_part_are_counted_once() -> None:
    last = {
        (1, 1.0): ProcessUsage("p", 10.0, 0.0),
        (2, 1.0): ProcessUsage("q", 5.0, 0.0, (1, 1.0)),
        (3, 1.0): ProcessUsage("q", 3.0, 1.0, (2, 1.0)),
    }
    now = [proc(1, cpu=10.0, ended=9.5)]
    assert used(now, last, {(1, 1.0)}, since=50) == pytest.approx(0.5)


def test_seconds_of_an_ended_child_without_a_wait_are_not_subtracted() -> None:
    last = {(1, 1.0): ProcessUsage("p", 10.0, 0.0), (2, 1.0): ProcessUsage("p", 500.0, 0.0, (1, 1.0))}
    assert used([proc(1, cpu=11.0)], last, {(1, 1.0)}, since=50) == pytest.approx(1.0)


def test_seconds_without_a_wait_are_not_subtracted_from_those_of_other_children() -> None:
    last = {
        (1, 1.0): ProcessUsage("p", 10.0, 0.0),
        (3, 1.0): ProcessUsage("p", 1.0, 0.0, (1, 1.0)),
        (4, 1.0): ProcessUsage("p", 7.0, 0.0, (3, 1.0)),
    }
    # A child of 1 came and went; the child of 3 went and nobody waited for it.
    now = [proc(1, cpu=10.0, ended=0.6), proc(3, cpu=1.0)]
    assert used(now, last, {p.key for p in now}, since=50) == pytest.approx(0.6)


def test_a_new_process_counts_fully_and_an_older_one_from_now() -> None:
    last = {(1, 1.0): ProcessUsage("p", 1.0, 0.0), (4, 1.0): ProcessUsage("q", 3.0, 0.0)}
    now = [
        proc(1, cpu=1.0),
        proc(2, cpu=0.5, started=60.0),
        proc(3, cpu=100.0, started=2.0),
        proc(4, cpu=3.25),  # was another part's until now
    ]
    assert used(now, last, {p.key for p in now}, since=50) == pytest.approx(0.75)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "run"
    record = process.spawn("busy-part", [sys.executable, "-c", BUSY.format(60)], run=folder, log=tmp_path / "busy.log")
    yield folder
    record.session.kill()


def twice(run: Path) -> tuple[dict[str, float], dict[str, float], float]:
    """Figures before and after a child that used 0.6 s came and went, and the seconds between."""
    parts = ProcessProbe(run, dict)
    at = time.monotonic()
    first = figures(parts)
    subprocess.run([sys.executable, "-c", BUSY.format(0.6)], check=True, stdout=subprocess.DEVNULL)
    second = figures(parts)
    return first, second, time.monotonic() - at


def test_real_processes_are_measured(run: Path) -> None:
    (run / "broken.json").write_text("{")
    assert list(recorded(run)) == ["busyPart"]

    # A process of its own: what other tests left running would be children of this one.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        first, second, span = pool.submit(twice, run).result()
    assert first["processes.busyPart"] == 1
    assert 1 < first["memoryPss.busyPart"] <= first["memory.busyPart"]
    assert first["memory.meter"] > 10
    assert "cpu.busyPart" not in first
    assert second["cpu.busyPart"] > 0
    # Of the child, which began and ended between the samples, every second is there.
    assert second["cpu.meter"] * span > 0.55
    assert "memoryPss.meter" not in second


def test_a_reused_pid_is_no_part(tmp_path: Path) -> None:
    process.ProcessRecord("broker", 1, since_boot=-5.0, boot=session.boot_id()).write(tmp_path)
    process.ProcessRecord("mariadb", 1, since_boot=0.0, boot="another").write(tmp_path)
    assert recorded(tmp_path) == {}


def test_without_the_database_the_other_parts_are_measured(tmp_path: Path) -> None:
    def away() -> dict[int, str]:
        raise ControlError("away")

    found: dict[str, float | None] = {}
    with pytest.raises(ControlError):
        collect(ProcessProbe(tmp_path, away).measure(), found)
    assert found["processes.meter"]


def test_the_driver_of_a_replacement_has_metrics_that_are_listed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as driver:
        metrics = figures(ProcessProbe(tmp_path, lambda: {driver.pid: "replacement:visits"}))
        driver.communicate(b"\n")
    assert metrics["processes.driverPython.replacement.visits"] == 1
    assert list(usable(metrics.items(), 1))


def test_the_machine_is_measured(tmp_path: Path) -> None:
    machine = HostProbe(tmp_path / "not" / "there" / "yet")
    first = figures(machine)
    assert first["memoryAvailable"] > 0
    assert first["diskFree"] > 0
    machine._cpu._at -= 1
    machine._disks._at -= 1
    subprocess.run([sys.executable, "-c", BUSY.format(0.2)], check=True, capture_output=True)
    second = figures(machine)
    shares = [second[name] for name in ("cpuBusy", "cpuWait", "cpuSteal")]
    assert all(0 <= s <= 1 for s in shares)
    assert second["cpuBusy"] > 0
