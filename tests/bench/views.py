"""The views: a million agents by key and by criteria, over two instances as processes of their own.

A broker of its own; 1,000,000 agents of 100 accounts with four labels each in a compacted topic of 4 partitions, half
of them in each instance. Gets come from one process over 16 connections at a steady rate, to either instance in turn,
so every second one is forwarded.

    python -m tests.bench.views [agents] [gets a second] [seconds]
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
from confluent_kafka import Producer

from penstock.devstack.servers.kafka import Broker
from penstock.host.ports import free_port
from tests.bench.common import quantile, table, write
from tests.support.view_instances import TOPIC, Fleet, serving
from tests.support.wait import wait_until

CONNECTIONS = 16
AT = 1_700_000_000_000
QUERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "an account's agents with a label, a page of 100": (
        "search", {"where": {"account": "acc-17", "labels.team": "t3"}}),
    "a rare pair of labels in all accounts": ("search", {"where": {"labels.site": "s77", "labels.team": "t3"}}),
    "online and seen of late, newest first": (
        "search", {"where": {"online": True, "seen": {"ge": AT + 500_000}}, "order": "seen", "descending": True}),
    "half of all, by key": ("search", {"where": {"labels.env": "prod"}}),
    "numbers by platform": ("counts", {"by": ["platform"]}),
    "numbers by account, platform and online": ("counts", {"by": ["account", "platform", "online"]}),
    "numbers of a label by platform": ("counts", {"by": ["platform"], "where": {"labels.env": "prod"}}),
}  # fmt: skip


def value(n: int) -> str:
    env = ("prod", "test")[n // 3 % 2]
    labels = {"site": f"s{n * 7 % 500}", "env": env, "team": f"t{n // 7 % 50}", "os": f"x{n % 10}"}
    return json.dumps(
        {
            "account": f"acc-{n % 100}", "platform": ("linux", "mac", "win", "esx")[n // 5 % 4], "labels": labels,
            "online": n % 5 != 0, "seen": AT + n * 7919 % 600_000, "load": 0.5,
        }
    )  # fmt: skip


def key(n: int) -> str:
    return f"agent-{n:07d}"


def filled(bootstrap: str, agents: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "compression.type": "lz4",
            "linger.ms": 50, "queue.buffering.max.messages": 500_000,
        }
    )  # fmt: skip
    for n in range(agents):
        while True:
            try:
                producer.produce(TOPIC, value(n).encode(), key(n).encode())
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def gets(urls: list[str], agents: int, rate: float, seconds: float) -> list[tuple[float, int, float, bool]]:
    """Of each get: when it was due, the status (0 for none), how long after it was due it was answered, if rightly."""
    return uvloop.run(_gets(urls, agents, rate, seconds))


async def _gets(urls: list[str], agents: int, rate: float, seconds: float) -> list[tuple[float, int, float, bool]]:
    results: list[tuple[float, int, float, bool]] = []
    draw, began = random.Random(17), time.monotonic()
    due = iter(range(int(rate * seconds)))

    async def connection(number: int) -> None:
        host, port = re.fullmatch(r"http://(.+):(\d+)", urls[number % len(urls)]).groups()  # type: ignore[union-attr]
        reader = writer = None
        for n in due:
            at = began + n / rate
            if (wait := at - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            wanted = draw.randrange(agents)
            status, right = 0, False
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection(host, int(port))
                assert reader is not None
                writer.write(f"GET /v1/views/fleet/rows/{key(wanted)} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
                async with asyncio.timeout(5):
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    body = await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
                status = int(head[9:12])
                right = status == 200 and json.loads(body)["value"] == json.loads(value(wanted))
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                if writer is not None:
                    writer.close()
                writer = None
                await asyncio.sleep(0.05)
            results.append((at - began, status, time.monotonic() - at, right))

    await asyncio.gather(*(connection(number) for number in range(CONNECTIONS)))
    return results


def beside(work: Callable[[], None], *given: Any) -> list[tuple[float, int, float, bool]]:
    """Gets from a process of its own, while something else is done."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        answer = pool.apply_async(gets, given)
        work()
        return answer.get()


def ready(fleet: Fleet, numbers: list[int]) -> float:
    began = time.monotonic()
    fleet.start(*numbers, ready=False)
    for number in numbers:
        wait_until(lambda number=number: fleet.status(number, "/v1/ready") == 200, 600, every=0.05)  # type: ignore[misc]
    return time.monotonic() - began


def queried(fleet: Fleet, times: int = 7) -> list[list[object]]:
    rows: list[list[object]] = []
    for name, (what, body) in QUERIES.items():
        took = []
        for n in range(times):
            began = time.monotonic()
            response = fleet.ask(1 + n % 2, what, body)
            took.append((time.monotonic() - began) * 1000)
            assert response.status_code == 200, response.text
        rows.append([name, *(f"{v:.0f}" for v in (quantile(took, 0.5), max(took)))])
    return rows


def main(agents: int, rate: float, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as place, Broker(home=Path(place) / "broker", port=free_port(2)) as broker:
        with serving(Path(place), broker.bootstrap, 2) as fleet:
            filled(broker.bootstrap, agents)
            rebuilt = ready(fleet, [1, 2])
            fleet.known(1, 2)
            assert fleet.ask(1, "counts", {}).json()["total"] == agents
            urls = [fleet.url(1), fleet.url(2)]
            steady = beside(lambda: None, urls, agents, rate, seconds)
            queries = queried(fleet)

            def broken() -> None:
                time.sleep(10)
                fleet.kill(2)
                fleet.start(2, ready=False)

            killed = beside(broken, urls, agents, rate / 2, 40)
            wait_until(lambda: fleet.status(2, "/v1/ready") == 200)
            for number in (1, 2):
                fleet.stop(number)
            restarted = ready(fleet, [1, 2])
            size = sum(fleet.store(n).stat().st_size for n in (1, 2)) / 2**20
    took = sorted(t * 1000 for _, _, t, _ in steady)
    errors = [at for at, status, _, _ in killed if status != 200] or [0.0]
    wrong = sum(status == 200 and not right for _, status, _, right in [*steady, *killed])
    rows: list[list[object]] = [
        [f"rebuild of {agents:,} keys from the topic, both instances, from their start", f"{rebuilt:.1f} s"],
        [f"restart of both with full stores ({size:.0f} MiB), from their start", f"{restarted:.1f} s"],
        [f"get by key, {rate:,.0f} a second for {seconds:.0f} s: p50", f"{quantile(took, 0.5):.1f} ms"],
        ["p99", f"{quantile(took, 0.99):.1f} ms"],
        ["refused or failed", f"{sum(status != 200 for _, status, _, _ in steady)} of {len(steady):,}"],
        [f"one of two killed under {rate / 2:,.0f} a second: errors for", f"{max(errors) - min(errors):.1f} s"],
        ["wrong answers in all of it", wrong],
    ]  # fmt: skip
    text = table(["", ""], rows) + "\n\n" + table(["over two instances", "median, ms", "max, ms"], queries)
    figures = {
        "time, s": {"rebuild": [rebuilt], "restart": [restarted]},
        "get, ms": {f"{share} quantile": [quantile(took, share)] for share in (0.5, 0.9, 0.99)},
    }
    write("views", text, figures)


if __name__ == "__main__":
    arguments = sys.argv[1:] + ["1000000", "2000", "30"][len(sys.argv) - 1 :]
    main(int(arguments[0]), float(arguments[1]), float(arguments[2]))
