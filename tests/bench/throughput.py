"""How fast the hot jobs read through a full topic, beside Kafka Streams and the bare consumer.

Every run starts a process of its own over the same topic and ends when all of it is committed. Outputs are compared,
key by key, before any time is shown. Runs are in pairs, in alternating order; ratios are those of each pair.

    python -m tests.bench.throughput                       the tables of docs/benchmarks.md, over an hour
    python -m tests.bench.throughput beside --pairs 2      one of them
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import Consumer, TopicPartition
from rich.progress import Progress

from penstock import catalog
from penstock.declare.outputs import Mark
from penstock.declare.topic import COMMITS
from penstock.kafka.admin import admin, end_offsets, ensure_topics, partitions
from penstock.local import usage
from penstock.local.parts import Broker, MariaDB
from penstock.machine import aot, java
from penstock.machine.process import free_port
from penstock.settings import PROJECT
from penstock.supervision import processes
from tests.bench import peers
from tests.bench.common import peak_memory, table, write
from tests.bench.peers import Measured
from tests.chaos.drivers import drivers
from tests.support import wait_until

RECEIPTS = "receipts"
RECORDS = 10_000_000
KEYS = 1000
PAIRS = 5
# Of the peer's variants other than the first.
FEWER = 2
PEER = "Kafka Streams"
MIB = 1024 * 1024
# An app, its streams from input to output, and the peer's job that must come to the same.
JOBS: dict[str, tuple[str, tuple[str, ...], peers.Job]] = {
    "quality": ("quality", ("topic-quality",), "quality"),
    "summaries, one stage": ("one-stage", ("one-stage-summaries",), "summaries"),
    "summaries, two stages": ("two-stages", ("metric-bundles", "metric-summaries"), "summaries2"),
}


@dataclass(frozen=True)
class Place:
    """Where it all runs."""

    broker: Broker
    mariadb: MariaDB
    folder: Path


@contextmanager
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        config = {"log.retention.ms": "-1"}
        with (
            Broker(home=home, port=free_port(2), config=config) as broker,
            MariaDB(home=home, port=free_port()) as mariadb,
        ):
            yield Place(broker, mariadb, home)


def ours(at: Place, job: str, **settings: str) -> Measured:
    """One run of a job by Penstock, from the start of its driver's process. settings: PENSTOCK_* for it."""
    app, names, _ = JOBS[job]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        project = PROJECT / "tests" / "bench" / "receipts"
        given_settings = {"PENSTOCK_DRIVER_MEMORY": "768m", **settings}
        with drivers(at.broker, at.mariadb, home, project, **given_settings) as given:
            streams = [catalog.load().stream(name) for name in names]
            drop(at, [s.targets[0] for s in streams])
            ensure_topics(catalog.load().topics.values(), at.broker.bootstrap)
            marks = Marks(at.broker.bootstrap)
            began = time.time()
            driver = given.launch(app)
            with peak_memory(lambda: usage.processes(driver)) as peak:
                source, done = RECEIPTS, began
                for stream in streams:
                    done = marks.wait(stream.name, ends(at, source))
                    source = stream.targets[0]
                cpu = sum(sum(p.cpu_times()[:2]) for p in usage.processes(driver))
            marks.close()
            processes.kill(driver)
        log = home / "checkpoints" / names[0] / "offsets" / "0"
        first = json.loads(log.read_text().splitlines()[1])["batchTimestampMs"] / 1000
        records = sum(ends(at, RECEIPTS).values())
        return Measured(done - began, cpu, peak[0] / MIB, records, first - began)


def theirs(at: Place, job: str, **options: object) -> Measured:
    drop(at, [f"peer-{JOBS[job][2]}"])
    return peers.run(JOBS[job][2], at.broker.bootstrap, **options)  # type: ignore[arg-type]


def cached(at: Place, job: str) -> Callable[[], Measured]:
    """The peer with a cache of Java's as Penstock's drivers have one; made now, by a run that does not count."""
    cache = at.folder / f"{JOBS[job][2]}.aot"
    theirs(at, job, java_options=aot.training(cache))
    return lambda: theirs(at, job, java_options=aot.using(cache))


class Marks:
    """Follows the marks that streams leave in `penstock.commits`."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "marks", "isolation.level": "read_committed"}
        )
        self._seen: dict[str, tuple[Mark, float]] = {}
        now = end_offsets(admin(bootstrap), [(COMMITS.name, p) for p in range(COMMITS.partitions)], bootstrap)
        self._consumer.assign([TopicPartition(topic, p, offset) for (topic, p), offset in now.items()])

    def wait(self, stream: str, wanted: dict[int, int], timeout: float = 900) -> float:
        """When the stream had written all up to the wanted offsets, epoch seconds."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if found := self._seen.get(stream):
                mark, at = found
                [offsets] = mark.offsets.values() or [{}]
                if all(offsets.get(p, 0) >= end for p, end in wanted.items()):
                    return at
            message = self._consumer.poll(0.2)
            if message is not None and not message.error():
                key, value = message.key(), message.value()
                assert isinstance(key, bytes)
                self._seen[key.decode()] = Mark.read(value or b""), message.timestamp()[1] / 1000
        raise SystemExit(f"{stream} did not come to the end of its input within {timeout:g} s")

    def close(self) -> None:
        self._consumer.close()


def ends(at: Place, topic: str) -> dict[int, int]:
    client, bootstrap = admin(at.broker.bootstrap), at.broker.bootstrap
    count = partitions(client, bootstrap)[topic]
    return {p: end for (_, p), end in end_offsets(client, [(topic, p) for p in range(count)], bootstrap).items()}


