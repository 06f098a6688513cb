"""Probes of the machine and of the platform's processes, on Linux, without rights over other users' processes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.host import process
from penstock.monitoring.collect.samples import MIB, Deltas

Pair = tuple[str, float | None]

# The parts of Airflow by title or command of a process; other processes belong to the part of their parent.
_AIRFLOW = (
    ("airflowApi", re.compile(r"api[-_]server|uvicorn|gunicorn")),
    ("airflowDagProcessor", re.compile(r"dag[-_]processor")),
    ("airflowTriggerer", re.compile(r"\btriggerer\b")),
    ("airflowTasks", re.compile(r"LocalExecutor|airflow worker|task_runner")),
    ("airflowScheduler", re.compile(r"\bscheduler\b")),
)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process. session: its session's leader; cpu: own seconds; ended: seconds of children that ended."""

    pid: int
    parent: int
    session: int
    started: float
    name: str
    command: Callable[[], str]
    cpu: float
    ended: float
    rss: int
    pss: Callable[[], int | None]

    @property
    def key(self) -> tuple[int, float]:
        return self.pid, self.started


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What a process had used at the last sample, its part, and the key of its parent."""

    part: str
    cpu: float
    ended: float
    parent: tuple[int, float] | None = None


def processes() -> dict[int, ProcessInfo]:
    """All processes that can be read, by pid."""
    table = {}
    attrs = ["pid", "ppid", "name", "create_time", "cpu_times", "memory_info"]
    for p in psutil.process_iter(attrs):
        i = p.info
        with suppress(ProcessLookupError, PermissionError):
            if not (i["cpu_times"] and i["memory_info"]):
                continue
            times = i["cpu_times"]
            table[i["pid"]] = ProcessInfo(
                pid=i["pid"],
                parent=i["ppid"],
                session=os.getsid(i["pid"]),
                started=i["create_time"],
                name=i["name"] or "",
                command=_command(p),
                cpu=times.user + times.system,
                ended=times.children_user + times.children_system,
                rss=i["memory_info"].rss,
                pss=_pss(p),
            )
    return table


def _command(p: psutil.Process) -> Callable[[], str]:
    def read() -> str:
        try:
            return " ".join(p.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return ""

    return read


def _pss(p: psutil.Process) -> Callable[[], int | None]:
    def read() -> int | None:
        try:
            return int(p.memory_full_info().pss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None

    return read


def recorded(run: Path) -> dict[str, int]:
    """Pids of running parts by the records `<run>/<part>.json`, such as {"broker": 4711}."""
    pids = {}
    for path in run.glob("*.json"):
        record = process.read(run, path.stem)
        if record and record.process():
            pids[_camel(path.stem)] = record.pid
    return pids


def _camel(name: str) -> str:
    first, *rest = re.split(r"[-_]", name)
    return first + "".join(r[:1].upper() + r[1:] for r in rest)


def assign(table: Mapping[int, ProcessInfo], leaders: Mapping[int, str]) -> dict[str, list[ProcessInfo]]:
    """Processes by part: a process belongs to its nearest ancestor that leads a part.

    leaders: part by pid. Sessions decide before ancestry: a driver is in its own session, though Airflow started it.
    A driver `driver.<app>` is split in `driverJvm.<app>` and `driverPython.<app>`, Airflow in its components.
    """
    parts: dict[int, str | None] = {}

    def part(pid: int, depth: int = 0) -> str | None:
        if pid not in parts:
            p = table.get(pid)
            if p is None or depth > 64:
                return None
            name = leaders.get(pid) or leaders.get(p.session) or part(p.parent, depth + 1)
            parts[pid] = _finer(name, p) if name else None
        return parts[pid]

    members: dict[str, list[ProcessInfo]] = {}
    for pid, p in table.items():
        if name := part(pid):
            members.setdefault(name, []).append(p)
    return members


def _finer(part: str, p: ProcessInfo) -> str:
    kind, _, app = part.partition(".")
    if kind.startswith("driver") and app:
        return f"driverJvm.{app}" if p.name == "java" else f"driverPython.{app}"
    if kind.startswith("airflow"):
        command = p.command()
        component = next((name for name, pattern in _AIRFLOW if pattern.search(command)), part)
        # A component with a record of its own starts no other component, only tasks.
        return component if kind == "airflow" or component == "airflowTasks" else part
    return part


class ProcessProbe:
    """CPU and memory of every part of the platform on this machine.

    Args:
        run: folder of the pid records.
        drivers: returns the app by pid of the drivers on this host. Its error is raised after the other parts are
            measured.
        every_pss: proportional memory is measured in one of so many samples, as the kernel has to walk over all
            pages.
    """

    name = "parts"

    def __init__(self, run: Path, drivers: Callable[[], Mapping[int, str]], *, every_pss: int = 4) -> None:
        self.run, self.drivers, self.every_pss = run, drivers, every_pss
        self._last: dict[tuple[int, float], ProcessUsage] = {}
        self._wall = self._clock = 0.0
        self._round = 0

    def measure(self) -> Iterator[Pair]:
        leaders = {pid: part for part, pid in recorded(self.run).items()}
        leaders[os.getpid()] = "meter"
        failure: Exception | None = None
        try:
            leaders |= {pid: f"driver.{app}" for pid, app in self.drivers().items()}
        except Exception as e:  # raised below: the other parts are measured without the database
            failure = e
        # The app `replacement:visits` has parts such as `driverJvm.replacement.visits`: names of metrics have no colon.
        leaders = {pid: part.replace(":", ".") for pid, part in leaders.items()}
        wall, clock = time.time(), time.monotonic()
        table = processes()
        members = assign(table, leaders)
        span = clock - self._clock
        fresh = span >= Deltas.SHORTEST
        for part, procs in sorted(members.items()):
            if fresh and any(usage.part == part for usage in self._last.values()):
                yield f"cpu.{part}", used(procs, self._last, {p.key for p in table.values()}, self._wall) / span
            yield f"memory.{part}", sum(p.rss for p in procs) / MIB
            yield f"processes.{part}", len(procs)
            if self._round % self.every_pss == 0:
                shares = [p.pss() for p in procs]
                yield f"memoryPss.{part}", None if None in shares else sum(s or 0 for s in shares) / MIB
        if fresh:
            self._last = {
                p.key: ProcessUsage(part, p.cpu, p.ended, table[p.parent].key if p.parent in table else None)
                for part, procs in members.items()
                for p in procs
            }
            self._wall, self._clock = wall, clock
        self._round += 1
        if failure:
            raise failure


def used(
    now: Iterable[ProcessInfo],
    last: Mapping[tuple[int, float], ProcessUsage],
    alive: Container[tuple[int, float]],
    since: float,
) -> float:
    """CPU seconds that processes used since the sample `last`, taken at `since` (epoch seconds), each counted once.

    When a child ends, its parent inherits all its seconds, including those that were counted while the child lived.
    These are subtracted from what the parent inherited. The earlier seconds of an older process that joins a part are
    not counted.
    """
    inherited: dict[tuple[int, float], float] = {}
    for key, usage in last.items():
        if key not in alive and (successor := _successor(usage, last, alive)):
            inherited[successor] = inherited.get(successor, 0.0) + usage.cpu + usage.ended
    total = 0.0
    for p in now:
        if before := last.get(p.key):
            total += max(0.0, p.cpu - before.cpu)
            total += max(0.0, p.ended - before.ended - inherited.get(p.key, 0.0))
        elif p.started >= since - 0.1:
            total += p.cpu + p.ended
    return total


def _successor(
    usage: ProcessUsage, last: Mapping[tuple[int, float], ProcessUsage], alive: Container[tuple[int, float]]
) -> tuple[int, float] | None:
    """The nearest ancestor that is alive, if the last sample has the ones between."""
    key = usage.parent
    while key and key not in alive:
        key = last[key].parent if key in last else None
    return key


class HostProbe:
    """CPU, memory and disks of the machine. home: a folder on the disk whose free space is measured."""

    name = "machine"

    def __init__(self, home: Path) -> None:
        self.home = home
        self._cpu: Deltas[str] = Deltas()
        self._disks: Deltas[tuple[str, str]] = Deltas()

    def measure(self) -> Iterator[Pair]:
        times = psutil.cpu_times()._asdict()
        for guest in ("guest", "guest_nice"):  # included in user and nice
            times.pop(guest, None)
        span, grown = self._cpu.of(times)
        if span and (total := sum(grown.values())):
            yield "cpuBusy", 1 - (grown.get("idle", 0) + grown.get("iowait", 0)) / total
            yield "cpuWait", grown.get("iowait", 0) / total
            yield "cpuSteal", grown.get("steal", 0) / total
        yield "memoryAvailable", psutil.virtual_memory().available / MIB
        yield "diskFree", psutil.disk_usage(str(_existing(self.home))).free / MIB
        yield from self._disk()

    def _disk(self) -> Iterator[Pair]:
        counters: dict[tuple[str, str], float] = {}
        names = []
        for name, io in psutil.disk_io_counters(perdisk=True).items():
            if _is_disk(name) and io.read_count + io.write_count:
                names.append(name)
                counters[name, "busy"] = io.busy_time
                counters[name, "time"] = io.read_time + io.write_time
                counters[name, "count"] = io.read_count + io.write_count
        span, grown = self._disks.of(counters)
        if not span:
            return
        for name in names:
            if (name, "busy") in grown:
                yield f"diskBusy.{name}", min(1.0, grown[name, "busy"] / (span * 1000))
                count = grown[name, "count"]
                yield f"diskWaitTime.{name}", grown[name, "time"] / count if count else None


def _is_disk(name: str) -> bool:
    """Whether it is a whole disk and no loop, memory or partition device."""
    return not re.match(r"loop|ram|zram|dm-|md|sr|fd", name) and Path("/sys/block", name).exists()


def _existing(path: Path) -> Path:
    return next(p for p in (path, *path.absolute().parents) if p.exists())
