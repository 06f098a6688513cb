"""Rate at which the benchmark jobs read a full topic, compared with Kafka Streams and a bare consumer.

Every run starts a process of its own over the same topic and ends when all of it is committed. Outputs are compared,
key by key, before any time is shown. Runs are in pairs, in alternating order; ratios are those of each pair.

    python -m tests.bench.throughput                       the tables of docs/benchmarks.md, over an hour
    python -m tests.bench.throughput beside --pairs 2      one of them
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
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
    ONE_STAGE,
    Servers,
    cached,
    fill,
    output,
    receipts_topic,
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
# Of the peer's variants other than the first.
FEWER = 2
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


def variants(servers: Servers, job: str, layout: peers.Layout) -> Variants:
    """Kafka Streams with default settings, and then with settings that an expert would choose."""

    def peer(**options: object) -> Callable[[], Measured]:
        return lambda: run_kafka_streams(servers, job, **options)

    by_name = {PEER: peer()}
    if layout == "any":
        return by_name
    by_name[f"{PEER}, exactly once"] = peer(guarantee="exactly_once_v2")
    if job == "quality":
        by_name[f"{PEER}, guarded"] = peer(guarded=True)
    if runtime.find().version >= aot_cache.SINCE:
        by_name[f"{PEER}, with Java's cache"] = cached(servers, job)
    return by_name


def compared(servers: Servers, job: str, others: Variants, pairs: int, say: Callable[[str], None]) -> list[list[str]]:
    """The rows of a job: Penstock, and each variant with its ratio."""
    mine: list[Measured] = []
    runs: dict[str, list[Measured]] = {name: [] for name in others}
    for number in range(pairs):
        say(f"{job}: {number + 1} of {pairs}")
        names = [name for name in others if name == PEER or number < FEWER]
        for name in [None, *names] if number % 2 else [*names, None]:
            if name is None:
                mine.append(run_penstock(servers, job))
            else:
                runs[name].append(others[name]())
        if number == 0:
            same(state(servers, output(job)), state(servers, f"peer-{JOBS[job][2]}"))
    rows = [row(f"**{job}**: Penstock", mine)]
    for name, measured in runs.items():
        ratios = [other.wall_s / own.wall_s for own, other in zip(mine, measured, strict=False)]
        rows.append(row(f"{job}: {name}", measured, ratios))
    return rows


Pairs = Annotated[int, typer.Option(help="runs of each job")]
app = typer.Typer(help=__doc__)


@app.command()
def beside(pairs: Pairs = PAIRS, job: Annotated[list[str] | None, typer.Option(help="; ".join(JOBS))] = None) -> None:
    """Penstock beside Kafka Streams, set up in several ways."""
    _beside("throughput", "canonical", pairs, job or list(JOBS))


@app.command()
def any_layout(pairs: Pairs = FEWER) -> None:
    """The same with fields in any order and white space anywhere."""
    _beside("throughput-any", "any", pairs, ["quality", "summaries, two stages"])


def _beside(section: str, layout: peers.Layout, pairs: int, jobs: Sequence[str]) -> None:
    """A table of its own for each job: should a later one fail, this one is written."""
    about = f"{RECORDS:,} records, {KEYS:,} metrics, layout {layout}, {pairs} runs, medians"
    fewer = f"; variants of the peer {FEWER} runs" if pairs > FEWER else ""
    with start_servers() as servers, Progress() as progress:
        step = progress.add_task("generating", total=None)
        fill(servers, RECORDS, KEYS, layout)
        bare = row("bare consumer, 2 threads", [peers.run("consume", servers.broker.bootstrap)])
        for job in jobs:
            rows = compared(
                servers,
                job,
                variants(servers, job, layout),
                pairs,
                lambda text: progress.update(step, description=text),
            )
            text = table(HEAD, [bare, *rows])
            progress.console.print(text)
            write(f"{section}-{JOBS[job][0]}", f"{about}{fewer}.\n\n{text}")


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
        rows = [row for job in JOBS for row in _steady(servers, job, pairs, partial(progress.update, step), {})]
    about = f"{WARM:,} records, {KEYS:,} metrics, layout {chosen}, {pairs} pairs, medians"
    write(f"throughput-steady-{chosen}", f"{about}.\n\n{table(STEADY_HEAD, rows)}")


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
        rows = _steady(servers, FORMATS[chosen], pairs, partial(progress.update, step), peer)
        fill(servers, records, KEYS)
        rows += _steady(servers, ONE_STAGE, pairs, partial(progress.update, step), {})
    about = f"{records:,} records, {KEYS:,} metrics, {pairs} pairs, medians"
    write(f"throughput-{chosen}", f"{about}.\n\n{table(STEADY_HEAD, rows)}")


def _steady(
    servers: Servers,
    job: str,
    pairs: int,
    say: Callable[..., None],
    peer: Mapping[str, object],
) -> list[list[str]]:
    """The rows of a job. peer: what the peer is told besides."""
    both: dict[str, list[SteadyRate]] = {"Penstock": [], PEER: []}
    whole: dict[str, list[Measured]] = {"Penstock": [], PEER: []}
    for number in range(pairs):
        say(description=f"{job}: {number + 1} of {pairs}")
        for who in ("Penstock", PEER) if number % 2 else (PEER, "Penstock"):
            run = run_penstock(servers, job) if who == "Penstock" else run_kafka_streams(servers, job, **peer)
            whole[who].append(run)
            both[who].append(run.samples.steady(1 / 3, 1, run.records))
        if number == 0:
            same(state(servers, output(job)), state(servers, f"peer-{EVERY[job][2]}"))
    return _steady_rows(job, both, whole)


def _steady_rows(job: str, both: dict[str, list[SteadyRate]], whole: dict[str, list[Measured]]) -> list[list[str]]:
    rows = []
    for who in both:
        middle = [
            statistics.median(s.records_s for s in both[who]) / 1000,
            statistics.median(s.cpu_s for s in both[who]),
            statistics.median(m.wall_s for m in whole[who]),
            statistics.median(m.cpu_s for m in whole[who]),
            statistics.median(m.peak_rss_mib for m in whole[who]),
        ]
        figures = [f"{value:.{digits}f}" for value, digits in zip(middle, (0, 2, 1, 0, 0), strict=True)]
        ratios = ["", "", ""]
        if who == "Penstock":
            pairs = list(zip(both["Penstock"], both[PEER], strict=True))
            runs = list(zip(whole["Penstock"], whole[PEER], strict=True))
            ratios = [
                f"{statistics.median(own.records_s / other.records_s for own, other in pairs):.2f}",
                f"{statistics.median(own.cpu_s / other.cpu_s for own, other in pairs):.2f}",
                f"{statistics.median(other.wall_s / own.wall_s for own, other in runs):.2f}",
            ]
        rows.append([f"**{job}**: {who}" if who == "Penstock" else f"{job}: {who}", *figures, *ratios])
    return rows


@app.command()
def scaling() -> None:
    """What records and keys cost: one run each."""
    rows = []
    with start_servers() as servers, Progress() as progress:
        step = progress.add_task("", total=None)
        for records, keys in ((1, KEYS), (3, KEYS), (10, KEYS), (10, 10), (10, 100_000)):
            progress.update(step, description=f"{records} million records, {keys} metrics")
            fill(servers, records * 1_000_000, keys)
            for job in ("quality", "summaries, two stages"):
                own, other = run_penstock(servers, job), run_kafka_streams(servers, job)
                same(state(servers, output(job)), state(servers, f"peer-{JOBS[job][2]}"))
                figures = [
                    f"{figure:.{digits}f}"
                    for m in (own, other)
                    for figure, digits in ((m.wall_s, 1), (m.cpu_s, 1), (m.peak_rss_mib, 0))
                ]
                rows.append([job, f"{records} million", f"{keys:,}", *figures])
    who = ("", "of Kafka Streams")
    head = ["", "records", "metrics", *(f"{what} {w}".strip() for w in who for what in ("wall, s", "CPU, s", "MiB"))]
    write("throughput-scaling", table(head, rows))


STATE = "spark.sql.streaming.stateStore."
CHECKPOINTS = "org.apache.spark.sql.execution.streaming."
# What is not set by default, by name: the settings it takes.
OTHERWISE: dict[str, dict[str, str]] = {
    "state in the JVM's heap (HDFSBackedStateStoreProvider)": {
        "PENSTOCK_DRIVER_MEMORY": "2g",
        "PENSTOCK_SPARK_CONF": json.dumps(
            {f"{STATE}providerClass": f"{CHECKPOINTS}state.HDFSBackedStateStoreProvider"}
        ),
    },
    "snapshots of the state instead of changelogs": {
        "PENSTOCK_SPARK_CONF": json.dumps({f"{STATE}rocksdb.changelogCheckpointing.enabled": "false"})
    },
    "Spark's own manager of checkpoint files": {
        "PENSTOCK_SPARK_CONF": json.dumps(
            {
                "spark.sql.streaming.checkpointFileManagerClass": f"{CHECKPOINTS}checkpointing."
                "FileContextBasedCheckpointFileManager"
            }
        )
    },
    "parallel collector": {"PENSTOCK_JAVA_OPTIONS": "-XX:+UseParallelGC -XX:NewRatio=1"},
    "G1 collector": {"PENSTOCK_JAVA_OPTIONS": "-XX:+UseG1GC"},
    "plans adapted while they run": {"PENSTOCK_SPARK_CONF": json.dumps({"spark.sql.adaptive.enabled": "true"})},
}


@app.command()
def otherwise() -> None:
    """Both stages of the summaries with settings other than the default ones: one run each, the default's three."""
    job, rows = "summaries, two stages", list[list[str]]()
    with start_servers() as servers, Progress() as progress:
        step = progress.add_task("generating", total=None)
        fill(servers, RECORDS, KEYS)
        usual: list[Measured] = []
        for name, options in OTHERWISE.items():
            progress.update(step, description=name)
            if len(usual) < 3:
                usual.append(run_penstock(servers, job))
            rows.append(row(name, [run_penstock(servers, job, **options)])[:-1])
        rows.insert(0, row("as it is", usual)[:-1])
    write("throughput-otherwise", table(HEAD[:-1], rows))


@app.callback(invoke_without_command=True)
def main(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        beside()
        any_layout()
        steady()
        registry_format("avro")
        registry_format("protobuf")
        scaling()
        otherwise()


if __name__ == "__main__":
    aot_cache.ensure()
    app()
