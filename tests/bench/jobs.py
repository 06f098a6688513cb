"""The benchmark jobs as processes that read a full topic: by Penstock or Kafka Streams; measured from their start."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Consumer, TopicPartition

from penstock import catalog
from penstock.control import DriverRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.spark import SparkCluster
from penstock.engine import shared_session
from penstock.host import process
from penstock.host.ports import free_port
from penstock.java import aot_cache
from penstock.kafka.admin import admin, end_offsets, ensure_topics, partition_counts
from penstock.model.topic import COMMITS
from penstock.settings import PROJECT
from tests.bench import peers
from tests.bench.common import peak_memory
from tests.bench.peers import Measured
from tests.bench.steady import RunSamples, sample_during
from tests.chaos.commit_markers import CommitMarkers
from tests.chaos.drivers import drivers
from tests.support.wait import wait_until

RECEIPTS = "receipts"
MIB = 1024 * 1024
ONE_STAGE, KEYED = "summaries, one stage", "summaries, one stage, as keyed state"
# An app, its streams from input to output, and the peer's job that must come to the same.
JOBS: dict[str, tuple[str, tuple[str, ...], peers.Job]] = {
    "quality": ("quality", ("topic-quality",), "quality"),
    ONE_STAGE: ("one-stage", ("one-stage-summaries",), "summaries"),
    "summaries, two stages": ("two-stages", ("metric-bundles", "metric-summaries"), "summaries2"),
}
# Of another topic than receipts.
PROBES = "probes"
WALK_INS = "walk-ins"
# Of the receipts in formats of a schema registry, by the format.
FORMATS: dict[peers.Layout, str] = {
    "avro": "summaries of Avro, one stage", "protobuf": "summaries of Protobuf, one stage",
}  # fmt: skip
EVERY: dict[str, tuple[str, tuple[str, ...], peers.Job]] = {
    **JOBS,
    KEYED: ("keyed", ("keyed-summaries",), "summaries"),
    WALK_INS: (WALK_INS, (WALK_INS,), "walk-ins"),
    **{job: (layout, (f"{layout}-summaries",), "summaries") for layout, job in FORMATS.items()},
}


@dataclass(frozen=True)
class Servers:
    """The servers of a benchmark and its folder."""

    broker: Broker
    mariadb: MariaDB
    folder: Path


@contextmanager
def start_servers() -> Iterator[Servers]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with (
            Broker(home=home, port=free_port(2), config={"log.retention.ms": "-1"}) as broker,
            MariaDB(home=home, port=free_port()) as mariadb,
        ):
            yield Servers(broker, mariadb, home)


def run_penstock(servers: Servers, job: str, **settings: str) -> Measured:
    """One run of a job by Penstock, from the start of its driver's process. settings: PENSTOCK_* for it."""
    return measured(servers, job, settings)


def run_in_shared_jvm(servers: Servers, job: str) -> Measured:
    """The same, where a JVM that apps share has started before and has run nothing yet. Its CPU and memory count."""
    return measured(servers, job, {"PENSTOCK_TOGETHER": "all", "PENSTOCK_TOGETHER_MEMORY": "768m"})


def measured(servers: Servers, job: str, settings: Mapping[str, str], cluster: SparkCluster | None = None) -> Measured:
    """The same. cluster: where its executors are, whose processes count too."""
    app, names, _ = EVERY[job]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        project = PROJECT / "tests" / "bench" / "receipts"
        given_settings = {"PENSTOCK_DRIVER_MEMORY": "768m", **settings}
        app_drivers = stack.enter_context(drivers(servers.broker, servers.mariadb, home, project, **given_settings))
        streams = [catalog.load().stream(name) for name in names]
        # With their markers: a stream that has one and no checkpoint is blocked.
        drop(servers, [COMMITS.name, *(s.output_names[0] for s in streams)])
        ensure_topics(catalog.load().topics.values(), servers.broker.bootstrap)
        others = [part.record for part in cluster.servers] if cluster else []
        if "PENSTOCK_TOGETHER" in settings:
            others = [stack.enter_context(shared_jvm(home))]
        markers = CommitMarkers(servers.broker.bootstrap)
        before = sum(map(cpu_of, _processes(others)))
        began = time.time()
        driver = app_drivers.launch(app)
        samples = RunSamples()

        def all_cpu() -> float:
            return spent(driver) + sum(map(cpu_of, _processes(others))) - before

        with (
            peak_memory(lambda: [*driver.session.processes(), *_processes(others)]) as peak,
            sample_during(samples, all_cpu, lambda: markers.offsets(names)),
        ):
            source, done = input_topic_of(job), began
            for stream in streams:
                done = markers.wait([stream.name], source, ends(servers, source))
                source = stream.output_names[0]
            cpu = all_cpu()
            samples.note(cpu, markers.offsets(names))
        markers.close()
        driver.session.kill()
        log = home / "checkpoints" / names[0] / "offsets" / "0"
        first = json.loads(log.read_text().splitlines()[1])["batchTimestampMs"] / 1000
        records = sum(ends(servers, input_topic_of(job)).values())
        return Measured(done - began, cpu, peak[0] / MIB, records, first - began, samples=samples)


