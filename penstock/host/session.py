"""Sessions of processes on this host: started detached, recognised by pid and start time, ended as a whole. Linux only.

What is started detached leads a session of its own. A pid alone proves nothing, as the kernel gives it to others after
its process: the start time of the leader tells them apart. A session lives while any of its processes does.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

PROC = Path("/proc")
SAME_START = 0.02
"""Seconds by which readings of one start time may differ: it is kept in clock ticks (10 ms), and stored as a double."""


@dataclass(frozen=True)
class Member:
    """A process of a session.

    Attributes:
        started: Seconds since boot, which no change of the clock moves.
        dead: Whether it has given back all it held. Of a JVM the first thread may end before the others.
    """

    pid: int
    session: int
    started: float
    dead: bool


@cache
def boot_id() -> str:
    """Names the run of the kernel: a pid means nothing after a reboot."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


@cache
def host() -> str:
    """Where a pid of this process means something: host name, boot and pid namespace."""
    namespace = (PROC / "self/ns/pid").readlink().name.removeprefix("pid:").strip("[]")
    return f"{socket.gethostname()}/{boot_id()}/{namespace}"


def _read(pid: int | str) -> Member | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold blanks and parentheses itself: fields are counted after it.
    state, _ppid, _group, session, *rest = text[text.rindex(")") + 2 :].split()
    threads, ticks = int(rest[13]), int(rest[15])
    return Member(int(pid), int(session), ticks / os.sysconf("SC_CLK_TCK"), dead=state in "ZX" and threads <= 1)


def started(pid: int) -> float | None:
    """When a process started, in seconds since boot; None if there is none."""
    member = _read(pid)
    return None if member is None or member.dead else member.started


def current() -> ProcessSession:
    """The session of this process."""
    leader = os.getsid(0)
    return ProcessSession(host(), leader, started(leader) or started(os.getpid()) or 0.0)


def of_leader(pid: int) -> ProcessSession:
    """The session that a process leads or led, even if another process started it."""
    return ProcessSession(host(), pid, started(pid) or 0.0)


@dataclass(frozen=True)
class ProcessSession:
    """A session of processes.

    Attributes:
        host: `host()` of where it was started.
        pid: Of its leader; None while it is not recorded.
        started: When the leader started, in seconds since boot.
    """

    host: str
    pid: int | None
    started: float | None

    @property
    def _is_local(self) -> bool:
        return self.host == host() and self.pid is not None and self.started is not None

    def alive(self) -> bool | None:
        """Whether anything of it lives; None on another host, and while its pid is not recorded."""
        return self.leader_alive() or bool(self.members()) if self._is_local else None

    def leader_alive(self) -> bool:
        start = started(self.pid) if self._is_local and self.pid is not None else None
        return start is not None and self._same(start)

    def leader_gone(self) -> bool:
        """Whether the leader is gone and others of the session live on: nothing good comes of them."""
        # Its members are found by a look at each process of the host.
        return not self.leader_alive() and bool(self.members())

    def members(self) -> list[Member]:
        """What lives of it on this host, its leader first."""
        return sorted(self._members(), key=lambda m: m.pid != self.pid)

    def _members(self) -> Iterator[Member]:
        if not self._is_local or self.pid is None or self.started is None:
            return
        leader = _read(self.pid)
        if leader and self.started and not self._same(leader.started):
            # The pid belongs to another process, so the whole session has ended.
            return
        for entry in PROC.iterdir():
            m = _read(entry.name) if entry.name.isdecimal() else None
            if m and m.session == self.pid and not m.dead and m.started >= self.started - SAME_START:
                yield m

    def _same(self, start: float) -> bool:
        return self.started is not None and abs(start - self.started) <= SAME_START

    def processes(self) -> list[psutil.Process]:
        """Its members, to be measured."""
        processes = []
        for member in self.members():
            with suppress(psutil.Error):
                processes.append(psutil.Process(member.pid))
        return processes

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every member."""
        _send(self.members(), number)

    def terminate(self, marker: str) -> bool:
        """SIGTERM to the members, but for the leader, that have `marker` on their command line; to the leader while
        there is none. False if nothing was there."""
        members = self.members()
        marked = [m for m in members if m.pid != self.pid and marker.encode() in _command(m.pid)]
        _send(marked or [m for m in members if m.pid == self.pid] or members[:1], signal.SIGTERM)
        return bool(members)

    def kill(self, timeout: float = 10.0) -> bool:
        """SIGKILL every member, stopped ones too.

        Args:
            timeout: Seconds; the kernel may hold a dying process that waits for a disk.

        Returns:
            Whether nothing of it is left. False also where that cannot be known.
        """
        deadline = time.monotonic() + timeout
        while members := self.members():
            _send(members, signal.SIGKILL)  # again and again: a member may have forked meanwhile
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        self.reap()
        return self.alive() is False

    def reap(self) -> None:
        """Wait until its leader is no zombie of this process's any more."""
        if reaper := _reapers.pop(self.pid or 0, None):
            reaper.join(5)


_reapers: dict[int, threading.Thread] = {}


def with_utf8(env: Mapping[str, str]) -> dict[str, str]:
    """Variables of a child: in the locale C, Python takes names of files for UTF-8, and Java would for ASCII."""
    return {**env, **({"LC_ALL": "C.UTF-8"} if env.get("LC_ALL") in ("C", "POSIX") else {})}


def start_detached(
    command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path | None = None
) -> tuple[int, float]:
    """Start a command in a session of its own, its output in a log file; its pid and its start in seconds since boot.

    Raises:
        OSError: It cannot be started.
    """
    with log.open("ab") as out:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=with_utf8(env),
            cwd=cwd,
            start_new_session=True,
        )
    # Nobody has waited for it yet: even if it has ended, its number is its own.
    member = _read(child.pid)
    # This process may live long: what it started must not stay a zombie in it.
    reaper = threading.Thread(target=child.wait, name=f"reap-{child.pid}", daemon=True)
    _reapers[child.pid] = reaper
    reaper.start()
    return child.pid, member.started if member else 0.0


def _send(targets: Sequence[Member], number: signal.Signals) -> None:
    for target in targets:
        if _read(target.pid) == target:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(target.pid, number)


def _command(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
