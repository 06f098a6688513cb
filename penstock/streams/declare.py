"""What a stream is: a pure transform and the declaration beside it. Needs neither Spark nor a broker.

A stream file holds three things::

    RECEIPT = "environment STRING NOT NULL, metric STRING NOT NULL, value DOUBLE NOT NULL, timestamp BIGINT NOT NULL"

    def transform(receipts: DataFrame) -> DataFrame: ...

    STREAM = Stream(name="minutes", app="metrics", inputs={"receipts": Input(...)}, transform=transform, ...)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class Topic:
    """A Kafka topic as declared.

    partitions: never lowered, raised by `penstock topics --apply`.
    compacted: cleanup.policy=compact with small segments, so that a restart does not read millions of dead records.
    retention: how long records of a topic that is not compacted are kept.
    beat_every: seconds between heartbeats while no window is due; 0 for none.
    widens: whether more partitions may be given to a topic that is there; its keys then change their partition.
    config: further broker settings, as Kafka names them.
    """

    name: str
    partitions: int = 4
    compacted: bool = False
    retention: timedelta = timedelta(days=7)
    beat_every: float = 60.0
    widens: bool = True
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not TOPIC_NAME.fullmatch(self.name):
            raise DeclarationError(
                "a topic's name has a character Kafka refuses",
                got=repr(self.name),
                fix="use letters, digits, '.', '_' and '-', 249 at most",
            )
        if self.partitions < 1:
            raise DeclarationError(f"topic {self.name} needs a partition", got=self.partitions, fix="use 1 or more")

    @property
    def dead_letters(self) -> str:
        """The topic that takes this topic's records which do not parse."""
        return f"{self.name}-dead-letter"

    def settings(self) -> dict[str, str]:
        """Broker settings of the topic, declared ones last."""
        if self.compacted:
            # Only closed segments are compacted: a small segment bounds what a restart reads over.
            base = {
                "cleanup.policy": "compact",
                "segment.bytes": str(16 * 1024 * 1024),
                "segment.ms": str(10 * 60 * 1000),
                "min.cleanable.dirty.ratio": "0.1",
                "max.compaction.lag.ms": str(60 * 60 * 1000),
            }
        else:
            base = {
                "cleanup.policy": "delete",
                "retention.ms": str(int(self.retention.total_seconds() * 1000)),
            }
        return {**base, **self.config}


@dataclass(frozen=True)
class Input:
    """One input of a stream.

    topic: a declared topic; or pattern: a Java regular expression over topic names, for every topic it matches,
        also those created later.
    schema: Spark DDL of the JSON value; NOT NULL marks what a record must have. Without a schema the transform gets
        the raw record: `topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY`.
    event_time: SQL over the schema's columns (or over `timestamp`, the record's own time, for a raw input), giving
        TIMESTAMP. The runner adds it as the column `event_time` and puts the watermark on it.
    ahead: how far an event time may lie in the future; a record beyond it is a dead letter, because one wrong clock
        would close every window. A raw input cannot reject; its event time is cut to the clock.
    """

    topic: Topic | None = None
    pattern: str = ""
    schema: str = ""
    event_time: str = "timestamp"
    ahead: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        if (self.topic is None) == (not self.pattern):
            raise DeclarationError("an input reads either a topic or a pattern", got=self, fix="give exactly one")
        if self.pattern:
            try:
                re.compile(self.pattern)
            except re.error as e:
                raise DeclarationError("an input's pattern is no regular expression", got=self.pattern) from e

    @property
    def source(self) -> str:
        """Topic name, or the pattern."""
        return self.topic.name if self.topic else self.pattern


