"""Checkpoints that released versions have left, with what they had read and written, and what comes after.

`tests/checkpoints/<version>/<kind>` has two files: `checkpoint.tar.xz`, and `history.json`, a `History`.
"""

from __future__ import annotations

import json
import tarfile
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from penstock import catalog
from penstock.engine.jvm.query_clock import QueryClock
from penstock.engine.replacement import new_version
from penstock.engine.replacement.comparison import VersionComparison
from penstock.engine.replacement.replacement import Replacement, ReplacementOptions
from penstock.engine.session import session_for
from penstock.kafka.admin import admin, topic_ids
from penstock.kafka.transactions import marker_partition
from penstock.model.output import CommitMarker
from penstock.model.stream import Stream
from penstock.model.topic import COMMITS
from penstock.settings import PROJECT, settings
from penstock.testing import Record, create, read, running, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BANK = PROJECT / "tests" / "checkpoints"
ARCHIVE, HISTORY = "checkpoint.tar.xz", "history.json"


@dataclass(frozen=True)
class Chapter:
    """What a stream read and wrote.

    Attributes:
        clock: The time of its batches, epoch ms.
        late: How many records were late.
        records: Records of its inputs and tables, heartbeats included, with their offsets and timestamps.
        written: Records of its outputs, without theirs.
    """

    clock: int
    late: int
    records: tuple[Record, ...]
    written: tuple[Record, ...]


@dataclass(frozen=True)
class History:
    """What a checkpoint belongs to.

    Attributes:
        project: The folder of the stream's project, below this one.
        stream: The stream's name.
        topics: The number of partitions of each topic.
        marker: The commit marker of the last batch in the checkpoint.
        before: What had been read and written then.
        after: What is read next, and what must be written for it: as it was without a stop.
    """

    project: str
    stream: str
    topics: dict[str, int]
    marker: CommitMarker
    before: Chapter
    after: Chapter

    def text(self) -> str:
        """As JSON, with a line for each record."""
        plain = asdict(self) | {"marker": json.loads(self.marker.value())}
        for part in (plain["before"], plain["after"]):
            for name in ("records", "written"):
                part[name] = [
                    {key: value for key, value in record.items() if key != "value_bytes"} for record in part[name]
                ]
        return _lines(plain) + "\n"

    @classmethod
    def read(cls, text: str) -> History:
        """The reverse of `text`."""
        plain = json.loads(text)
        plain["marker"] = CommitMarker.read(json.dumps(plain["marker"]).encode())
        for name in ("before", "after"):
            part: dict[str, Any] = plain[name]
            rows = {of: tuple(_record(one) for one in part[of]) for of in ("records", "written")}
            plain[name] = Chapter(part["clock"], part["late"], **rows)
        return cls(**plain)


