"""Endpoint agents: check-ins of a million agents at a steady rate, and the latency of each kind of change.

The project's own app `agents` as a driver of its own and one instance of the views, against a broker and a control
database of their own; captured topics are written directly. Everything is on this machine, and so are those who send
and ask (`agents_load.py`).

    python -m tests.bench.agents [agents] [check-ins a second] [minutes]
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import httpx
import psutil

from penstock import catalog
from penstock.control import Control, DriverRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.java import aot_cache
from penstock.settings import PROJECT
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.testing.load import RecordSender
from tests.bench import agents_load
from tests.bench.agents_load import LARGE, Watched
from tests.bench.common import Figures, during, quantile, table, write
from tests.bench.jobs import spent
from tests.chaos.drivers import Drivers, drivers
from tests.support.wait import wait_until

APPS = ("agents", "views-1")
STREAMS = ("agents-active", "assignments", "agents-recheck", "alerts")
VIEWS = ("agents@1", "assigned@1")
NEW_TEST = 1_000_000
WARM_UP, BEHIND = 30.0, 15.0


@dataclass
class Course:
    """Samples of a run: when, the lag of each stream and view in records, how long its last batch took in ms, and CPU
    seconds so far by process."""

    samples: list[tuple[float, dict[str, int], dict[str, int], dict[str, float]]] = field(default_factory=list)

    def lags(self, name: str, since: float, until: float) -> list[int]:
        return [lags[name] for at, lags, _, _ in self.samples if since <= at < until and name in lags]

    def batches(self, name: str, since: float, until: float) -> list[int]:
        return [took[name] for at, _, took, _ in self.samples if since <= at < until and name in took]

    def cpu(self, since: float, until: float) -> dict[str, float]:
        """Cores that each process had."""
        inside = [one for one in self.samples if since <= one[0] < until]
        first, last = inside[0], inside[-1]
        return {name: (last[3][name] - first[3][name]) / (last[0] - first[0]) for name in last[3]}


class Platform:
    """What is measured, as it runs."""

    def __init__(self, given: Drivers, broker: Broker, url: str) -> None:
        self.control: Control = given.control
        self.bootstrap, self.url = given.bootstrap, url
        self.rows: dict[str, DriverRow] = {app: given.launch(app) for app in APPS}
        self._broker: psutil.Process = broker.running()  # type: ignore[assignment]

    def lags(self) -> dict[str, int | None]:
        rows = {name: row for app in APPS for name, row in self.control.progress(app).items()}
        return {name: rows[name].lag if name in rows else None for name in (*STREAMS, *VIEWS)}

    def caught_up(self, most: float) -> bool:
        """Whether no stream and no view has more than so many records before it: beats come all the time."""
        return all(lag is not None and lag < most for lag in self.lags().values())

    def sample(self, course: Course) -> None:
        rows = {name: row for app in APPS for name, row in self.control.progress(app).items()}
        lags = {name: row.lag for name in (*STREAMS, *VIEWS) if (row := rows.get(name)) and row.lag is not None}
        took = {name: row.batch_ms for name in (*STREAMS, *VIEWS) if (row := rows.get(name)) and row.batch_ms}
        cpu = {app: spent(row) for app, row in self.rows.items()}
        cpu["broker"] = sum(self._broker.cpu_times()[:2])
        course.samples.append((time.time(), lags, took, cpu))

    def ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/v1/ready", trust_env=False, timeout=5).status_code == 200
        return False

    def known(self, view: str) -> int:
        answer = httpx.post(f"{self.url}/v1/views/{view}/counts", json={}, trust_env=False, timeout=30)
        return int(answer.json()["total"]) if answer.status_code == 200 else 0


class SideOutput:
    """Work in a process of its own, and what it came to."""

    def __init__(self, work: Callable[..., Any], *given: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._answer = context.SimpleQueue()
        self._process: SpawnProcess = context.Process(target=_answering, args=(self._answer, work, given), daemon=True)
        self._process.start()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def answer(self) -> Any:
        found = self._answer.get()
        self._process.join()
        return found


def _answering(answer: Any, work: Callable[..., Any], given: Sequence[Any]) -> None:
    answer.put(work(*given))


@dataclass
class Found:
    """What a run came to. Times are epoch s. filled: seconds until all agents were known and had assignments; began,
    ended: of what was sustained; changed: when the large account's test was, last: when its last agent had it."""

    filled: float
    began: float
    ended: float
    changed: float
    last: float
    sent: Mapping[str, Any]
    changes: list[tuple[float, float | None]]
    watched: Watched
    course: Course


