"""Faults of a running platform; each returns a description of what it did, and leaves all servers running."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from penstock.control import DriverRow
from penstock.devstack.servers.airflow import Airflow
from penstock.devstack.servers.base import ManagedServer
from penstock.errors import PenstockError
from penstock.host import session
from penstock.model.capture import APP as CAPTURES
from tests.chaos.long.supervision import command
from tests.chaos.long.world import APP, LEASE, STUCK, World, supervision_servers
from tests.support.wait import wait_until

COMMITS = "penstock.commits"
Breaker = Callable[[World, random.Random], str]


def command_line(pid: int) -> str:
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def signal_processes(d: DriverRow, number: signal.Signals, is_target: Callable[[str], bool] = lambda _: True) -> int:
    """Send a signal to the processes of a driver whose command line matches; returns their number."""
    count = 0
    for member in d.session.members():
        if is_target(command_line(member.pid)):
            with suppress(ProcessLookupError):
                os.kill(member.pid, number)
                count += 1
    return count


def is_jvm(line: str) -> bool:
    return "/java " in line


def is_python(line: str) -> bool:
    """Whether it is the driver's Python and not a Python worker."""
    return "--incarnation" in line and not is_jvm(line)


def is_worker(line: str) -> bool:
    return not is_jvm(line) and not is_python(line)


def current_driver(world: World, app: str = "") -> DriverRow:
    driver = wait_until(lambda: world.driver(app), what=f"{app or world.apps[0]} has a driver")
    assert driver
    return driver


def successor(world: World, previous: DriverRow) -> DriverRow:
    """The next driver, once its process has started."""

    def next_driver() -> DriverRow | None:
        d = world.driver(previous.app)
        return d if d and d.incarnation != previous.incarnation else None

    found_driver = wait_until(next_driver, every=0.02, what="another driver is launched")
    assert found_driver
    return found_driver


def kill_processes(is_target: Callable[[str], bool]) -> Breaker:
    def kill(world: World, rng: random.Random) -> str:  # noqa: ARG001
        return f"{signal_processes(current_driver(world), signal.SIGKILL, is_target)} processes"

    return kill


def kill_twice(world: World, rng: random.Random) -> str:
    driver = current_driver(world)
    signal_processes(driver, signal.SIGKILL)
    next_driver, wait = successor(world, driver), rng.uniform(0, 2)
    time.sleep(wait)
    signal_processes(next_driver, signal.SIGKILL)
    return f"again {wait:.1f} s after the next driver started"


