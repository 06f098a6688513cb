"""Rate at which the benchmark jobs read a full topic, compared with Kafka Streams and a bare consumer.

Every run starts a process of its own over the same topic and ends when all of it is committed. Outputs are compared,
key by key, before any time is shown. Runs are in pairs, in alternating order; ratios are those of each pair.

    python -m tests.bench.throughput                       the tables of docs/benchmarks.md, over an hour
    python -m tests.bench.throughput beside --pairs 2      one of them
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer
from rich.progress import Progress

from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.host.ports import free_port
from penstock.java import aot_cache, runtime
from penstock.model.registry_schema import RegistrySchema
from penstock.registry import client
from penstock.settings import PROJECT, settings
from penstock.streams import Avro, Protobuf
from tests.bench import peers
from tests.bench.common import table, write
from tests.bench.jobs import (
    EVERY,
    FORMATS,
    JOBS,
    KEYED,
    ONE_STAGE,
    Servers,
    cached,
    fill,
    output,
    receipts_topic,
    run_in_shared_jvm,
    run_kafka_streams,
    run_penstock,
    same,
    start_servers,
    state,
)
from tests.bench.peers import Measured
from tests.bench.steady import SteadyRate

KEYS = 1000
PAIRS = 5
RECORDS = 10_000_000
PEER = "Kafka Streams"


def row(name: str, runs: Sequence[Measured], ratios: Sequence[float] = ()) -> list[str]:
    def middle(of: Callable[[Measured], float]) -> float:
        return statistics.median(of(m) for m in runs)

    return [
        name,
        f"{middle(lambda m: m.wall_s):.1f}",
        f"{middle(lambda m: m.wall_s - m.first_s):.1f}",
        f"{middle(lambda m: m.records / m.wall_s / 1000):.0f}",
        f"{middle(lambda m: m.records / (m.wall_s - m.first_s) / 1000):.0f}",
        f"{middle(lambda m: m.cpu_s):.1f}",
        f"{middle(lambda m: m.peak_rss_mib):.0f}",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "",
    ]


HEAD = (
    "", "wall, s", "from the first record, s", "1000 records/s", "… from the first", "CPU, s", "peak, MiB",
    "ratio of wall times",
)  # fmt: skip


Variants = dict[str, Callable[[], Measured]]
OWN, SHARED = "Penstock", "Penstock, in a shared JVM that has started"


def variants(servers: Servers, job: str) -> Variants:
    """Both sides, with settings that an expert would choose as well; ratios are to the first of Kafka Streams."""
    by_name: Variants = {
        OWN: lambda: run_penstock(servers, job),
        PEER: lambda: run_kafka_streams(servers, job),
        SHARED: lambda: run_in_shared_jvm(servers, job),
        f"{PEER}, exactly once": lambda: run_kafka_streams(servers, job, guarantee="exactly_once_v2"),
    }
    if job == "quality":
        by_name[f"{PEER}, guarded"] = lambda: run_kafka_streams(servers, job, guarded=True)
    if runtime.find().version >= aot_cache.SINCE:
        by_name[f"{PEER}, with Java's cache"] = cached(servers, job)
    return by_name


def compared(servers: Servers, job: str, pairs: int, say: Callable[[str], None]) -> dict[str, list[Measured]]:
    """The runs of each variant of a job."""
    every = variants(servers, job)
    runs: dict[str, list[Measured]] = {name: [] for name in every}
    for number in range(pairs):
        say(f"{job}: {number + 1} of {pairs}")
        for name in every if number % 2 else reversed(every):
            runs[name].append(every[name]())
        if number == 0:
            same(state(servers, output(job)), state(servers, f"peer-{JOBS[job][2]}"))
    return runs


Pairs = Annotated[int, typer.Option(help="runs of each job")]
app = typer.Typer(help=__doc__)


@app.command()
def beside(pairs: Pairs = PAIRS, job: Annotated[list[str] | None, typer.Option(help="; ".join(JOBS))] = None) -> None:
    """From the start of the process, Penstock beside Kafka Streams, set up in several ways."""
    about = f"{RECORDS:,} records, {KEYS:,} metrics, layout canonical, {pairs} runs of each in turn, medians"
    with start_servers() as servers, Progress() as progress:
        step = progress.add_task("generating", total=None)
        fill(servers, RECORDS, KEYS, "canonical")
        bare = row("bare consumer, 2 threads", [peers.run("consume", servers.broker.bootstrap)])
        # A table of its own for each job: should a later one fail, this one is written.
        for chosen in job or list(JOBS):
            runs = compared(servers, chosen, pairs, lambda text: progress.update(step, description=text))
            rows = [bare]
            for name, measured in runs.items():
                ratios = [peer.wall_s / one.wall_s for one, peer in zip(measured, runs[PEER], strict=True)]
                rows.append(row(f"**{name}**" if name == OWN else name, measured, [] if name == PEER else ratios))
            figures = {
                "time from the start of the process, s": {n: [m.wall_s for m in r] for n, r in runs.items()},
                "CPU, s": {name: [m.cpu_s for m in measured] for name, measured in runs.items()},
                "memory, MiB": {name: [m.peak_rss_mib for m in measured] for name, measured in runs.items()},
            }
            section = f"throughput-{JOBS[chosen][0]}"
            write(section, f"{about}.\n\n{table(HEAD, rows)}", figures, chart=next(iter(figures)))


WARM = 30_000_000
STEADY_HEAD = (
    "", "1000 records/s", "CPU s per million", "whole run, s", "CPU, s", "peak, MiB", "ratio of rates",
    "ratio of CPU", "ratio of whole runs",
)  # fmt: skip


@app.command()
def steady(pairs: Pairs = PAIRS, layout: Annotated[str, typer.Option(help="canonical or any")] = "canonical") -> None:
    """The rate when warm: from the second ten million records to the third."""
    chosen: peers.Layout = "any" if layout == "any" else "canonical"
    with start_servers() as servers, Progress() as progress:
        step = progress.add_task("generating", total=None)
        fill(servers, WARM, KEYS, chosen)
        runs = {job: steady_runs(servers, job, pairs, partial(progress.update, step), {}) for job in JOBS}
    about = f"{WARM:,} records, {KEYS:,} metrics, layout {chosen}, {pairs} pairs, medians"
    write_steady(f"throughput-steady-{chosen}", about, runs)


@app.command()
def registry_format(
    layout: Annotated[str, typer.Argument(help="avro or protobuf")] = "avro", pairs: Pairs = 3, records: int = WARM
) -> None:
    """The rate when warm of the same receipts in a format of a schema registry, beside JSON.

    The peer reads Avro as generic records, and Protobuf as the classes that protoc generates do.
    """
    chosen: peers.Layout = "protobuf" if layout == "protobuf" else "avro"
    schemas: dict[str, RegistrySchema] = {
        "avro": Avro.read(PROJECT / "tests" / "bench" / "receipts" / "receipt.avsc"),
        "protobuf": Protobuf.read(PROJECT / "tests" / "bench" / "receipts" / "receipt.proto"),
    }
    schema, topic = schemas[chosen], receipts_topic(chosen)
    with (
        start_servers() as servers,
        SchemaRegistryServer(servers.folder, port=free_port()) as registry,
        Progress() as progress,
    ):
        step = progress.add_task("generating", total=None)
        os.environ["PENSTOCK_SCHEMA_REGISTRY_URL"] = registry.url
        settings.cache_clear()
        schema_id = client.register(schema.subject_of(topic), schema.text, schema.kind)
        fill(servers, records, KEYS, chosen, schema_id)
        peer = {"layout": chosen, "schema": schema_id}
        job = FORMATS[chosen]
        runs = {job: steady_runs(servers, job, pairs, partial(progress.update, step), peer)}
        fill(servers, records, KEYS)
        runs[ONE_STAGE] = steady_runs(servers, ONE_STAGE, pairs, partial(progress.update, step), {})
    about = f"{records:,} records, {KEYS:,} metrics, {pairs} pairs, medians"
    write_steady(f"throughput-{chosen}", about, runs)


@dataclass(frozen=True)
class SteadyRun:
    """A run, and its rate when warm."""

    whole: Measured
    warm: SteadyRate


Runs = dict[str, list[SteadyRun]]
"""The runs of a job, by who ran it."""
STEADY: dict[str, Callable[[SteadyRun], float]] = {
    "rate, 1000 records/s": lambda run: run.warm.records_s / 1000,
    "CPU, s per million": lambda run: run.warm.cpu_s,
    "whole run, s": lambda run: run.whole.wall_s,
    "CPU of the whole run, s": lambda run: run.whole.cpu_s,
    "memory, MiB": lambda run: run.whole.peak_rss_mib,
}


def steady_runs(
    servers: Servers,
    job: str,
    pairs: int,
    say: Callable[..., None],
    peer: Mapping[str, object],
) -> Runs:
    """Run a job in pairs. peer: what the peer is told besides."""
    runs: Runs = {OWN: [], PEER: []}
    for number in range(pairs):
        say(description=f"{job}: {number + 1} of {pairs}")
        for who in runs if number % 2 else reversed(runs):
            run = run_penstock(servers, job) if who == OWN else run_kafka_streams(servers, job, **peer)
            runs[who].append(SteadyRun(run, run.samples.steady(1 / 3, 1, run.records)))
        if number == 0:
            same(state(servers, output(job)), state(servers, f"peer-{EVERY[job][2]}"))
    return runs


def write_steady(section: str, about: str, runs: Mapping[str, Runs]) -> None:
    by_series = {f"{job}: {who}": measured for job, of_job in runs.items() for who, measured in of_job.items()}
    values = {what: {name: list(map(of, found)) for name, found in by_series.items()} for what, of in STEADY.items()}
    rows = []
    for job, of_job in runs.items():
        ratios = ratios_of(of_job)
        for who in of_job:
            name = f"{job}: {who}"
            medians = [statistics.median(series[name]) for series in values.values()]
            figures = [f"{value:.{digits}f}" for value, digits in zip(medians, (0, 2, 1, 0, 0), strict=True)]
            rows.append([f"**{job}**: {who}", *figures, *ratios] if who == OWN else [name, *figures, "", "", ""])
    write(section, f"{about}.\n\n{table(STEADY_HEAD, rows)}", values, chart=next(iter(STEADY)))


def ratios_of(runs: Runs) -> list[str]:
    """Of the rates when warm, of their CPU, and of the whole runs; medians of the pairs."""
    pairs = list(zip(runs[OWN], runs[PEER], strict=True))
    ratios = (
        [own.warm.records_s / peer.warm.records_s for own, peer in pairs],
        [own.warm.cpu_s / peer.warm.cpu_s for own, peer in pairs],
        [peer.whole.wall_s / own.whole.wall_s for own, peer in pairs],
    )
    return [f"{statistics.median(ratio):.2f}" for ratio in ratios]


@app.command()
def scaling() -> None:
    """What records and keys cost: one run each."""
    rows: list[list[object]] = []
    times: dict[str, list[float]] = {}
    with start_servers() as servers, Progress() as progress:
        step = progress.add_task("", total=None)
        for records, keys in ((1, KEYS), (10, KEYS), (10, 10), (10, 100_000)):
            progress.update(step, description=f"{records} million records, {keys} metrics")
            fill(servers, records * 1_000_000, keys)
            others: dict[peers.Job, Measured] = {}
            for job in (*JOBS, KEYED):
                own, peer_job = run_penstock(servers, job), EVERY[job][2]
                other = others[peer_job] = others.get(peer_job) or run_kafka_streams(servers, job)
                same(state(servers, output(job)), state(servers, f"peer-{peer_job}"))
                figures = [
                    f"{figure:.{digits}f}"
                    for m in (own, other)
                    for figure, digits in ((m.wall_s, 1), (m.cpu_s, 1), (m.peak_rss_mib, 0))
                ]
                rows.append([job, f"{records} million", f"{keys:,}", *figures])
                name = f"{job}, {records} million records, {keys:,} metrics"
                times |= {f"{name}: {OWN}": [own.wall_s], f"{name}: {PEER}": [other.wall_s]}
    who = ("", "of Kafka Streams")
    head = ["", "records", "metrics", *(f"{what} {w}".strip() for w in who for what in ("wall, s", "CPU, s", "MiB"))]
    write("throughput-scaling", table(head, rows), {"time from the start of the process, s": times})


@app.callback(invoke_without_command=True)
def main(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        beside()
        steady()
        steady(layout="any")
        registry_format("avro")
        registry_format("protobuf")
        scaling()


if __name__ == "__main__":
    aot_cache.ensure()
    app()
