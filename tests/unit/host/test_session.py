"""Processes of a driver: identity, session-wide signals, reuse of a pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.control import DriverRow
from penstock.host import session
from penstock.supervision import backends
from tests.support.wait import wait_until

pytestmark = pytest.mark.processes

# A leader and a child of its session, which writes its pid and then sleeps.
PAIR = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], "--incarnation", "inc1"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""
SLEEP = "import time; time.sleep(600)"
DRAIN = (
    "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print('ready', flush=True); time.sleep(600)"
)


def row(pid: int | None, started: float | None) -> DriverRow:
    return DriverRow(
        incarnation="inc1", app="a", host=session.host(), pid=pid, pid_started=started, release_seq=0, spec_hash="",
        owner="me", state="running", launched_at=0, alive_at=0, ended_at=None, reason=None, log="",
    )  # fmt: skip


class Pair:
    def __init__(self, tmp: Path, child: str) -> None:
        note = tmp / "child"
        self.leader = subprocess.Popen(
            [sys.executable, "-c", PAIR, str(note), child], start_new_session=True, stdout=subprocess.PIPE
        )
        wait_until(lambda: note.exists() and note.read_text())
        self.child = int(note.read_text())
        self.row = row(self.leader.pid, session.started(self.leader.pid))

    def close(self) -> None:
        self.row.session.kill()
        self.leader.wait(10)
        assert self.leader.stdout is not None
        self.leader.stdout.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, SLEEP)
    yield made
    made.close()


def test_alive_sees_the_session_and_kill_ends_all_of_it(pair: Pair) -> None:
    assert pair.row.session.alive() is True
    assert {m.pid for m in pair.row.session.members()} == {pair.leader.pid, pair.child}
    assert pair.row.session.members()[0].pid == pair.leader.pid
    assert pair.row.session.kill() is True
    assert pair.row.session.alive() is False
    assert session.started(pair.child) is None


def test_stopped_processes_are_killed(pair: Pair) -> None:
    for pid in (pair.leader.pid, pair.child):
        os.kill(pid, signal.SIGSTOP)
    assert pair.row.session.alive() is True
    assert pair.row.session.kill() is True


def test_a_dead_leader_does_not_hide_its_session(pair: Pair) -> None:
    assert not pair.row.session.leader_gone()
    pair.leader.kill()
    wait_until(lambda: session.started(pair.leader.pid) is None)
    assert pair.row.session.alive() is True
    assert pair.row.session.leader_gone()
    assert pair.row.session.kill() is True
    assert session.started(pair.child) is None


def test_a_reused_pid_is_not_the_driver(pair: Pair) -> None:
    assert pair.row.pid_started is not None
    earlier = replace(pair.row, pid_started=pair.row.pid_started - 60)
    assert earlier.session.alive() is False
    assert earlier.session.kill() is True
    assert pair.row.session.alive() is True, "the process that has the number now is left alone"


def test_what_cannot_be_known_is_none(pair: Pair) -> None:
    elsewhere = replace(pair.row, host="elsewhere/boot/1")
    assert elsewhere.session.alive() is None
    assert elsewhere.session.kill() is False
    assert backends.terminate(elsewhere) is False
    assert row(None, None).session.alive() is None
    assert pair.row.session.alive() is True


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    it = row(child.pid, session.started(child.pid))
    child.kill()
    wait_until(lambda: it.session.alive() is False)
    child.wait()


def test_terminate_asks_the_python_part_only(tmp_path: Path) -> None:
    pair = Pair(tmp_path, DRAIN)
    try:
        assert pair.leader.stdout is not None
        assert pair.leader.stdout.readline() == b"ready\n"
        assert backends.terminate(pair.row) is True
        wait_until(lambda: session.started(pair.child) is None)
        assert session.started(pair.leader.pid) is not None
    finally:
        pair.close()


def test_own_session_is_what_a_row_records() -> None:
    own = session.current()
    assert own.pid == os.getsid(0)
    assert row(own.pid, own.started).session.alive() is True


@pytest.mark.parametrize(
    ("given", "child"),
    [
        ({"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}),
        ({"LC_ALL": "POSIX", "LANG": "C"}, {"LC_ALL": "C.UTF-8", "LANG": "C"}),
        ({"LC_ALL": "de_DE.ISO-8859-1"}, {"LC_ALL": "de_DE.ISO-8859-1"}),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, {"LANG": "C", "LC_CTYPE": "C.UTF-8"}),
    ],
)
def test_a_child_takes_names_of_files_for_utf_8_as_python_does(given: dict[str, str], child: dict[str, str]) -> None:
    assert session.with_utf8(given) == child
