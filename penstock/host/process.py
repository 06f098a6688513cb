"""Processes that outlive who started them: started detached, known again by pid and start time, never by name."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from penstock.errors import HostError


def boot_id() -> str:
    """Names the run of the kernel: a pid means nothing after a reboot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(int(psutil.boot_time()))


@dataclass(frozen=True)
class Record:
    """What is kept of a started process. since_boot: its start in seconds after boot, which no clock change moves."""

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

    def process(self) -> psutil.Process | None:
        """The process, if it still runs and is the one that was started."""
        if self.boot != boot_id():
            return None
        try:
            found = psutil.Process(self.pid)
            if abs(_since_boot(found) - self.since_boot) > 0.05 or found.status() == psutil.STATUS_ZOMBIE:
                return None
        except psutil.NoSuchProcess:
            return None
        return found


def _since_boot(process: psutil.Process) -> float:
    return process.create_time() - psutil.boot_time()


def read(folder: Path, name: str) -> Record | None:
    try:
        return Record(**json.loads((folder / f"{name}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


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
) -> Record:
    """Start a command in a session of its own, output to a log file, and record it under `run`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
    _children.append(child)
    record = Record(name, child.pid, _since_boot(psutil.Process(child.pid)), boot_id(), dict(ports or {}))
    record.write(run)
    return record


def capture(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and keep what it writes; `env` is added to this process's own.

    on_line: called with each line of standard output as it is written.
    """
    if on_line is not None:
        return _followed([str(word) for word in command], {**os.environ, **(env or {})}, cwd, on_line)
    return subprocess.run(
        [str(word) for word in command],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        cwd=cwd,
    )


def _followed(
    command: list[str], env: Mapping[str, str], cwd: Path | None, on_line: Callable[[str], None]
) -> subprocess.CompletedProcess[str]:
    lines: list[str] = []
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            env=env,
            cwd=cwd,
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                lines.append(line)
                on_line(line.rstrip("\n"))
        errors.seek(0)
        return subprocess.CompletedProcess(
            command, child.returncode, "".join(lines), errors.read().decode(errors="replace")
        )


_children: list[subprocess.Popen[bytes]] = []


def reap() -> None:
    """Collect own children that ended, so that none stays as a zombie."""
    _children[:] = [child for child in _children if child.poll() is None]


def gone(pid: int) -> bool:
    """Whether a process has given back all it held: of a JVM the first thread may end before the others."""
    reap()
    try:
        found = psutil.Process(pid)
        return found.status() == psutil.STATUS_ZOMBIE and found.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def session(leader: int) -> list[psutil.Process]:
    """Every process of the session that `leader` leads or led."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def stop(record: Record, *, patience: float = 15.0) -> None:
    """End a process and its whole session: SIGTERM first, SIGKILL after `patience` seconds."""
    stop_all([record], patience=patience)


def stop_all(records: Sequence[Record], *, patience: float = 15.0) -> None:
    """End several sessions at once."""
    found = [m for record in records for m in members(record)]
    for one in found:
        with contextlib.suppress(psutil.Error):
            one.terminate()
    psutil.wait_procs(found, timeout=patience)
    for _ in range(3):  # again: a process may have forked meanwhile
        left = [m for record in records for m in members(record)]
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, timeout=5)
    wait_for(lambda: all(gone(one.pid) for one in found), 5)


def stop_recorded(folder: Path) -> bool:
    """End what is still recorded in a folder, whatever the settings of today would start; True if something ran."""
    found = {path.stem: record for path in folder.glob("*.json") if (record := read(folder, path.stem))}
    ran = any(members(record) for record in found.values())
    stop_all([*found.values()])
    for name in found:
        forget(folder, name)
    return ran


def members(record: Record) -> list[psutil.Process]:
    """What lives of a recorded process's session; its members may outlive their leader."""
    if record.boot != boot_id():
        return []
    if record.process() is None and psutil.pid_exists(record.pid) and not gone(record.pid):
        return []  # the number is somebody else's by now, so nothing of the session is left
    return [m for m in session(record.pid) if _born(m) >= record.since_boot - 0.05]


def _born(process: psutil.Process) -> float:
    try:
        return _since_boot(process)
    except psutil.Error:
        return -1.0


def kill(record: Record) -> None:
    """SIGKILL the whole session at once."""
    for one in (found := members(record)):
        with contextlib.suppress(psutil.Error):
            one.kill()
    wait_for(lambda: all(gone(one.pid) for one in found), 10)


def kill_session(leader: int) -> None:
    """SIGKILL every process of a session of this user, whoever started it."""
    for one in (found := session(leader)):
        with contextlib.suppress(psutil.Error):
            one.kill()
    wait_for(lambda: all(gone(one.pid) for one in found), 10)


def wait_for(condition: Callable[[], bool], seconds: float, every: float = 0.1) -> bool:
    """Wait until a condition holds; False if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def listens(port: int) -> bool:
    """Whether something on this host accepts connections on a loopback port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


# Below those that are given to outgoing connections.
PORTS = range(20000, 32000)


def free_port(count: int = 1) -> int:
    """A free loopback port out of `PORTS`, the first of `count` free ones in a row."""
    for _ in range(200):
        first = random.choice(PORTS)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for step in range(count):
                held.enter_context(_bound(first + step))
            return first
    raise HostError(f"no {count} free ports in a row were found")


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
    except (OSError, OverflowError):
        bound.close()
        raise
    return bound


def holder(port: int) -> str | None:
    """Who listens on a port, as far as this user may know; None if nobody does."""
    try:
        with _bound(port):
            pass
    except OSError:
        with contextlib.suppress(psutil.Error):
            for connection in psutil.net_connections("tcp"):
                if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                    if connection.pid is None:
                        break
                    with contextlib.suppress(psutil.Error):
                        return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
        return "a process this user may not see"
    return None


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            return "\n".join(file.read().decode(errors="replace").removesuffix("\n").split("\n")[-lines:])
    except OSError:
        return ""
