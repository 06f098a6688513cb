"""A driver as operating-system processes: is it there, end it. Linux only; needs no Spark and no database.

A driver runs in a session of its own: the leader is spark-submit's JVM, its children are the Python driver and the
Python workers. A driver is alive while anything of its session is, because any of them may still write.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.control import DriverRow

PROC = Path("/proc")
# Start times are read in clock ticks (10 ms) and stored as a double.
SAME_START = 0.02


@dataclass(frozen=True)
class Member:
    """A process of a session. started: seconds since boot, which no change of the clock moves."""

    pid: int
    session: int
    started: float
    zombie: bool


@cache
def host() -> str:
    """Where a pid of this process means something: host name, boot and pid namespace."""
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    namespace = (PROC / "self/ns/pid").readlink().name.removeprefix("pid:").strip("[]")
    return f"{socket.gethostname()}/{boot}/{namespace}"


def _read(pid: int | str) -> Member | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold blanks and parentheses itself: fields are counted behind it.
    state, _ppid, _group, session, *rest = text[text.rindex(")") + 2 :].split()
    ticks = int(rest[15])
    return Member(int(pid), int(session), ticks / os.sysconf("SC_CLK_TCK"), zombie=state in "ZX")


def started(pid: int) -> float | None:
    """When a process started, in seconds since boot, or None if there is none."""
    found = _read(pid)
    return None if found is None or found.zombie else found.started


def _same(one: float | None, other: float) -> bool:
    return one is not None and abs(one - other) <= SAME_START


def session() -> tuple[int, float]:
    """(pid, start) of the leader of this process's session: what a driver row records."""
    leader = os.getsid(0)
    return leader, started(leader) or started(os.getpid()) or 0.0


def members(row: DriverRow) -> list[Member]:
    """What lives of a driver's session on this host, its leader first."""
    if row.host != host() or row.pid is None or row.pid_started is None:
        return []
    return sorted(_members(row.pid, row.pid_started), key=lambda m: m.pid != row.pid)


def _members(leader: int, since: float) -> Iterator[Member]:
    found = _read(leader)
    if found and not _same(found.started, since):
        # The number went to somebody else, which it can only when the whole session is gone.
        return
    for entry in PROC.iterdir():
        m = _read(entry.name) if entry.name.isdecimal() else None
        if m and m.session == leader and not m.zombie and m.started >= since - SAME_START:
            yield m


def _leader_lives(row: DriverRow) -> bool:
    return row.pid is not None and row.pid_started is not None and _same(started(row.pid), row.pid_started)


def alive(row: DriverRow) -> bool | None:
    """Whether anything of a driver's session lives; None if that cannot be known from here.

    None on another host, and while the launcher has not yet recorded the pid.
    """
    if row.host != host() or row.pid is None or row.pid_started is None:
        return None
    return _leader_lives(row) or bool(members(row))


def leader_gone(row: DriverRow) -> bool:
    """Whether the leader is gone and others of the session live on: nothing good comes of them."""
    return row.host == host() and not _leader_lives(row) and bool(members(row))


def _signal(targets: list[Member], number: signal.Signals) -> None:
    for target in targets:
        if _read(target.pid) == target:
            with suppress(ProcessLookupError):
                os.kill(target.pid, number)


def terminate(row: DriverRow) -> bool:
    """Ask a driver to drain and leave: SIGTERM to its Python part, to the leader while there is none.

    A JVM that gets SIGTERM takes its Python child with it in the middle of a batch. False if nothing was there.
    """
    found = members(row)
    python = [m for m in found if m.pid != row.pid and row.incarnation.encode() in _command(m.pid)]
    _signal(python or [m for m in found if m.pid == row.pid] or found[:1], signal.SIGTERM)
    return bool(found)


def _command(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def kill(row: DriverRow, timeout: float = 10.0) -> bool:
    """SIGKILL everything of a driver's session, stopped processes too; True when nothing of it is left.

    timeout: seconds; the kernel may hold a dying process that waits for a disk. False also where it cannot be known.
    """
    deadline = time.monotonic() + timeout
    while found := members(row):
        _signal(found, signal.SIGKILL)  # again and again: a member may have forked meanwhile
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return alive(row) is False
