"""The base of all embedded servers: start, wait until it serves, stop, find again."""

from __future__ import annotations

import contextlib
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psutil

from penstock.devstack.lifecycle import Lifecycle
from penstock.errors import HostError
from penstock.host import files, log_files, ports, process
from penstock.host.process import ProcessRecord

if TYPE_CHECKING:
    import httpx


class ManagedServer(Lifecycle):
    """One process of the platform. home: where its data, logs and records are kept."""

    name: str
    label: str
    variable: ClassVar[str] = ""
    """The environment variable that chooses its port."""
    start_timeout: ClassVar[float] = 60.0
    """Seconds it may take until it serves."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def log(self) -> Path:
        return self.home / "logs" / f"{self.name}.log"

    @property
    def ports(self) -> Mapping[str, int]:
        """Ports it listens on, by what each is for; they follow the one that `variable` sets."""
        return {}

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def ready(self) -> bool:
        """Whether it serves."""

    def environment(self) -> dict[str, str]:
        return {}

    def prepare(self) -> None:
        """Create data folders and settings; it may be repeated, also after an abort."""

    @property
    def record(self) -> ProcessRecord | None:
        return process.read(self.run, self.name)

    def running(self) -> psutil.Process | None:
        """The process, if it runs."""
        record = self.record
        return record.process() if record else None

    def start(self) -> bool:
        if self.running():
            self._same_ports()
            return False
        if (record := self.record) is not None:
            process.stop(record, timeout=5)  # what a crashed leader left behind
        self.ports_free()
        files.make_private(self.home)
        with files.owner_only():
            self.prepare()
            self.log.parent.mkdir(parents=True, exist_ok=True)
            if self.log.exists() and self.log.stat().st_size > 10 * 1024 * 1024:
                self.log.rename(self.log.with_suffix(".log.1"))
            process.spawn(
                self.name,
                self.command(),
                run=self.run,
                log=self.log,
                env=self.environment(),
                cwd=self.home,
                ports=self.ports,
            )
        return True

    def wait(self, seconds: float | None = None, tick: Callable[[], None] = lambda: None) -> None:
        def settled() -> bool:
            tick()
            return not self.running() or self.ready()

        limit = self.start_timeout if seconds is None else seconds
        if process.wait_for(settled, limit) and self.running():
            return
        raise HostError(
            f"{self.label} ended while it started" if not self.running() else f"{self.label} does not serve",
            got=log_files.tail_text(self.log) or f"nothing in {self.log}",
            hint=f"read {self.log}; `penstock down`, then `penstock up` again",
        )

    def stop(self) -> bool:
        """Stop it and everything it started in its session; True if it ran. Its data stays."""
        record = self.record
        ran = self.running() is not None
        if record:
            process.stop(record)
            process.forget(self.run, self.name)
        return ran

    def kill(self) -> None:
        """SIGKILL it, as a crash would."""
        if record := self.record:
            record.session.kill()

    def pause(self) -> None:
        """SIGSTOP it, and wait until it has stopped, which a busy machine delays."""
        if running := self.running():
            running.suspend()
            process.wait_for(lambda: running.status() == psutil.STATUS_STOPPED, 5)

    def resume(self) -> None:
        if running := self.running():
            running.resume()

    def restart(self) -> None:
        self.stop()
        self.start()
        self.wait()

    def _same_ports(self) -> None:
        record = self.record
        for use, port in self.ports.items():
            current = record.ports.get(use, port) if record else port
            if current != port:
                raise HostError(
                    f"{self.label} already runs on another port",
                    got=f"it listens on {current}, not on {port}",
                    hint=f"set {self.variable}={current}, or `penstock down` first",
                )

    def ports_free(self) -> None:
        """Raise HostError if another process has one of its ports."""
        for port in self.ports.values():
            # What was killed a moment ago may still be giving its port back.
            for _ in range(20):
                if not (holder := ports.port_holder(port)):
                    break
                time.sleep(0.1)
            else:
                note = " (it uses that one and the next)" if len(self.ports) > 1 else ""
                raise HostError(
                    f"port {port} of {self.label} is in use",
                    got=holder,
                    hint=f"stop that process, or choose another port: {self.variable}=<port> penstock up{note}",
                )


class ServerGroup(Lifecycle):
    """Several servers that are started and stopped together; each may also be killed and started alone."""

    @property
    @abstractmethod
    def servers(self) -> Sequence[ManagedServer]:
        """In the order in which they start."""

    def start(self) -> bool:
        started = [server.start() for server in self.servers]
        return any(started)

    def wait(self, seconds: float | None = None, tick: Callable[[], None] = lambda: None) -> None:
        for server in self.servers:
            server.wait(seconds, tick)

    def stop(self) -> bool:
        """Stop everything at once; True if something ran."""
        return stop_together(self.servers)


class StoreServer(ManagedServer):
    """A server beside the platform's own: a store that streams write to, or the schema registry."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is, without a password."""


def stop_together(servers: Sequence[ManagedServer], timeout: float = 15.0) -> bool:
    """Stop several at once: one that waits for another gets no longer than all; True if something ran."""
    ran = any(server.running() for server in servers)
    process.stop_all([r for server in servers if (r := server.record)], timeout=timeout)
    for server in servers:
        process.forget(server.run, server.name)
    return ran


def owner_option() -> list[str]:
    """Options that let MariaDB run as root."""
    return ["--user=root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []


def check_passes(check: Callable[[], object], *errors: type[BaseException]) -> bool:
    """Whether a check passes; the given errors mean that it does not."""
    with contextlib.suppress(*errors):
        return bool(check())
    return False


def get(url: str, timeout: float, params: Mapping[str, str] | None = None) -> httpx.Response:
    """Send a GET request to a server on this machine, without certificates, which take 20 ms to load, and proxies."""
    import httpx

    return httpx.get(url, params=params, timeout=timeout, verify=False, trust_env=False)
