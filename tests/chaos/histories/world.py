"""The servers of the histories, the process that captures, and what happens to them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from penstock.control import Control
from penstock.control.repositories.captures import CaptureRequest, Captures
from penstock.control.rows import Actor
from penstock.devstack.servers.base import ManagedServer
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.errors import HostError
from penstock.host.ports import free_port
from penstock.settings import PROJECT
from tests.chaos.histories.servers import Server, mysql, postgres, sqlite
from tests.chaos.long.breakers import restart
from tests.support.caches import clear_caches
from tests.support.mysql import MySQL
from tests.support.postgres import Postgres

ENGINES = ("mariadb", "postgres", "sqlite", "mysql")
# Rows of a page.
PAGE = 3
# Seconds until a capture must have done what it was asked; a sixth of them if it says why not.
TIMEOUT = 300.0
NO_ANSWER = "no answer"


class Breakable(Protocol):
    """A server that can be broken."""

    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class World:
    """The running processes. parts: servers by name; worker: the capturing process, None before it is started."""

    def __init__(self, home: Path, broker: Broker, parts: dict[str, Breakable], servers: dict[str, Server]) -> None:
        self.home, self.broker, self.parts, self.servers = home, broker, parts, servers
        self.control = Control(f"sqlite:///{home / 'control.db'}")
        self.captures = Captures(self.control)
        self.worker: subprocess.Popen[bytes] | None = None
        self.folder, self._started_at = home, 0

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start a process that captures all of `folder`; it fences the one before."""
        self._started_at = time.time_ns() // 1_000_000
        with (self.home / "worker.log").open("ab") as log:
            command = [sys.executable, "-m", "tests.chaos.histories.worker", str(self.folder), str(PAGE)]
            self.worker = subprocess.Popen(command, stdout=log, stderr=log, cwd=PROJECT)
        return self.worker

    def wait_polled(self, names: Sequence[str], polls: int = 1) -> bool:
        """Wait until all captures have polled this often; False after a timeout."""
        deadline = time.monotonic() + TIMEOUT / 6 * (1 if polls == 1 else 2)
        while time.monotonic() < deadline:
            rows = self.captures.rows()
            if all((row := rows.get(n)) and row.polls >= polls and row.reported_at > self._started_at for n in names):
                return True
            time.sleep(0.5)
        return False

    def end_worker(self) -> None:
        if self.worker:
            end(self.worker)

    def ask_all(self, names: Sequence[str], what: CaptureRequest) -> dict[str, str]:
        """Request this of all captures, and wait until it is done; returns the reasons of failures, by name."""
        pending, failed = dict[str, str](), dict.fromkeys(names, NO_ANSWER)
        started_at = time.monotonic()
        while waiting := [n for n, why in failed.items() if time.monotonic() - started_at < _timeout(why)]:
            for name in waiting:
                if name not in pending:
                    pending[name] = self.captures.ask(name, what, Actor("histories", "test"))
            time.sleep(0.5)
            for name, row in self.captures.rows().items():
                if name in pending and row.answered_request_id == pending[name]:
                    # A failed request is sent again.
                    del pending[name]
                    failed[name] = row.answer or ""
                    if not row.answer:
                        del failed[name]
        return failed


def _timeout(why: str) -> float:
    return TIMEOUT if why == NO_ANSWER else TIMEOUT / 6


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process, also a stopped one."""
    process.kill()
    process.wait(30)


# Faults of the capturing process; each leaves one that runs


def kill(world: World, rng: random.Random) -> str:  # noqa: ARG001
    world.end_worker()
    world.start_worker()
    return "and started again"


def kill_twice(world: World, rng: random.Random) -> str:
    world.end_worker()
    world.start_worker()
    time.sleep(wait := rng.uniform(0.3, 3))
    world.end_worker()
    world.start_worker()
    return f"again after {wait:.1f} s"


def pause(world: World, rng: random.Random) -> str:
    assert world.worker
    world.worker.send_signal(signal.SIGSTOP)
    time.sleep(wait := rng.uniform(0.5, 5))
    world.worker.send_signal(signal.SIGCONT)
    return f"{wait:.1f} s"


def pause_and_replace(world: World, rng: random.Random) -> str:
    """Pause the process, start another, and resume the first beside it."""
    previous = world.worker
    assert previous
    previous.send_signal(signal.SIGSTOP)
    world.start_worker()
    time.sleep(wait := rng.uniform(3, 8))
    previous.send_signal(signal.SIGCONT)
    time.sleep(rng.uniform(0.5, 3))
    end(previous)
    return f"it was paused for {wait:.1f} s"


KILLS: dict[str, Callable[[World, random.Random], str]] = {
    "killed": kill,
    "twice": kill_twice,
    "paused": pause,
    "zombie": pause_and_replace,
}


def outages(world: World) -> dict[str, Callable[[random.Random], str]]:
    """Outages of the servers, each for some seconds."""

    def outage(server: Breakable, how: str) -> Callable[[random.Random], str]:
        def stop_server(rng: random.Random) -> str:
            server.kill() if how == "killed" else server.pause()
            time.sleep(seconds := rng.choice((rng.uniform(0.5, 3), rng.uniform(3, 12))))
            if how == "paused":
                server.resume()
            elif isinstance(server, ManagedServer):
                restart(server)
            elif isinstance(server, Postgres):
                server.start()
            return f"{seconds:.1f} s"

        return stop_server

    parts: dict[str, Breakable] = {"broker": world.broker, **world.parts}
    return {f"{name} {how}": outage(server, how) for name, server in parts.items() for how in ("killed", "paused")}


@contextmanager
def start_world(home: Path, engines: Sequence[str]) -> Iterator[World]:
    """Start all but the capturing process; stop everything at the end."""
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        parts, servers = dict[str, Breakable](), dict[str, Server]()
        for engine in engines:
            if engine in ("mariadb", "mysql"):
                database = (MariaDB if engine == "mariadb" else MySQL)(home, free_port())
                stack.enter_context(database)
                parts[engine], servers[engine] = database, mysql(engine, database.port)
            elif engine == "postgres":
                parts[engine] = server = stack.enter_context(Postgres())
                servers[engine] = postgres(server.url)
                servers[engine].run("CREATE SEQUENCE histories")
            else:
                servers[engine] = sqlite(home / "histories.sqlite")
        variables = {f"AIRFLOW_CONN_{engine.upper()}": server.url for engine, server in servers.items()} | {
            "PENSTOCK_HOME": str(home),
            "PENSTOCK_KAFKA_BOOTSTRAP": broker.bootstrap,
            "PENSTOCK_CONTROL_URL": f"sqlite:///{home / 'control.db'}",
        }
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        clear_caches()
        world = World(home, broker, parts, servers)
        try:
            world.control.migrate()
            yield world
        finally:
            world.end_worker()
            world.control.engine.dispose()
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
            clear_caches()


def available_engines() -> tuple[str, ...]:
    """The engines that are available on this machine."""
    from tests.support import mysql as mysql_server

    with suppress(HostError):
        mysql_server.root()
        return ENGINES
    return ENGINES[:3]
