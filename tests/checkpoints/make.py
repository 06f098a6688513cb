"""Makes the checkpoints of the present version of Penstock and Spark.

    python -m tests.checkpoints.make [kind ...]

It is run once for each release, on the code that is released: what it makes stays as it is from then on. It is never
run to make a failing test pass. A kind is a case of streams in YAML; the last of its steps is what comes after the
checkpoint. Each kind is run twice: up to the step before, for the checkpoint, and as a whole, for what must be written
after it. Both runs must have written the same until then.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch

import pyspark

import penstock
from penstock.devstack.servers.kafka import Broker
from penstock.engine.checkpoint import ownership
from penstock.host.ports import free_port
from penstock.kafka.commit_marker import read_commit_marker
from penstock.settings import PROJECT, settings
from penstock.testing import Record, spark_session
from penstock.testing.case_file import StreamCase, read_cases
from penstock.testing.case_ways import run_case
from penstock.testing.plugin import QUICK
from tests.support.saved_checkpoints import (
    ARCHIVE,
    BANK,
    HISTORY,
    Chapter,
    History,
    SavedCheckpoint,
    declared_stream,
    heartbeat_secret,
    input_records,
    output_records,
    records_after,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.model.stream import Stream

VERSION = f"{penstock.__version__}-spark-{pyspark.__version__}"


@dataclass(frozen=True)
class Kind:
    """A kind of stream.

    Attributes:
        project: The folder of the project that has the stream.
        file: The file of cases, in its `tests/streams`.
        case: The case.
        steps: How many steps of it are run; None for all. The last one is what comes after the checkpoint.
    """

    project: str
    file: str
    case: str
    steps: int | None = None

    def read(self) -> StreamCase:
        """The case, with a clock of its own: where it has none, the time of its last record."""
        case = read_cases(PROJECT / self.project / "tests" / "streams" / self.file).cases[self.case]
        steps = case.steps[: self.steps]
        clock = case.clock or max(one.timestamp or 0 for step in steps for one in step.send)
        return case.model_copy(update={"steps": steps, "clock": clock})


KINDS = {
    "stateless": Kind("tests/checkpoints", "kinds.yaml", "stateless"),
    "several-outputs": Kind("tests/examples", "examples.yaml", "sorted sales"),
    "final-windows": Kind("tests/checkpoints", "kinds.yaml", "final windows"),
    "sliding-windows": Kind("tests/checkpoints", "kinds.yaml", "sliding windows"),
    "session-windows": Kind("tests/checkpoints", "kinds.yaml", "session windows"),
    "sql-windows": Kind("tests/checkpoints", "kinds.yaml", "windows in SQL"),
    "updates": Kind("tests/checkpoints", "kinds.yaml", "updates"),
    "table-join": Kind("tests/examples", "examples.yaml", "towns", 4),
    "inner-join": Kind("tests/checkpoints", "kinds.yaml", "inner join"),
    "left-outer-join": Kind("tests/examples", "examples.yaml", "paid orders", 5),
    "deduplication": Kind("tests/examples", "examples.yaml", "clicks once", 3),
    "sessions-in-hours": Kind("tests/examples", "examples.yaml", "visits", 4),
    "timers": Kind("tests/examples", "examples.yaml", "silences", 3),
    "python-fold": Kind("tests/checkpoints", "kinds.yaml", "fold in Python"),
    "sql-fold": Kind(".", "presence.yaml", "a walk in counts"),
}


class CheckpointMaker:
    """Makes checkpoints with one session and one broker."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark, self._bootstrap, self._folder = spark, bootstrap, folder

    def make(self, kind: Kind, target: Path) -> SavedCheckpoint:
        """Make the checkpoint of a kind, with its history, in a new folder."""
        case, project = kind.read(), (PROJECT / kind.project).resolve()
        stream = declared_stream(project, case.streams[0])
        *first, last = case.steps
        assert case.clock, "Kind.read has given it one"
        before_ms = next((step.clock for step in reversed(first) if step.clock), case.clock)
        late = sum(step.late for step in first)
        read, written = self._run(case.model_copy(update={"steps": first}), project, stream, "first")
        marker = read_commit_marker(stream.name, self._bootstrap)
        all_read, all_written = self._run(case, project, stream, "whole")
        rest = records_after(all_written, written)
        assert Counter(all_written) == Counter([*written, *rest]), "both runs write the same"
        history = History(
            project=kind.project,
            stream=stream.name,
            topics={topic.name: case.topics.get(topic.name, topic.partitions) for topic in stream.topics()},
            marker=marker,
            before=Chapter(before_ms, late, tuple(read), tuple(written)),
            after=Chapter(last.clock or before_ms, last.late, tuple(r for r in all_read if r not in read), rest),
        )
        target.mkdir(parents=True)
        (target / HISTORY).write_text(history.text())
        _pack(self._folder / "first", stream.name, target / ARCHIVE)
        return SavedCheckpoint(target)

    def _run(
        self, case: StreamCase, project: Path, stream: Stream, name: str
    ) -> tuple[Sequence[Record], Sequence[Record]]:
        """Run a case; the records that it read and wrote."""
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        run_case(case, "stream", project, self._spark, self._bootstrap, folder)
        records = input_records(stream, self._bootstrap)
        for topic, partition in {(one.topic, one.partition) for one in records}:
            offsets = [one.offset for one in records if (one.topic, one.partition) == (topic, partition)]
            assert offsets == list(range(len(offsets))), f"{topic}[{partition}] has gaps, which cannot be sent again"
        return records, output_records(stream, self._bootstrap)


def _pack(folder: Path, name: str, target: Path) -> None:
    """Pack a checkpoint without owners and times."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(target, "w:xz", preset=9) as archive:
        for path in sorted([folder / name, *(folder / name).rglob("*")]):
            archive.add(path, path.relative_to(folder), recursive=False, filter=plain)


def main(names: Sequence[str]) -> None:
    kinds = {name: KINDS[name] for name in names or KINDS}
    if saved := [name for name in kinds if (BANK / VERSION / name).exists()]:
        sys.exit(
            f"error: tests/checkpoints/{VERSION} has {', '.join(saved)}; what a released version left stays as it is"
        )
    # Checkpoints name the place where they were written, which is no machine's here.
    place = patch.object(ownership, "location", lambda path: f"bank:/{Path(path).name}")
    with TemporaryDirectory(prefix="penstock-bank-") as home, patch.dict(os.environ, {"PENSTOCK_HOME": home}):
        config = {"log.retention.check.interval.ms": str(24 * 3_600_000)}
        with heartbeat_secret(), place, spark_session(QUICK) as spark:
            with Broker(home=settings().home / "broker", port=free_port(2), config=config) as broker:
                maker = CheckpointMaker(spark, broker.bootstrap, settings().home)
                for name, kind in kinds.items():
                    made = maker.make(kind, BANK / VERSION / name)
                    size = sum(path.stat().st_size for path in made.folder.iterdir())
                    print(f"{made}: {size:,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