@dataclass(frozen=True)
class Final:
    """Each window is emitted once, when it closes, and never refined: output mode `append`.

    window: length of the window (its slide, where windows overlap): gives the moments at which one is due.
    grace: how long after a window's end its records may still arrive; later ones are counted as late.
    """

    window: timedelta
    grace: timedelta

    @property
    def mode(self) -> Literal["append"]:
        return "append"

    @property
    def delay(self) -> timedelta:
        """The watermark's delay."""
        return self.grace

    def next_due(self, after_ms: int) -> int:
        """Epoch ms of the first moment later than `after_ms` at which a window is due (end plus grace)."""
        window = int(self.window.total_seconds() * 1000)
        grace = int(self.grace.total_seconds() * 1000)
        return ((after_ms - grace) // window + 1) * window + grace


@dataclass(frozen=True)
class Updates:
    """Every change of a window is upserted as its new absolute value: output mode `update`.

    window: length of the window, one second at least in practice; decides which record is late.
    late_by: how late a record may be and still update its window; later ones are counted as late.
    """

    window: timedelta
    late_by: timedelta

    @property
    def mode(self) -> Literal["update"]:
        return "update"

    @property
    def delay(self) -> timedelta:
        return self.late_by


@dataclass(frozen=True)
class Each:
    """Every record becomes rows by itself, without a window and without state: output mode `append`."""

    window: timedelta = timedelta(0)

    @property
    def mode(self) -> Literal["append"]:
        return "append"

    @property
    def delay(self) -> timedelta:
        return timedelta(0)


Promise = Final | Updates | Each


@dataclass(frozen=True)
class InfluxDB:
    """A database of the InfluxDB that the settings name, as an output.

    The stream's value is one line of the line protocol with its time in ms. At least once: give absolute values.
    """

    database: str

    @property
    def name(self) -> str:
        return f"influxdb:{self.database}"


@dataclass(frozen=True)
class Stream:
    """A stream as declared; the runner turns it into one Spark query.

    name: unique; names the checkpoint, the transactional id and consumer group `penstock.<name>`, and the log lines.
    app: the Spark application it runs in; several streams share one.
    inputs: by name; the transform's parameters carry the same names.
    output: where the transform's rows go, a topic or a store; key and value: one column's name, written as text, or
        several, written as a JSON object with those fields. A NULL value is a tombstone.
    shuffle_partitions: pinned by the checkpoint, so declared once and kept.
    every: seconds between batches; 0 takes a batch as soon as there is something to read.
    max_records: what a batch takes at most, of each partition in proportion to what waits there; 0 for all there is.
    keep_late: keep late records, as they came, in the topic `<name>-late`; they are counted in any case.
    """

    name: str
    app: str
    inputs: Mapping[str, Input]
    transform: Callable[..., DataFrame]
    output: Topic | InfluxDB
    key: str | tuple[str, ...]
    value: str | tuple[str, ...]
    promise: Promise
    shuffle_partitions: int = 1
    every: float = 0.0
    max_records: int = 0
    keep_late: bool = False

    def __post_init__(self) -> None:
        for what, value in (("stream", self.name), ("app", self.app)):
            if not NAME.fullmatch(value):
                raise DeclarationError(
                    f"the name of {what} {value!r} is not usable", fix="use small letters, digits and single '-'"
                )
        if not self.inputs:
            raise DeclarationError(f"stream {self.name} has no input", fix="give inputs={'name': Input(...)}")
        wanted = list(inspect.signature(self.transform).parameters)
        if wanted != list(self.inputs):
            raise DeclarationError(
                f"stream {self.name}: the transform's parameters are not its inputs",
                got=f"transform({', '.join(wanted)}) with inputs {', '.join(self.inputs)}",
                fix="name and order both alike",
            )

        if self.max_records and isinstance(self.promise, Final):
            raise DeclarationError(
                f"stream {self.name} has final windows, so its batches must read to the end of all partitions",
                got=f"max_records={self.max_records}",
                fix="leave it out",
            )
        if isinstance(self.output, InfluxDB) and (self.keep_late or any(i.schema for i in self.inputs.values())):
            raise DeclarationError(
                f"stream {self.name} writes to a store, which takes no dead letters and no late records",
                fix="read raw records (no schema), and leave out in the transform what cannot be written",
            )

    @property
    def group(self) -> str:
        """Its transactional id, and the consumer group under which its offsets are published."""
        return f"penstock.{self.name}"

    @property
    def late_topic(self) -> str:
        return f"{self.name}-late"


class _Lazy:
    """A module that is imported when first used, so that a declaration needs no Spark."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        import importlib

        return getattr(importlib.import_module(self._module), name)


F = _Lazy("pyspark.sql.functions")
