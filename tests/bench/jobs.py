"""The hot jobs as processes over a full topic: a driver of Penstock, and Kafka Streams, measured from their start."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Consumer, TopicPartition

from penstock import catalog
from penstock.control import DriverRow
from penstock.declare.outputs import Mark
from penstock.declare.topic import COMMITS
from penstock.kafka.admin import admin, end_offsets, ensure_topics, partitions
from penstock.local import usage
from penstock.local.parts import Broker, MariaDB
from penstock.machine import aot
from penstock.machine.process import free_port
from penstock.settings import PROJECT
from penstock.supervision import processes
from tests.bench import peers
from tests.bench.common import peak_memory
from tests.bench.peers import Measured
from tests.bench.steady import Course, following
from tests.chaos.drivers import drivers
from tests.support import wait_until

RECEIPTS = "receipts"
MIB = 1024 * 1024
# An app, its streams from input to output, and the peer's job that must come to the same.
JOBS: dict[str, tuple[str, tuple[str, ...], peers.Job]] = {
    "quality": ("quality", ("topic-quality",), "quality"),
    "summaries, one stage": ("one-stage", ("one-stage-summaries",), "summaries"),
    "summaries, two stages": ("two-stages", ("metric-bundles", "metric-summaries"), "summaries2"),
}
# Of another topic than receipts.
PROBES = "probes"
WALK_INS = "walk-ins"
EVERY: dict[str, tuple[str, tuple[str, ...], peers.Job]] = {**JOBS, WALK_INS: (WALK_INS, (WALK_INS,), "walk-ins")}


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
    app, names, _ = EVERY[job]
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
            course = Course()
            with (
                peak_memory(lambda: usage.processes(driver)) as peak,
                following(course, lambda: spent(driver), lambda: marks.offsets(names)),
            ):
                source, done = read_by(job), began
                for stream in streams:
                    done = marks.wait(stream.name, source, ends(at, source))
                    source = stream.targets[0]
                cpu = spent(driver)
                course.note(cpu, marks.offsets(names))
            marks.close()
            processes.kill(driver)
        log = home / "checkpoints" / names[0] / "offsets" / "0"
        first = json.loads(log.read_text().splitlines()[1])["batchTimestampMs"] / 1000
        records = sum(ends(at, read_by(job)).values())
        return Measured(done - began, cpu, peak[0] / MIB, records, first - began, course=course)


def spent(driver: DriverRow) -> float:
    """CPU seconds of a driver's processes, those that have ended included."""
    total = 0.0
    for process in usage.processes(driver):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def theirs(at: Place, job: str, **options: object) -> Measured:
    name = EVERY[job][2]
    drop(at, [f"peer-{name}"])
    return peers.run(name, at.broker.bootstrap, topic=read_by(job), **options)  # type: ignore[arg-type]


def read_by(job: str) -> str:
    return PROBES if job == WALK_INS else RECEIPTS


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

    def wait(self, stream: str, topic: str, wanted: dict[int, int], timeout: float = 900) -> float:
        """When the stream had written all of a topic up to the wanted offsets, epoch seconds."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if found := self._seen.get(stream):
                mark, at = found
                offsets = mark.offsets.get(topic, {})
                if all(offsets.get(p, 0) >= end for p, end in wanted.items()):
                    return at
            message = self._consumer.poll(0.2)
            if message is not None and not message.error():
                key, value = message.key(), message.value()
                assert isinstance(key, bytes)
                self._seen[key.decode()] = Mark.read(value or b""), message.timestamp()[1] / 1000
        raise SystemExit(f"{stream} did not come to the end of its input within {timeout:g} s")

    def offsets(self, streams: Sequence[str]) -> dict[str, int]:
        """How far each stream has come in its inputs, of those that have written a batch."""
        seen = dict(self._seen)
        return {
            stream: sum(at for parts in seen[stream][0].offsets.values() for at in parts.values())
            for stream in streams
            if stream in seen
        }

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


def fill(at: Place, records: int, keys: int, layout: peers.Layout = "canonical") -> None:
    drop(at, [RECEIPTS])
    end = int(time.time() * 1000)
    peers.generate(at.broker.bootstrap, RECEIPTS, records, end=end, keys=keys, layout=layout)


def output(job: str) -> str:
    return {"quality": "metrics", "summaries, one stage": "one-stage-summaries"}.get(job, "metric-summaries")