def run(agents: int, rate: float, minutes: float) -> Found:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home, port = Path(folder), free_port()
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        mariadb = stack.enter_context(MariaDB(home=home, port=free_port()))
        variables = {"PENSTOCK_AGENTS_RUN": 1, "PENSTOCK_VIEWS_PORT": port, "PENSTOCK_DRIVER_MEMORY": "768m"}
        given = stack.enter_context(drivers(broker, mariadb, home, PROJECT, **variables))
        agents_load.known(broker.bootstrap, agents)
        began = time.time()
        platform = Platform(given, broker, f"http://127.0.0.1:{port}")
        windowed = catalog.build([catalog.load().stream(name) for name in STREAMS]).heartbeat_topics()
        beater = stack.enter_context(closing(HeartbeatSender(windowed, given.control, broker.bootstrap)))
        course = Course()

        def sampled() -> float:
            platform.sample(course)
            return 1.0

        stack.enter_context(during(beater.run_once))
        stack.enter_context(during(sampled))
        wait_until(platform.ready, 1200, what="the views are ready")
        wait_until(lambda: platform.known("assigned") >= agents, 1200, every=1, what="all have assignments")
        wait_until(lambda: platform.caught_up(rate), 1200, what="all is read")
        filled = time.time() - began
        print(f"known after {filled:.0f} s: {platform.lags()}", flush=True)

        stop, all_of = context.Event(), context.Event()
        stack.callback(stop.set)
        sending = SideOutput(agents_load.load, broker.bootstrap, agents, rate, stop)
        time.sleep(WARM_UP)
        watching = SideOutput(agents_load.watch, broker.bootstrap, NEW_TEST, agents // 10, all_of, stop)
        asking = SideOutput(agents_load.changes, broker.bootstrap, platform.url, stop)
        begun = time.time()
        while time.time() < begun + minutes * 60:
            time.sleep(15)
            assert sending.alive and watching.alive and asking.alive  # noqa: PT018
            print(f"{time.time() - begun:.0f} s: {platform.lags()}", flush=True)
        ended = time.time()
        out, changed = RecordSender(broker.bootstrap), time.time()
        out.send(*agents_load.test(NEW_TEST, LARGE))
        out.close()
        all_of.wait(300)
        time.sleep(BEHIND)
        stop.set()
        sent, changes, watched = sending.answer(), asking.answer(), watching.answer()
        for row in platform.rows.values():
            row.session.kill()
        last = max(watched.again.values(), default=float("nan"))
        if len(watched.again) != agents // 10:
            raise SystemExit(f"{len(watched.again)} of {agents // 10} agents got the new test")
        return Found(filled, begun, ended, changed, last, sent, changes, watched, course)


def within(times: Sequence[tuple[float, float | None]], since: float, until: float) -> list[float]:
    return [took for at, took in times if since <= at < until and took is not None]


def seconds(values: Sequence[float]) -> list[str]:
    """How many, p50, p99 and the most."""
    if not values:
        return ["0", "", "", ""]
    return [f"{len(values):,}", *(f"{v:.2f}" for v in (quantile(values, 0.5), quantile(values, 0.99), max(values)))]


def main(agents: int, rate: float, minutes: float) -> None:
    found = run(agents, rate, minutes)
    began, ended, course, watched = found.began, found.ended, found.course, found.watched
    lost = sum(took is None for _, took in found.changes)
    delays = [
        ["from a check-in that changes an assignment to that by REST", *seconds(within(found.changes, began, ended))],
        ["the same in other accounts, while the large one's test changes",
         *seconds(within(found.changes, found.changed, found.last))],
        ["from when an agent is due to its offline event", *seconds(within(watched.offline, began, ended))],
        ["from a window's end to its alert", *seconds(within(watched.alerts, began, ended))],
    ]  # fmt: skip
    lags: list[list[str]] = []
    third = (ended - began) / 3
    for name in (*STREAMS, *VIEWS):
        every = course.lags(name, began, ended)
        means = [
            sum(v) / len(v)
            for v in (course.lags(name, began, began + third), course.lags(name, ended - third, ended))
            if v
        ]
        took = course.batches(name, began, ended)
        lags.append([name, *(f"{v:,.0f}" for v in (*means, max(every))), f"{quantile(took, 0.5):,}" if took else ""])
    cores = course.cpu(began, ended)
    text = (
        f"{agents:,} agents, {found.sent['check_ins'] / found.sent['seconds']:,.0f} check-ins and "
        f"{found.sent['sessions'] / found.sent['seconds']:,.0f} browser sessions a second, {minutes:g} minutes; known, "
        f"with assignments, and in the views {found.filled:.0f} s after the drivers' start. {lost} of "
        f"{len(found.changes):,} changes were not seen. A test of an account of {agents // 10:,} agents: its last "
        f"assignment {found.last - found.changed:.1f} s later. CPU, of a core: driver {cores['agents']:.2f}, views "
        f"{cores['views-1']:.2f}, broker {cores['broker']:.2f}.\n\n"
    )
    text += table(["", "", "p50, s", "p99, s", "max, s"], delays) + "\n\n"
    text += table(["lag, records", "first third", "last third", "max", "batch, ms"], lags)
    figures: Figures = {
        "delay, s": {
            "changes": within(found.changes, began, ended),
            "changes of others beside the large account's": within(found.changes, found.changed, found.last),
            "offline events": within(watched.offline, began, ended),
            "alerts": within(watched.alerts, began, ended),
        },
        "lag, records": {name: course.lags(name, began, ended) for name in (*STREAMS, *VIEWS)},
        "batch, ms": {name: course.batches(name, began, ended) for name in (*STREAMS, *VIEWS)},
        "CPU, cores": {name: [share] for name, share in cores.items()},
    }
    write("agents", text, figures)


if __name__ == "__main__":
    aot_cache.ensure()
    asked = sys.argv[1:] + ["1000000", "5000", "10"][len(sys.argv) - 1 :]
    main(int(asked[0]), float(asked[1]), float(asked[2]))
