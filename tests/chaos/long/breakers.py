"""Ways to break a running platform; each says what it did, and leaves everything started again."""

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
from tests.chaos.long.keeper import command
from tests.chaos.long.world import APP, LEASE, STUCK, World, parts_of
from tests.support.wait import wait_until

COMMITS = "penstock.commits"
Breaker = Callable[[World, random.Random], str]


def words(pid: int) -> str:
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def signalled(d: DriverRow, number: signal.Signals, which: Callable[[str], bool] = lambda _: True) -> int:
    """Send a signal to those of a driver's processes whose command line is as asked; how many."""
    count = 0
    for member in d.session.members():
        if which(words(member.pid)):
            with suppress(ProcessLookupError):
                os.kill(member.pid, number)
                count += 1
    return count


def java(line: str) -> bool:
    return "/java " in line


def python(line: str) -> bool:
    """The driver's own, not its workers."""
    return "--incarnation" in line and not java(line)


def worker(line: str) -> bool:
    return not java(line) and not python(line)


def running(world: World, app: str = "") -> DriverRow:
    found = wait_until(lambda: world.driver(app), what=f"{app or world.apps[0]} has a driver")
    assert found
    return found


def heir(world: World, before: DriverRow) -> DriverRow:
    """The next driver, once its process is there."""

    def found() -> DriverRow | None:
        d = world.driver(before.app)
        return d if d and d.incarnation != before.incarnation else None

    made = wait_until(found, every=0.02, what="another driver is launched")
    assert made
    return made


def _killed(which: Callable[[str], bool]) -> Breaker:
    def kill(world: World, chance: random.Random) -> str:  # noqa: ARG001
        return f"{signalled(running(world), signal.SIGKILL, which)} processes"

    return kill


def twice(world: World, chance: random.Random) -> str:
    first = running(world)
    signalled(first, signal.SIGKILL)
    second, wait = heir(world, first), chance.uniform(0, 2)
    time.sleep(wait)
    signalled(second, signal.SIGKILL)
    return f"again {wait:.1f} s after the next began"


def aimed(world: World, chance: random.Random) -> str:  # noqa: ARG001
    """At the very moment a batch is committed to its topics, of which Spark has written down nothing yet."""
    d = running(world)
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
        there = consumer.list_topics(timeout=30).topics
        consumer.assign([TopicPartition(t, p, OFFSET_END) for t in (COMMITS, "named") for p in there[t].partitions])
        pids = [member.pid for member in d.session.members()]
        seen = consumer.poll(60.0)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    finally:
        consumer.close()
    return f"{len(pids)} processes, at {seen.topic()} {(seen.key() or b'').decode()}" if seen else "nothing was seen"


def starting(world: World, chance: random.Random) -> str:
    first = running(world)
    signalled(first, signal.SIGKILL)
    second, wait = heir(world, first), chance.uniform(2, 12)
    time.sleep(wait)
    return f"{wait:.1f} s old, {signalled(second, signal.SIGKILL)} processes"


def paused(world: World, chance: random.Random) -> str:
    """Woken within its lease, behind it, or when it was taken for hung and killed."""
    d, wait = running(world), chance.choice((chance.uniform(0.5, LEASE), chance.uniform(LEASE, STUCK + 10)))
    signalled(d, signal.SIGSTOP)
    time.sleep(wait)
    return f"{wait:.1f} s, {signalled(d, signal.SIGCONT)} processes woke up"


def zombie(world: World, chance: random.Random) -> str:
    """As if on another host: nobody can kill it, its heir works, and then it wakes up."""
    d = running(world)
    signalled(d, signal.SIGSTOP)
    try:
        world.control.update_driver(d.incarnation, host="elsewhere")
        wait_until(
            lambda: all(lease.expires_at < world.control.now() for lease in world.control.leases().values()
                        if lease.holder == d.incarnation), what="its leases run out",
        )  # fmt: skip
        second = launched(world, d)
        wait_until(lambda: world.works(APP, 0), what="its heir works")
        time.sleep(chance.uniform(0, 5))
    finally:
        woke = signalled(d, signal.SIGCONT)
    wait_until(lambda: not d.session.members(), what="it sees that it is not wanted")
    return f"{woke} processes woke up beside {second.incarnation[:8]}"