def drop(at: Place, topics: Sequence[str]) -> None:
    """Remove topics, so that a run begins without what an earlier one wrote."""
    client, bootstrap = admin(at.broker.bootstrap), at.broker.bootstrap
    there = [t for t in topics if t in partitions(client, bootstrap)]
    for future in client.delete_topics(there).values() if there else ():
        future.result(30)
    wait_until(lambda: not set(there) & partitions(client, bootstrap).keys())


def state(at: Place, topic: str) -> dict[bytes, bytes]:
    """The last value of each key."""
    consumer = Consumer(
        {"bootstrap.servers": at.broker.bootstrap, "group.id": "state", "isolation.level": "read_committed"}
    )
    wanted = ends(at, topic)
    consumer.assign([TopicPartition(topic, p, 0) for p in wanted])
    found: dict[bytes, bytes] = {}
    while any(consumer.position([TopicPartition(topic, p)])[0].offset < end for p, end in wanted.items()):
        for message in consumer.consume(10_000, 1.0):
            if not message.error():
                found[bytes(message.key() or b"")] = bytes(message.value() or b"")
    consumer.close()
    return found


def same(one: dict[bytes, bytes], other: dict[bytes, bytes]) -> None:
    """SystemExit unless both hold the same; figures to nine digits, for additions have an order."""
    if one.keys() != other.keys():
        extra = next(iter(one.keys() ^ other.keys()))
        raise SystemExit(f"outputs differ: {len(one)} keys and {len(other)} keys, one of them {extra!r}")
    for key, value in one.items():
        if value != other[key] and not _close(json.loads(value), json.loads(other[key])):
            raise SystemExit(f"outputs differ at {key!r}: {value!r} and {other[key]!r}")


def _close(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_close(v, other[k]) for k, v in one.items())
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other


def row(name: str, found: Sequence[Measured], ratios: Sequence[float] = ()) -> list[str]:
    def middle(of: Callable[[Measured], float]) -> float:
        return statistics.median(of(m) for m in found)

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


def fill(at: Place, records: int, keys: int, layout: peers.Layout = "canonical") -> None:
    drop(at, [RECEIPTS])
    end = int(time.time() * 1000)
    peers.generate(at.broker.bootstrap, RECEIPTS, records, end=end, keys=keys, layout=layout)


Variants = dict[str, Callable[[], Measured]]


def variants(at: Place, job: str, layout: peers.Layout) -> Variants:
    """The peer, first as it is, then in the ways a careful hand would set it up."""

    def peer(**options: object) -> Callable[[], Measured]:
        return lambda: theirs(at, job, **options)

    found = {PEER: peer()}
    if layout == "any":
        return found
    found[f"{PEER}, exactly once"] = peer(guarantee="exactly_once_v2")
    if job == "quality":
        found[f"{PEER}, guarded"] = peer(guarded=True)
    if java.find().version >= aot.SINCE:
        found[f"{PEER}, with Java's cache"] = cached(at, job)
    return found


def compared(at: Place, job: str, others: Variants, pairs: int, say: Callable[[str], None]) -> list[list[str]]:
    """The rows of a job: Penstock, and each variant with its ratio."""
    mine: list[Measured] = []
    found: dict[str, list[Measured]] = {name: [] for name in others}
    for number in range(pairs):
        say(f"{job}: {number + 1} of {pairs}")
        names = [name for name in others if name == PEER or number < FEWER]
        for name in [None, *names] if number % 2 else [*names, None]:
            if name is None:
                mine.append(ours(at, job))
            else:
                found[name].append(others[name]())
        if number == 0:
            same(state(at, output(job)), state(at, f"peer-{JOBS[job][2]}"))
    rows = [row(f"**{job}**: Penstock", mine)]
    for name, measured in found.items():
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
    with place() as at, Progress() as progress:
        step = progress.add_task("generating", total=None)
        fill(at, RECORDS, KEYS, layout)
        bare = row("bare consumer, 2 threads", [peers.run("consume", at.broker.bootstrap)])
        for job in jobs:
            rows = compared(
                at, job, variants(at, job, layout), pairs, lambda text: progress.update(step, description=text)
            )
            made = table(HEAD, [bare, *rows])
            progress.console.print(made)
            write(f"{section}-{JOBS[job][0]}", f"{about}{fewer}.\n\n{made}")


@app.command()
def scaling() -> None:
    """What records and keys cost: one run each."""
    rows = []
    with place() as at, Progress() as progress:
        step = progress.add_task("", total=None)
        for records, keys in ((1, KEYS), (3, KEYS), (10, KEYS), (10, 10), (10, 100_000)):
            progress.update(step, description=f"{records} million records, {keys} metrics")
            fill(at, records * 1_000_000, keys)
            for job in ("quality", "summaries, two stages"):
                own, other = ours(at, job), theirs(at, job)
                same(state(at, output(job)), state(at, f"peer-{JOBS[job][2]}"))
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
    "every record through Spark's parser": {"PENSTOCK_PARSING": "json"},
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
    with place() as at, Progress() as progress:
        step = progress.add_task("generating", total=None)
        fill(at, RECORDS, KEYS)
        usual: list[Measured] = []
        for name, settings in OTHERWISE.items():
            progress.update(step, description=name)
            if len(usual) < 3:
                usual.append(ours(at, job))
            rows.append(row(name, [ours(at, job, **settings)])[:-1])
        rows.insert(0, row("as it is", usual)[:-1])
    write("throughput-otherwise", table(HEAD[:-1], rows))


def output(job: str) -> str:
    return {"quality": "metrics", "summaries, one stage": "one-stage-summaries"}.get(job, "metric-summaries")


@app.callback(invoke_without_command=True)
def main(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        beside()
        any_layout()
        scaling()
        otherwise()


if __name__ == "__main__":
    aot.ensure()
    app()
