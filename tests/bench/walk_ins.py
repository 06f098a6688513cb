"""Rate of probes through the detection of walk-ins, compared with Kafka Streams with the same rule (tests/bench/peer).

The probes are those of `jobs.presence.simulator`: half a day of 200,000 devices at 200 businesses, in order of their
times, so that what is to be found does not depend on how they are cut into batches. Each run is a process of its own
that reads all of them; both outputs are held against the crowd's truth, walk-in by walk-in, before any time is shown.

    python -m tests.bench.walk_ins [probes] [pairs]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import Counter
from datetime import timedelta
from threading import Event

from jobs.presence.simulator.crowd import Business, Crowd, Plan, Visit, plan
from jobs.presence.simulator.topics import PlanSender
from penstock.java import aot_cache
from penstock.testing import Record, create, read, send
from tests.bench.common import table, write
from tests.bench.jobs import WALK_INS, Servers, run_kafka_streams, run_penstock, start_servers
from tests.bench.peers import Measured

DEVICES, BUSINESSES = 200_000, 200
SPAN = timedelta(hours=12) // timedelta(milliseconds=1)
# What is sent together: half a day has few enough steps.
STEP = 10_000
PEER = "Kafka Streams"


def filled(servers: Servers, probes: int) -> Plan:
    """So many probes in their topic, and the businesses in theirs."""
    from jobs.presence import CRM_BACKFILL, CRM_EVENTS
    from jobs.presence import PROBES as TOPIC
    from jobs.presence.walk_ins import BUSINESSES as TABLE

    bootstrap = servers.broker.bootstrap
    create(bootstrap, TOPIC, CRM_EVENTS, CRM_BACKFILL, TABLE.topic)
    known = [Business(str(n + 1), -90 + n % 30) for n in range(BUSINESSES)]
    send(
        bootstrap,
        [
            Record(TABLE.topic.name, f'{{"id":{b.id}}}', json.dumps({"id": int(b.id), "threshold": b.threshold}))
            for b in known
        ],
    )
    start = int(time.time() * 1000) - SPAN
    crowd_plan = plan(Crowd(DEVICES, known, probes * 1000 / SPAN, start, SPAN, late=0, step=STEP))
    PlanSender(crowd_plan, bootstrap, Event()).run(fast=True, report=lambda _: None)
    return crowd_plan


def walk_ins_of(servers: Servers, topic: str) -> Counter[Visit]:
    """The walk-ins of a topic: a device may have more than one, so not by key."""
    return Counter(Visit(**json.loads(r.value)) for r in read(servers.broker.bootstrap, topic) if r.value)


def right(servers: Servers, topic: str, expected: Counter[Visit]) -> None:
    """SystemExit unless a topic holds these walk-ins, each once."""
    there = walk_ins_of(servers, topic)
    if there != expected:
        missed, more = expected - there, there - expected
        raise SystemExit(
            f"{topic}: {missed.total()} of {expected.total()} walk-ins are missed, {more.total()} invented: "
            f"{[*missed][:3]} and {[*more][:3]}"
        )


def rows(both: dict[str, list[Measured]]) -> list[list[str]]:
    table_rows = []
    for who, runs in both.items():
        warm = [m.samples.steady(1 / 3, 1, m.records) for m in runs]
        figures = [
            f"{statistics.median(s.records_s for s in warm) / 1000:.0f}",
            f"{statistics.median(s.cpu_s for s in warm):.2f}",
            f"{statistics.median(m.records / m.wall_s for m in runs) / 1000:.0f}",
            f"{statistics.median(m.wall_s for m in runs):.1f}",
            f"{statistics.median(m.cpu_s for m in runs):.0f}",
            f"{statistics.median(m.peak_rss_mib for m in runs):.0f}",
        ]
        table_rows.append([f"**{who}**" if who != PEER else who, *figures])
    return table_rows


HEAD = ("", "1000 probes/s", "CPU s per million", "1000 probes/s, whole run", "whole run, s", "CPU, s", "peak, MiB")


def main(probes: int, pairs: int) -> None:
    both: dict[str, list[Measured]] = {"Penstock": [], PEER: []}
    with start_servers() as servers:
        crowd_plan = filled(servers, probes)
        expected = Counter(crowd_plan.visits)
        for number in range(pairs):
            for who in both if number % 2 else reversed(both):
                both[who].append(
                    run_penstock(servers, WALK_INS) if who == "Penstock" else run_kafka_streams(servers, WALK_INS)
                )
            for topic in (WALK_INS, f"peer-{WALK_INS}"):
                right(servers, topic, expected)
            print(number + 1, {who: f"{m[-1].wall_s:.1f} s" for who, m in both.items()}, flush=True)
    about = (
        f"{probes:,} probes of {DEVICES:,} devices at {BUSINESSES} businesses, {expected.total():,} walk-ins, "
        f"{pairs} pairs, medians."
    )
    rates = {who: [m.samples.steady(1 / 3, 1, m.records).records_s for m in runs] for who, runs in both.items()}
    write("walk-ins", f"{about}\n\n{table(HEAD, rows(both))}", {"rate, probes/s": rates}, chart="rate, probes/s")


if __name__ == "__main__":
    aot_cache.ensure()
    given = [int(word) for word in sys.argv[1:]]
    main(*[*given, *(10_000_000, 2)[len(given) :]])