def launched(world: World, before: DriverRow) -> DriverRow:
    """A driver that takes the app over, started as a supervisor would."""
    from penstock.supervision import launch

    log = launch.new_log(before.app)
    made = world.control.claim(
        before.app, before.incarnation, host=session.host(), spec_hash="zombie", owner="zombie", log=str(log)
    )
    if made is None:
        # Who looks after the drivers was faster.
        return heir(world, before)
    pid, started = launch.start(command(before.app, made), log=log)
    world.control.update_driver(made, pid=pid, pid_started=started)
    found = world.control.driver(made)
    assert found
    return found


def capture(world: World, chance: random.Random) -> str:
    """The captures' driver killed, or paused behind its lease."""
    d = running(world, CAPTURES)
    if chance.random() < 0.7:
        return f"{signalled(d, signal.SIGKILL)} processes"
    signalled(d, signal.SIGSTOP)
    time.sleep(wait := chance.uniform(1, LEASE + 4))
    return f"paused for {wait:.1f} s, {signalled(d, signal.SIGCONT)} processes woke up"


KILLS: dict[str, Breaker] = {
    "driver": _killed(lambda _: True),
    "python": _killed(python),
    "jvm": _killed(java),
    "workers": _killed(worker),
    "aimed": aimed,
    "twice": twice,
    "starting": starting,
    "paused": paused,
    "zombie": zombie,
    "capture": capture,
}


def outage(part: Callable[[World], ManagedServer], *, pause: bool, longest: float) -> Breaker:
    """longest: seconds that a part is killed or paused for."""

    def away(world: World, chance: random.Random) -> str:
        one, seconds = part(world), chance.choice((chance.uniform(1, 10), chance.uniform(5, longest)))
        one.pause() if pause else one.kill()
        said = f"{seconds:.0f} s"
        time.sleep(seconds / 2)
        # Trouble seldom comes alone.
        if chance.random() < 0.25 and (d := world.driver()):
            said += f", and the driver killed, {signalled(d, signal.SIGKILL)} processes"
        time.sleep(seconds / 2)
        if pause:
            one.resume()
        else:
            back(one)
        return said

    return away


def back(part: ManagedServer) -> None:
    """Start a part again; its port may be given back a moment later."""
    for last in (False, False, True):
        try:
            part.start()
            part.wait()
        except PenstockError:
            if last:
                raise
            time.sleep(2)
        else:
            return


def keeper(world: World, chance: random.Random) -> str:
    """Who looks after the drivers is killed, and in half the cases a driver that nobody then starts again."""
    parts = list(parts_of(world.keeper))
    chosen = chance.choice([parts, [chance.choice(parts)]])
    for part in chosen:
        part.kill()
    seconds = chance.uniform(1, 30)
    if chance.random() < 0.5 and (d := world.driver()):
        signalled(d, signal.SIGKILL)
    time.sleep(seconds)
    for part in chosen:
        back(part)
    if isinstance(world.keeper, Airflow):
        world.keeper.wait()
    return f"{', '.join(part.name for part in chosen)}, {seconds:.0f} s"


def outages(longest: float) -> dict[str, Breaker]:
    """longest: seconds, below the grace of the streams."""
    return {
        "broker killed": outage(lambda w: w.broker, pause=False, longest=longest),
        "broker paused": outage(lambda w: w.broker, pause=True, longest=longest),
        "database killed": outage(lambda w: w.database, pause=False, longest=longest),
        "database paused": outage(lambda w: w.database, pause=True, longest=longest),
        "supervision killed": keeper,
    }
