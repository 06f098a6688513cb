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
PATIENCE = 300.0
NO_ANSWER = "no answer"


class Breakable(Protocol):
    """A server that can be broken."""

    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class World:
    """What runs. parts: servers by name; worker: the process that captures, None before it is started."""

    def __init__(self, home: Path, broker: Broker, parts: dict[str, Breakable], servers: dict[str, Server]) -> None:
        self.home, self.broker, self.parts, self.servers = home, broker, parts, servers
        self.control = Control(f"sqlite:///{home / 'control.db'}")
        self.captures = Captures(self.control)
        self.worker: subprocess.Popen[bytes] | None = None
        self.folder, self._began = home, 0

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Another process that captures all of `folder`; it shuts out the one before."""
        self._began = time.time_ns() // 1_000_000
        with (self.home / "worker.log").open("ab") as log:
            command = [sys.executable, "-m", "tests.chaos.histories.worker", str(self.folder), str(PAGE)]
            self.worker = subprocess.Popen(command, stdout=log, stderr=log, cwd=PROJECT)
        return self.worker

    def works(self, names: Sequence[str], polls: int = 1) -> bool:
        """Wait until all of them have polled so often; False if one does not in time."""
        deadline = time.monotonic() + PATIENCE / 6 * (1 if polls == 1 else 2)
        while time.monotonic() < deadline:
            rows = self.captures.rows()
            if all((row := rows.get(n)) and row.polls >= polls and row.reported_at > self._began for n in names):
                return True
            time.sleep(0.5)
        return False

    def end_worker(self) -> None:
        if self.worker:
            end(self.worker)

    def asked(self, names: Sequence[str], what: CaptureRequest) -> dict[str, str]:
        """Ask it of all, and wait until it is done; why not, by name, of those that could not."""
        left, failed = dict[str, str](), dict.fromkeys(names, NO_ANSWER)
        began = time.monotonic()
        while waiting := [n for n, why in failed.items() if time.monotonic() - began < _patience(why)]:
            for name in waiting:
                if name not in left:
                    left[name] = self.captures.ask(name, what, Actor("histories", "test"))
            time.sleep(0.5)
            for name, row in self.captures.rows().items():
                if name in left and row.answered_request_id == left[name]:
                    # What failed tries again by itself, and is asked again.
                    del left[name]
                    failed[name] = row.answer or ""
                    if not row.answer:
                        del failed[name]
        return failed


def _patience(why: str) -> float:
    return PATIENCE if why == NO_ANSWER else PATIENCE / 6


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL it, stopped or not."""
    process.kill()
    process.wait(30)


# Kills of the process that captures; each leaves one that runs


def killed(world: World, chance: random.Random) -> str:  # noqa: ARG001
    world.end_worker()
    world.start_worker()
    return "and started again"


def twice(world: World, chance: random.Random) -> str:
    world.end_worker()
    world.start_worker()
    time.sleep(wait := chance.uniform(0.3, 3))
    world.end_worker()
    world.start_worker()
    return f"again after {wait:.1f} s"


def paused(world: World, chance: random.Random) -> str:
    assert world.worker
    world.worker.send_signal(signal.SIGSTOP)
    time.sleep(wait := chance.uniform(0.5, 5))
    world.worker.send_signal(signal.SIGCONT)
    return f"{wait:.1f} s"


def zombie(world: World, chance: random.Random) -> str:
    """It wakes up beside its heir."""
    first = world.worker
    assert first
    first.send_signal(signal.SIGSTOP)
    world.start_worker()
    time.sleep(wait := chance.uniform(3, 8))
    first.send_signal(signal.SIGCONT)
    time.sleep(chance.uniform(0.5, 3))
    end(first)
    return f"it slept {wait:.1f} s"


KILLS: dict[str, Callable[[World, random.Random], str]] = {
    "killed": killed,
    "twice": twice,
    "paused": paused,
    "zombie": zombie,
}


def outages(world: World) -> dict[str, Callable[[random.Random], str]]:
    """Ways to break the servers of this world, each for some seconds."""

    def made(part: Breakable, how: str) -> Callable[[random.Random], str]:
        def away(chance: random.Random) -> str:
            part.kill() if how == "killed" else part.pause()
            time.sleep(seconds := chance.choice((chance.uniform(0.5, 3), chance.uniform(3, 12))))
            if how == "paused":
                part.resume()
            elif isinstance(part, ManagedServer):
                restart(part)
            elif isinstance(part, Postgres):
                part.start()
            return f"{seconds:.1f} s"

        return away

    parts: dict[str, Breakable] = {"broker": world.broker, **world.parts}
    return {f"{name} {how}": made(part, how) for name, part in parts.items() for how in ("killed", "paused")}


@contextmanager
def started(home: Path, engines: Sequence[str]) -> Iterator[World]:
    """Everything runs but the process that captures; at the end nothing does."""
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        parts, servers = dict[str, Breakable](), dict[str, Server]()
        for engine in engines:
            if engine in ("mariadb", "mysql"):
                part = (MariaDB if engine == "mariadb" else MySQL)(home, free_port())
                stack.enter_context(part)
                parts[engine], servers[engine] = part, mysql(engine, part.port)
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


def there() -> tuple[str, ...]:
    """The engines that can be had on this machine."""
    from tests.support import mysql as fetched

    with suppress(HostError):
        fetched.root()
        return ENGINES
    return ENGINES[:3]