class SavedCheckpoint:
    """A checkpoint of the bank. folder: where its two files are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = History.read((folder / HISTORY).read_text())

    def __str__(self) -> str:
        return f"{self.version}/{self.kind}"

    @property
    def version(self) -> str:
        """The versions of Penstock and Spark that have made it."""
        return self.folder.parent.name

    @property
    def kind(self) -> str:
        """The kind of its stream."""
        return self.folder.name

    @property
    def stream(self) -> Stream:
        """The stream, as it is declared now."""
        return declared_stream(PROJECT / self.history.project, self.history.stream)

    def restore(self, bootstrap: str, checkpoints: Path) -> None:
        """Put back all that there was: topics and records at their offsets, the commit marker, the checkpoint.

        Args:
            bootstrap: A broker without topics. It gives topics new ids, so the marker gets these.
            checkpoints: The root of the checkpoints.
        """
        history, stream = self.history, self.stream
        topics = [replace(topic, partitions=history.topics[topic.name]) for topic in stream.topics()]
        create(bootstrap, *(topic if topic.compacted else replace(topic, config=NO_EXPIRY) for topic in topics))
        send(bootstrap, [*history.before.records, *history.before.written])
        ids = topic_ids(admin(bootstrap), history.marker.topic_ids, bootstrap)
        marker = replace(history.marker, topic_ids=ids).value().decode()
        send(bootstrap, [Record(COMMITS.name, stream.name, marker, marker_partition(COMMITS, stream.name))])
        with tarfile.open(self.folder / ARCHIVE) as archive:
            archive.extractall(checkpoints, filter="data")

    def send_rest(self, bootstrap: str) -> None:
        """Send what is read next, at its offsets: the stream must not run, as it is to read all of it in one batch."""
        send(bootstrap, self.history.after.records)

    def replace_on(self, spark: SparkSession, bootstrap: str, checkpoints: Path) -> VersionComparison:
        """Replace the stream by an equal version, whose state is made of the topics; the comparison at the cut."""
        stream, options = self.stream, ReplacementOptions()
        made = Replacement(stream, session_for(spark, stream), bootstrap, str(checkpoints), uuid.uuid4().hex, options)
        clock = SimpleNamespace(time=lambda: self.history.before.clock / 1000)
        with pytest.MonkeyPatch.context() as patch, closing(made):
            patch.setattr(new_version, "time", clock)
            made.open()
            for _ in range(MAX_STEPS):
                if made.advance() and made.is_ready:
                    made.cut()
                    assert made.progress.comparison
                    return made.progress.comparison
        raise AssertionError(f"{self} did not catch up within {MAX_STEPS} steps")

    def run_on(self, spark: SparkSession, bootstrap: str, checkpoints: Path) -> Chapter:
        """Start the stream from the restored checkpoint, let it read the rest, and say what it did."""
        clock = QueryClock(spark, self.history.after.clock)
        with running(self.stream, spark, bootstrap, checkpoints, clock=clock) as run:
            run.process_all_available()
            late = run.figures.late
        written = records_after(output_records(self.stream, bootstrap), self.history.before.written)
        return replace(self.history.after, late=late, written=written)


MAX_STEPS = 20
NO_EXPIRY = {"retention.ms": "-1"}


def saved_checkpoints() -> list[SavedCheckpoint]:
    """All of the bank, by version and kind: the newest version is the last."""

    def order(folder: Path) -> tuple[Version, Version, str]:
        penstock, _, spark = folder.parent.name.partition("-spark-")
        return Version(penstock), Version(spark), folder.name

    return [
        SavedCheckpoint(folder) for folder in sorted((path.parent for path in BANK.glob(f"*/*/{HISTORY}")), key=order)
    ]


def declared_stream(project: Path, name: str) -> Stream:
    """A stream of a project, enabled."""
    declared = catalog.load(project)
    return replace({**declared.streams, **declared.disabled}[name], enabled=True)


def input_records(stream: Stream, bootstrap: str) -> list[Record]:
    """The records of the inputs and tables of a stream."""
    topics = [one.topic for one in stream.sources.values() if one.topic]
    names = dict.fromkeys(topic.name for topic in (*topics, *(table.topic for table in stream.tables.values())))
    return [replace(record, value_bytes=None) for name in names for record in read(bootstrap, name)]


def output_records(stream: Stream, bootstrap: str) -> list[Record]:
    """The records of the outputs of a stream, without the offsets and timestamps that each run has anew."""
    written = [record for topic in stream.output_topics for record in read(bootstrap, topic.name)]
    return [replace(record, offset=-1, timestamp=0, value_bytes=None) for record in written]


def records_after(records: Sequence[Record], first: Sequence[Record]) -> tuple[Record, ...]:
    """The records behind the first ones of each partition, by key: that alone orders the rows of a batch."""
    skipped = Counter((record.topic, record.partition) for record in first)
    rest = []
    for record in records:
        partition = (record.topic, record.partition)
        if skipped[partition]:
            skipped[partition] -= 1
        else:
            rest.append(record)
    return tuple(sorted(rest, key=lambda record: (record.topic, record.partition, record.key or "")))


@contextmanager
def heartbeat_secret() -> Iterator[None]:
    """Let heartbeats of the bank be valid: they are signed by this secret."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_HEARTBEAT_SECRET", "checkpoints")
        settings.cache_clear()
        yield
    settings.cache_clear()


def _record(plain: dict[str, Any]) -> Record:
    return Record(**plain | {"headers": tuple(map(tuple, plain["headers"]))})


def _lines(value: Any, indent: str = "") -> str:
    """JSON with a line for each field and each element, but for objects within lists."""
    deeper = f"{indent} "
    if isinstance(value, dict) and value:
        inner: Iterable[str] = (f"{json.dumps(key)}: {_lines(one, deeper)}" for key, one in value.items())
        opening, closing = "{}"
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        inner = (json.dumps(one) for one in value)
        opening, closing = "[]"
    else:
        return json.dumps(value)
    return f"{opening}\n" + ",\n".join(deeper + one for one in inner) + f"\n{indent}{closing}"
