"""Processes are known by pid and start time, and end with all of their session."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from penstock.errors import HostError
from penstock.host import ports, process, session
from penstock.host.process import ProcessRecord, spawn
from tests.support.wait import wait_until

pytestmark = pytest.mark.processes

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> ProcessRecord:
    return spawn("sleeper", SLEEP, run=tmp_path / "run", log=tmp_path / "sleeper.log")


def test_a_recorded_process_is_found_again_and_stopped(sleeper: ProcessRecord, tmp_path: Path) -> None:
    again = process.read(tmp_path / "run", "sleeper")
    assert again == sleeper
    assert again
    assert again.process()
    process.stop(again)
    assert again.process() is None
    assert not psutil.pid_exists(sleeper.pid)


def test_another_process_with_the_same_number_is_left_alone(sleeper: ProcessRecord) -> None:
    other = replace(sleeper, since_boot=sleeper.since_boot - 100)
    assert other.process() is None
    process.stop(other)
    other.session.kill()
    assert sleeper.process()
    process.stop(sleeper)


def test_a_record_of_another_boot_means_nothing(sleeper: ProcessRecord) -> None:
    other = replace(sleeper, boot="another")
    assert other.process() is None
    process.stop(other)
    assert sleeper.process()
    process.stop(sleeper)


@pytest.mark.parametrize("leader_first", [False, True])
def test_the_whole_session_ends_also_after_its_leader(tmp_path: Path, leader_first: bool) -> None:
    log = tmp_path / "log"
    record = spawn("parent", [sys.executable, "-c", PARENT], run=tmp_path, log=log)
    child = int(wait_until(lambda: log.read_text().strip()))
    if leader_first:
        os.kill(record.pid, 9)
        wait_until(lambda: record.process() is None)
        assert psutil.pid_exists(child)
    process.stop(record)
    assert session.started(child) is None
    assert not psutil.pid_exists(record.pid)


def test_what_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    log = tmp_path / "log"
    record = spawn("stubborn", [sys.executable, "-c", code], run=tmp_path, log=log)
    wait_until(log.read_text)
    process.stop(record, timeout=0.3)
    assert record.process() is None


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"name": "x"})])
def test_a_record_cut_off_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    assert process.read(tmp_path, "x") is None


def test_who_holds_a_port() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert ports.port_holder(port) == f"pid {os.getpid()} ({psutil.Process().name()}) in {Path.cwd()}"
        assert ports.listens(port)
    assert ports.port_holder(port) is None
    assert not ports.listens(port)


def test_an_outgoing_connection_holds_a_port() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        holder = ports.port_holder(client.getsockname()[1])
    assert holder == f"an outgoing connection of pid {os.getpid()} ({psutil.Process().name()}) in {Path.cwd()}"


def test_free_ports_in_a_row() -> None:
    first = ports.free_port(3)
    assert [ports.port_holder(first + step) for step in range(3)] == [None] * 3


ASKS = """
from penstock.host import ports
ports.PORTS = range({0}, {0} + 10)
print(*(ports.free_port() for _ in range(4)), flush=True)
input()
"""


def test_a_free_port_is_given_once_while_the_asking_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [sys.executable, "-c", "from penstock.host import ports; print(ports.free_port(10))"]
    first = int(subprocess.check_output(ended))
    monkeypatch.setattr(ports, "PORTS", range(first, first + 10))
    command = [sys.executable, "-c", ASKS.format(first)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        ours = [ports.free_port() for _ in range(6)]
        assert len({*theirs, *ours}) == 10
        with pytest.raises(HostError, match="no 1 free ports"):
            ports.free_port()
        other.communicate("\n")
    assert {ports.free_port() for _ in range(len(theirs))} == theirs


LOWERED = """
import os
from pathlib import Path
from penstock.host.process import lower_priority
lower_priority()
print(os.nice(0), Path("/proc/self/autogroup").read_text())
"""


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no groups by session")
@pytest.mark.parametrize(("leads", "expected"), [(True, "19"), (False, "0")], ids=["own session", "a user's session"])
def test_a_process_of_low_priority_has_it_among_sessions(leads: bool, expected: str) -> None:
    command = [sys.executable, "-c", LOWERED]
    if not leads:
        command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run({command!r}, check=True)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    assert done.stdout.split()[0] == "19"
    assert done.stdout.split()[-1] == expected
