"""Processes by name: started detached, recorded in a file, and found and stopped by it. Commands run to their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from penstock.host import session
from penstock.host.session import ProcessSession


@dataclass(frozen=True)
class ProcessRecord:
    """What is kept of a process that was started.

    Attributes:
        since_boot: Its start in seconds after boot, which no clock change moves.
        boot: `session.boot_id()` of then.
        ports: Ports it listens on, by what each is for.
    """

    name: str
    pid: int
    since_boot: float
    boot: str
    ports: dict[str, int] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f".{self.name}.json"
        fresh.write_text(json.dumps(asdict(self)))
        fresh.rename(folder / f"{self.name}.json")

    @property
    def session(self) -> ProcessSession:
        """The session that it leads; of another boot nothing is known of it."""
        return ProcessSession(session.host() if self.boot == session.boot_id() else "", self.pid, self.since_boot)

    def process(self) -> psutil.Process | None:
        """The process, if it still runs and is the one that was started."""
        try:
            return psutil.Process(self.pid) if self.session.leader_alive() else None
        except psutil.NoSuchProcess:
            return None


def read(folder: Path, name: str) -> ProcessRecord | None:
    try:
        return ProcessRecord(**json.loads((folder / f"{name}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def read_all(folder: Path) -> list[ProcessRecord]:
    """What is recorded in a folder."""
    return [record for path in folder.glob("*.json") if (record := read(folder, path.stem))]


def forget(folder: Path, name: str) -> None:
    (folder / f"{name}.json").unlink(missing_ok=True)


def spawn(
    name: str,
    command: Sequence[str],
    *,
    run: Path,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    ports: Mapping[str, int] | None = None,
) -> ProcessRecord:
    """Start a command in a session of its own, output to a log file, and record it under `run`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pid, started = session.start_detached(command, log=log, env={**os.environ, **(env or {})}, cwd=cwd)
    record = ProcessRecord(name, pid, started, session.boot_id(), dict(ports or {}))
    record.write(run)
    return record


def stop(record: ProcessRecord, *, timeout: float = 15.0) -> None:
    """End a process and its whole session: SIGTERM first, SIGKILL after `timeout` seconds."""
    stop_all([record], timeout=timeout)


def stop_all(records: Sequence[ProcessRecord], *, timeout: float = 15.0) -> None:
    """End several sessions at once."""
    sessions = [record.session for record in records]
    for one in sessions:
        one.signal(signal.SIGTERM)
    wait_for(lambda: not any(one.members() for one in sessions), timeout, 0.05)
    for one in sessions:
        one.kill()


def stop_recorded(folder: Path) -> bool:
    """End what is still recorded in a folder, whatever the settings of today would start; True if something ran."""
    records = read_all(folder)
    ran = any(record.session.members() for record in records)
    stop_all(records)
    for record in records:
        forget(folder, record.name)
    return ran


def run_captured(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and keep what it writes; `env` is added to this process's own."""
    return subprocess.run(
        [str(word) for word in command],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        env=session.with_utf8({**os.environ, **(env or {})}),
        cwd=cwd,
    )


def lower_priority() -> None:
    """Let this process, and what it starts, take the CPU time that no other process wants."""
    os.nice(19)
    # Linux divides CPU time among sessions, and niceness counts within one: sched(7), "The autogroup feature".
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text("19")


def wait_for(condition: Callable[[], bool], seconds: float, every: float = 0.1) -> bool:
    """Wait until a condition holds; False if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
