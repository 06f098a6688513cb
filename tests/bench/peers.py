"""The same jobs for Kafka Streams, written in Java (tests/bench/peer), compiled and measured here."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal
from zipfile import ZipFile

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.errors import HostError
from penstock.host import process
from penstock.host.files import publish
from penstock.java import jar_sets, jars
from penstock.java import runtime as java
from penstock.settings import settings
from tests.bench.common import peak_memory
from tests.bench.steady import RunSamples, sample_during

Job = Literal["quality", "summaries", "summaries2", "walk-ins", "consume"]
Guarantee = Literal["at_least_once", "exactly_once_v2"]
Layout = Literal["canonical", "any", "avro", "protobuf"]

PROGRAM = "peer.jar"
SOURCES = Path(__file__).parent / "peer"
MIB = 1024 * 1024

jar_sets.SETS.update(
    {
        # Kafka Streams of the broker's version with all it needs, as its POM names them.
        "streams": jar_sets.JarSet(
            95,
            (
                "at.yawk.lz4:lz4-java:1.10.2",
                "com.fasterxml.jackson.core:jackson-annotations:2.21",
                "com.fasterxml.jackson.core:jackson-core:2.21.2",
                "com.fasterxml.jackson.core:jackson-databind:2.21.2",
                "com.github.luben:zstd-jni:1.5.6-10",
                "com.google.protobuf:protobuf-java:4.35.1",
                "org.apache.avro:avro:1.12.1",
                "org.apache.kafka:kafka-clients:4.3.1",
                "org.apache.kafka:kafka-streams:4.3.1",
                "org.rocksdb:rocksdbjni:10.1.3",
                "org.slf4j:slf4j-api:1.7.36",
                "org.slf4j:slf4j-simple:1.7.36",
                "org.xerial.snappy:snappy-java:1.1.10.7",
            ),
        ),
    }
)


@dataclass(frozen=True)
class Measured:
    """A run from the start of its process until all was committed; first_s: when the first record was read.

    peak_rss_mib: the proportional set size where the system tells it. figures: all that the program said.
    """

    wall_s: float
    cpu_s: float
    peak_rss_mib: float
    records: int
    first_s: float
    figures: Mapping[str, int] = field(default_factory=dict)
    samples: RunSamples = field(default_factory=RunSamples)


def generate(
    bootstrap: str,
    topic: str,
    records: int,
    *,
    end: int,
    span: timedelta = timedelta(hours=2),
    partitions: int = 4,
    keys: int = 1000,
    layout: Layout = "canonical",
    schema: int = 0,
    bad: float = 0.001,
    seed: int = 1,
) -> Measured:
    """Fill a topic with receipts, made if there is none: event times over `span` up to `end`, in epoch ms.

    schema: the id of the schema in the registry, of the layouts `avro` and `protobuf`.
    figures: `valid` by the rule of quality, `parsed` by the schema alone, `bytes` of values.
    """
    return _measured(
        "generate",
        bootstrap,
        {
            "topic": topic,
            "records": records,
            "end": end,
            "span": span // timedelta(milliseconds=1),
            "partitions": partitions,
            "keys": keys,
            "layout": layout,
            "schema": schema,
            "bad": bad,
            "seed": seed,
            "threads": 2,
        },
    )


def run(
    job: Job,
    bootstrap: str,
    *,
    topic: str = "receipts",
    output: str | None = None,
    businesses: str = "businesses",
    guarantee: Guarantee = "at_least_once",
    guarded: bool = False,
    layout: Layout = "canonical",
    schema: int = 0,
    commit_ms: int = 1000,
    threads: int = 2,
    java_options: Sequence[str] = (),
    timeout: float = 900,
) -> Measured:
    """Run a job from the beginning over what its topic holds now; its state and inner topics are removed afterwards.

    output: `peer-<job>` if not given; made if there is none, and kept.
    figures: `late` records that were dropped, `rejected` ones that are no receipts; of consume, the `bytes` of values.
    """
    app = f"peer-{job}-{uuid.uuid4().hex[:8]}"
    state = Path(tempfile.mkdtemp(prefix=f"{app}-"))
    try:
        return _measured(
            job,
            bootstrap,
            {
                "topic": topic,
                "output": output or f"peer-{job}",
                "bundles": f"{app}-bundles",
                "businesses": businesses,
                "guarantee": guarantee,
                "guarded": str(guarded).lower(),
                "layout": layout,
                "schema": schema,
                "commit": commit_ms,
                "threads": threads,
                "app": app,
                "state": state,
            },
            timeout,
            java_options,
            group=app if job != "consume" else "",
        )
    finally:
        shutil.rmtree(state, ignore_errors=True)
        _forget(bootstrap, app)


def program() -> Path:
    """The jar of the program; compiled if its sources or jars have changed."""
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(jars.folder("streams").name.encode())
    for source in sources:
        digest.update(source.read_bytes())
    target = settings().cache / "peer" / digest.hexdigest()[:12]
    target.parent.mkdir(parents=True, exist_ok=True)
    with publish(target) as fresh:
        if fresh:
            # The compiler for a bare runtime does not know `folder/*`.
            libraries = ":".join(str(jar) for jar in jars.jars_of("streams"))
            command = [*_compiler(), "-cp", libraries, "-d", fresh, *sources]
            done = process.run_captured(command)
            if done.returncode:
                raise HostError("the peer could not be compiled", got=(done.stdout + done.stderr)[-2000:])
            with ZipFile(fresh / PROGRAM, "w") as jar:
                for made in fresh.rglob("*.class"):
                    jar.write(made, made.relative_to(fresh))
    return target / PROGRAM


def _compiler() -> list[str | Path]:
    runtime = java.find()
    if (javac := runtime.home / "bin" / "javac").exists():
        return [javac, "--release", "17", "-nowarn"]
    # A bare runtime has no tables of older releases.
    compiler = [runtime.command, "-cp", jars.classpath("compiler"), "org.eclipse.jdt.internal.compiler.batch.Main"]
    return [*compiler, "-source", "17", "-target", "17", "-nowarn"]


def _measured(
    job: str,
    bootstrap: str,
    arguments: Mapping[str, object],
    timeout: float = 900,
    java_options: Sequence[str] = (),
    group: str = "",
) -> Measured:
    words = {"job": job, "bootstrap": bootstrap, **arguments}
    command = [
        java.find().command, "-Xmx1g", "-XX:+UseG1GC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *java_options,
        "-cp", f"{program()}:{jars.classpath('streams')}", "bench.Peer",
        *(f"{name}={value}" for name, value in words.items()),
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as log:
        started = time.time()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as child:
            timer = threading.Timer(timeout, child.kill)
            timer.start()
            measured = psutil.Process(child.pid)
            samples = RunSamples()
            try:
                with (
                    peak_memory(lambda: [measured]) as peak,
                    sample_during(samples, lambda: _spent(measured), lambda: _committed(bootstrap, group)),
                ):
                    assert child.stdout is not None
                    said = child.stdout.readline()
                    # Not reaped before it is waited for, so it can be asked even if it has ended.
                    cpu = measured.cpu_times()
                    samples.note(cpu.user + cpu.system, _committed(bootstrap, group))
                    child.stdout.read()
                    child.wait()
            finally:
                timer.cancel()
                if child.poll() is None:
                    child.kill()
        if child.returncode or not said:
            log.seek(0)
            raise HostError(f"the peer's {job} failed with {child.returncode}", got=log.read()[-2000:])
    figures: dict[str, int] = json.loads(said)
    return Measured(
        wall_s=figures["done_ms"] / 1000 - started,
        cpu_s=cpu.user + cpu.system,
        peak_rss_mib=peak[0] / MIB,
        records=figures["records"],
        first_s=figures["first_record_ms"] / 1000 - started,
        figures=figures,
        samples=samples,
    )


def _spent(one: psutil.Process) -> float:
    cpu = one.cpu_times()
    return cpu.user + cpu.system


def _committed(bootstrap: str, group: str) -> dict[str, int]:
    """How far the group is in each topic that its records pass one by one: what it reads, and what it repartitions.

    Of a topic of bundles the count says nothing about records.
    """
    if not group:
        return {}
    # The admin client's own way to ask crashes librdkafka 2.16 for a group that is not there yet.
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        topics = consumer.list_topics(timeout=10).topics.values()
        places = [TopicPartition(t.topic, p) for t in topics if not t.topic.startswith("__") for p in t.partitions]
        found = consumer.committed(places, timeout=10)
    except KafkaException:
        return {}
    finally:
        consumer.close()
    steps: dict[str, int] = {}
    for partition in found:
        steps[partition.topic] = steps.get(partition.topic, 0) + max(0, partition.offset)
    return {topic: done for topic, done in steps.items() if not topic.endswith("-bundles")}


def _forget(bootstrap: str, app: str) -> None:
    """Remove the internal topics and the group of Kafka Streams."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    with suppress(KafkaException):
        inner = [name for name in admin.list_topics(timeout=10).topics if name.startswith(f"{app}-")]
        waiting = list(admin.delete_topics(inner).values()) if inner else []
        waiting += admin.delete_consumer_groups([app]).values()
        for one in waiting:
            with suppress(KafkaException):
                one.result()