@contextmanager
def shared_jvm(home: Path) -> Iterator[process.ProcessRecord]:
    """The JVM that apps share runs during the block."""
    shared_session.start()
    record = process.read(home / "run", shared_session.name())
    assert record
    try:
        wait_until(shared_session.is_ready, what="the shared JVM is ready")
        yield record
    finally:
        record.session.kill()


def spent(driver: DriverRow) -> float:
    """CPU seconds of a driver's processes, those that have ended included."""
    return sum(map(cpu_of, driver.session.processes()))


def cpu_of(one: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return float(sum(one.cpu_times()[:4]))
    return 0.0


def _processes(records: Iterable[process.ProcessRecord | None]) -> list[psutil.Process]:
    """Those of a cluster's daemons and of the executors that they started, or of a shared JVM."""
    return [one for record in records if record for one in record.session.processes()]


def run_kafka_streams(servers: Servers, job: str, **options: object) -> Measured:
    name = EVERY[job][2]
    drop(servers, [f"peer-{name}"])
    return peers.run(name, servers.broker.bootstrap, topic=input_topic_of(job), **options)  # type: ignore[arg-type]


def input_topic_of(job: str) -> str:
    formats = {job: receipts_topic(layout) for layout, job in FORMATS.items()}
    return {WALK_INS: PROBES, **formats}.get(job, RECEIPTS)


def receipts_topic(layout: peers.Layout) -> str:
    """The topic of receipts in a layout."""
    return f"{RECEIPTS}-{layout}" if layout in FORMATS else RECEIPTS


def cached(servers: Servers, job: str) -> Callable[[], Measured]:
    """The peer with a cache of Java's as Penstock's drivers have one; made now, by a run that does not count."""
    cache = servers.folder / f"{JOBS[job][2]}.aot"
    run_kafka_streams(servers, job, java_options=aot_cache.training_options(cache))
    return lambda: run_kafka_streams(servers, job, java_options=aot_cache.use_options(cache))


def ends(servers: Servers, topic: str) -> dict[int, int]:
    client, bootstrap = admin(servers.broker.bootstrap), servers.broker.bootstrap
    count = partition_counts(client, bootstrap)[topic]
    return {p: end for (_, p), end in end_offsets(client, [(topic, p) for p in range(count)], bootstrap).items()}


def drop(servers: Servers, topics: Sequence[str]) -> None:
    """Remove topics, so that a run begins without what an earlier one wrote."""
    client, bootstrap = admin(servers.broker.bootstrap), servers.broker.bootstrap
    there = [t for t in topics if t in partition_counts(client, bootstrap)]
    for future in client.delete_topics(there).values() if there else ():
        future.result(30)
    wait_until(lambda: not set(there) & partition_counts(client, bootstrap).keys())


def state(servers: Servers, topic: str) -> dict[bytes, bytes]:
    """The last value of each key."""
    consumer = Consumer(
        {"bootstrap.servers": servers.broker.bootstrap, "group.id": "state", "isolation.level": "read_committed"}
    )
    wanted = ends(servers, topic)
    consumer.assign([TopicPartition(topic, p, 0) for p in wanted])
    values: dict[bytes, bytes] = {}
    while any(consumer.position([TopicPartition(topic, p)])[0].offset < end for p, end in wanted.items()):
        for message in consumer.consume(10_000, 1.0):
            if not message.error():
                values[bytes(message.key() or b"")] = bytes(message.value() or b"")
    consumer.close()
    return values


def same(one: dict[bytes, bytes], other: dict[bytes, bytes]) -> None:
    """SystemExit unless both are equal; numbers to nine digits, as the order of additions differs."""
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


def fill(servers: Servers, records: int, keys: int, layout: peers.Layout = "canonical", schema: int = 0) -> None:
    topic = receipts_topic(layout)
    drop(servers, [topic])
    end = int(time.time() * 1000)
    peers.generate(servers.broker.bootstrap, topic, records, end=end, keys=keys, layout=layout, schema=schema)


def output(job: str) -> str:
    formats = {job: f"{layout}-summaries" for layout, job in FORMATS.items()}
    outputs = {"quality": "metrics", ONE_STAGE: "one-stage-summaries", KEYED: "keyed-summaries", **formats}
    return outputs.get(job, "metric-summaries")