def kill_after_commit(world: World, rng: random.Random) -> str:  # noqa: ARG001
    """Kill when a batch is committed to its topics and not yet to Spark's checkpoint."""
    d = current_driver(world)
    consumer = Consumer(
        {
            "bootstrap.servers": world.broker.bootstrap,
            "group.id": "chaos-aim",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        topics = consumer.list_topics(timeout=30).topics
        consumer.assign([TopicPartition(t, p, OFFSET_END) for t in (COMMITS, "named") for p in topics[t].partitions])
        pids = [member.pid for member in d.session.members()]
        message = consumer.poll(60.0)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    finally:
        consumer.close()
    return (
        f"{len(pids)} processes, at {message.topic()} {(message.key() or b'').decode()}"
        if message
        else "no batch was committed"
    )


def kill_starting(world: World, rng: random.Random) -> str:
    driver = current_driver(world)
    signal_processes(driver, signal.SIGKILL)
    next_driver, wait = successor(world, driver), rng.uniform(2, 12)
    time.sleep(wait)
    return f"{wait:.1f} s old, {signal_processes(next_driver, signal.SIGKILL)} processes"


def pause(world: World, rng: random.Random) -> str:
    """Pause a driver until before or after its lease expires, or until it was killed as hung."""
    d, wait = current_driver(world), rng.choice((rng.uniform(0.5, LEASE), rng.uniform(LEASE, STUCK + 10)))
    signal_processes(d, signal.SIGSTOP)
    time.sleep(wait)
    return f"{wait:.1f} s, {signal_processes(d, signal.SIGCONT)} processes resumed"


def pause_beyond_lease(world: World, rng: random.Random) -> str:
    """Pause a driver as if on another host, where nobody can kill it; resume it while its successor works."""
    d = current_driver(world)
    signal_processes(d, signal.SIGSTOP)
    try:
        world.control.update_driver(d.incarnation, host="elsewhere")
        wait_until(
            lambda: all(lease.expires_at < world.control.now() for lease in world.control.leases().values()
                        if lease.holder == d.incarnation), what="its leases run out",
        )  # fmt: skip
        next_driver = launch_successor(world, d)
        wait_until(lambda: world.is_working(APP, 0), what="its successor works")
        time.sleep(rng.uniform(0, 5))
    finally:
        resumed = signal_processes(d, signal.SIGCONT)
    wait_until(lambda: not d.session.members(), what="it notices that it lost its leases")
    return f"{resumed} processes resumed beside {next_driver.incarnation[:8]}"


def launch_successor(world: World, previous: DriverRow) -> DriverRow:
    """Launch a driver that takes the app over, as a supervisor would."""
    from penstock.supervision import launch

    log = launch.new_log(previous.app)
    incarnation = world.control.claim(
        previous.app, previous.incarnation, host=session.host(), spec_hash="zombie", owner="zombie", log=str(log)
    )
    if incarnation is None:
        # The supervision was faster.
        return successor(world, previous)
    pid, started = launch.start(command(previous.app, incarnation), log=log)
    world.control.update_driver(incarnation, pid=pid, pid_started=started)
    next_driver = world.control.driver(incarnation)
    assert next_driver
    return next_driver


def kill_or_pause_captures(world: World, rng: random.Random) -> str:
    """Kill the captures' driver, or pause it until after its lease."""
    d = current_driver(world, CAPTURES)
    if rng.random() < 0.7:
        return f"{signal_processes(d, signal.SIGKILL)} processes"
    signal_processes(d, signal.SIGSTOP)
    time.sleep(wait := rng.uniform(1, LEASE + 4))
    return f"paused for {wait:.1f} s, {signal_processes(d, signal.SIGCONT)} processes resumed"


KILLS: dict[str, Breaker] = {
    "driver": kill_processes(lambda _: True),
    "python": kill_processes(is_python),
    "jvm": kill_processes(is_jvm),
    "workers": kill_processes(is_worker),
    "aimed": kill_after_commit,
    "twice": kill_twice,
    "starting": kill_starting,
    "paused": pause,
    "zombie": pause_beyond_lease,
    "capture": kill_or_pause_captures,
}


def outage(server: Callable[[World], ManagedServer], *, pause: bool, max_seconds: float) -> Breaker:
    """Kill or pause a server for some seconds. max_seconds: upper limit."""

    def stop_server(world: World, rng: random.Random) -> str:
        target, seconds = server(world), rng.choice((rng.uniform(1, 10), rng.uniform(5, max_seconds)))
        target.pause() if pause else target.kill()
        description = f"{seconds:.0f} s"
        time.sleep(seconds / 2)
        # Sometimes a second fault at the same time.
        if rng.random() < 0.25 and (d := world.driver()):
            description += f", and the driver killed, {signal_processes(d, signal.SIGKILL)} processes"
        time.sleep(seconds / 2)
        if pause:
            target.resume()
        else:
            restart(target)
        return description

    return stop_server


def restart(server: ManagedServer) -> None:
    """Start a server again; retries, as its port may be released a moment later."""
    for last in (False, False, True):
        try:
            server.start()
            server.wait()
        except PenstockError:
            if last:
                raise
            time.sleep(2)
        else:
            return


def kill_supervision(world: World, rng: random.Random) -> str:
    """Kill the supervision, and in half of the cases a driver too, which is then not restarted at once."""
    servers = list(supervision_servers(world.supervision))
    chosen_servers = rng.choice([servers, [rng.choice(servers)]])
    for server in chosen_servers:
        server.kill()
    seconds = rng.uniform(1, 30)
    if rng.random() < 0.5 and (d := world.driver()):
        signal_processes(d, signal.SIGKILL)
    time.sleep(seconds)
    for server in chosen_servers:
        restart(server)
    if isinstance(world.supervision, Airflow):
        world.supervision.wait()
    return f"{', '.join(server.name for server in chosen_servers)}, {seconds:.0f} s"


def outages(max_seconds: float) -> dict[str, Breaker]:
    """max_seconds: below the grace of the streams."""
    return {
        "broker killed": outage(lambda w: w.broker, pause=False, max_seconds=max_seconds),
        "broker paused": outage(lambda w: w.broker, pause=True, max_seconds=max_seconds),
        "database killed": outage(lambda w: w.database, pause=False, max_seconds=max_seconds),
        "database paused": outage(lambda w: w.database, pause=True, max_seconds=max_seconds),
        "supervision killed": kill_supervision,
    }
