"""CPU, memory and ports of running servers and drivers."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

from penstock.control import DriverRow
from penstock.devstack.servers.base import ManagedServer

SAMPLE = 0.5


@dataclass(frozen=True)
class ServerUsage:
    """A server as it is now. cpu: percent of one core; memory: bytes, shared ones counted by share; up: seconds."""

    name: str
    state: str  # running | stopped | crashed
    pid: int | None = None
    ports: dict[str, int] | None = None
    up: float | None = None
    cpu: float | None = None
    memory: int | None = None


def measure(which: list[ManagedServer], rows: list[DriverRow], seconds: float = SAMPLE) -> list[ServerUsage]:
    """Every server, and every driver as `driver-<app>`; takes so many seconds to see what each uses."""
    usage_by_server = {
        server.name: (server, record.session.processes() if (record := server.record) else []) for server in which
    }
    sessions = {f"driver-{row.app}": (row, row.session.processes()) for row in rows}
    everyone = [p for _, members in [*usage_by_server.values(), *sessions.values()] for p in members]
    before = {p.pid: _cpu(p) for p in everyone}
    began = time.monotonic()
    time.sleep(seconds if everyone else 0)
    elapsed = time.monotonic() - began

    def usage_of(name: str, pid: int | None, members: list[psutil.Process], ports: dict[str, int]) -> ServerUsage:
        cpu = sum(max(0.0, _cpu(p) - before[p.pid]) for p in members)
        leader = next((p for p in members if p.pid == pid), members[0])
        return ServerUsage(
            name, "running", pid, ports, _up(leader), round(100 * cpu / elapsed, 1), sum(memory(p) for p in members)
        )

    out = []
    for server, members in usage_by_server.values():
        record, alive = server.record, server.running()
        if alive and record and members:
            out.append(usage_of(server.name, alive.pid, members, dict(record.ports)))
        else:
            out.append(ServerUsage(server.name, "crashed" if record else "stopped", ports=dict(server.ports)))
    out += [usage_of(name, row.pid, members, {}) for name, (row, members) in sessions.items() if members]
    return out


def _cpu(one: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = one.cpu_times()
        # Children that ended count too: Airflow's are many and short.
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def memory(one: psutil.Process) -> int:
    """Proportional set size in bytes, if the system reports it; 0 for a process that ended."""
    with suppress(psutil.Error):
        return int(getattr(one.memory_full_info(), "pss", 0) or one.memory_info().rss)
    return 0


def _up(one: psutil.Process) -> float:
    with suppress(psutil.Error):
        return max(0.0, time.time() - one.create_time())
    return 0.0
