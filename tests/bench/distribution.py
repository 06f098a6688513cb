"""Cost of spreading an app over workers: one executor with two cores, compared with two of one core on two workers.

The same job (windows with state, one stage of the summaries) over the same full topic on a standalone cluster that is
started for each run; the driver is a process of its own in all. Spread, also with more partitions of the shuffle, each
of which has a state store. Each round runs all, every other one in the opposite order.

    python -m tests.bench.distribution [records] [rounds]
"""

from __future__ import annotations

import os
import sys
from statistics import median

from penstock.devstack.servers.spark import SparkCluster
from penstock.host.ports import free_port
from penstock.java import aot_cache
from penstock.settings import settings
from tests.bench.common import table, write
from tests.bench.jobs import Servers, fill, measured, output, same, start_servers, state
from tests.bench.peers import Measured

JOB, KEYS = "summaries, one stage", 1000
# Workers, and cores of each and of its executor; partitions of the shuffle.
LAYOUTS = ((1, 2, 2), (2, 1, 2), (2, 1, 4), (2, 1, 8))


def run(servers: Servers, layout: tuple[int, int, int]) -> Measured:
    workers, cores, partitions = layout
    # Heap as a worker of that size gives it; together it is the same.
    memory = f"{512 * cores}m"
    with SparkCluster(
        servers.folder, free_port(2 + 2 * workers), workers=workers, cores=cores, memory=memory
    ) as cluster:
        variables = {
            "PENSTOCK_SPARK_MASTER": cluster.url, "PENSTOCK_APP_CORES": "2", "PENSTOCK_EXECUTOR_CORES": str(cores),
            "PENSTOCK_EXECUTOR_MEMORY": memory, "SHUFFLE_PARTITIONS": str(partitions),
        }  # fmt: skip
        return measured(servers, JOB, variables, cluster)


def rate(m: Measured) -> float:
    """Records a second, from the first one."""
    return m.records / (m.wall_s - m.first_s)


def warm(m: Measured) -> float:
    """Records a second, of the second half."""
    return m.samples.steady(0.5, 1, m.records).records_s


def main(records: int, rounds: int) -> None:
    aot_cache.ensure()
    # Of the cluster and of drivers whose homes are others.
    os.environ["PENSTOCK_SPARK_SECRET"] = os.urandom(16).hex()
    settings.cache_clear()
    runs: dict[tuple[int, int, int], list[Measured]] = {layout: [] for layout in LAYOUTS}
    with start_servers() as servers:
        fill(servers, records, KEYS)
        first = None
        for number in range(rounds):
            for layout in LAYOUTS if number % 2 else reversed(LAYOUTS):
                runs[layout].append(run(servers, layout))
                written = state(servers, output(JOB))
                same(first or written, written)
                first = first or written
    whole, rows = runs[LAYOUTS[0]], []
    for (workers, cores, partitions), of in runs.items():
        share = ["", ""]
        if of is not whole:
            ratios = (
                [what(spread) / what(one) for one, spread in zip(whole, of, strict=True)] for what in (rate, warm)
            )
            share = [f"{median(r):.0%} ({min(r):.0%} to {max(r):.0%})" for r in ratios]
        rows.append(
            [
                f"{workers} x {cores}", str(partitions), str(partitions // workers), f"{median(map(rate, of)):,.0f}",
                share[0], f"{median(map(warm, of)):,.0f}", share[1], f"{median(m.cpu_s for m in of):.0f}",
                f"{median(m.peak_rss_mib for m in of):.0f}",
            ]
        )  # fmt: skip
    head = [
        "workers x cores", "partitions", "stores a worker", "records/s", "of one worker's", "… second half",
        "of one worker's", "CPU, s", "peak, MiB",
    ]  # fmt: skip
    about = f"{JOB}: {records:,} records, {KEYS:,} metrics, {rounds} rounds, medians."
    figures = {
        what: {f"{w} x {c} cores, {p} partitions": [of(m) for m in runs[w, c, p]] for w, c, p in LAYOUTS}
        for what, of in (("rate, records/s", rate), ("rate of the second half, records/s", warm))
    }
    write("distribution", f"{about}\n\n{table(head, rows)}", figures)


if __name__ == "__main__":
    chosen = [int(number) for number in sys.argv[1:]]
    main(*chosen, *(6_000_000, 3)[len(chosen) :])
