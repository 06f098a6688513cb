"""Where a stream's rows go: the declaration (`Output`) and what writes them at run time (`Writer`).

The engine knows this contract and no store. A kind of store is one module: a class that says what it needs and
guarantees, and the writer that its `writer` names.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from penstock.errors import DeclarationError, optional_packages
from penstock.model.lazy_spark import F
from penstock.model.mask import Mask, check_masks_fit, check_not_masked, dropped_columns
from penstock.model.topic import DEAD_LETTERS, Topic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

# Spark's default format of times stops at milliseconds.
MICROS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
JSON = {"ignoreNullFields": "false", "timestampFormat": f"{MICROS}XXX", "timestampNTZFormat": MICROS}
Offsets = Mapping[str, Mapping[int, int]]
Delivery = Literal["exactly once", "upsert"]
Columns = str | tuple[str, ...]


@dataclass(frozen=True)
class CommitMarker:
    """The last batch that is written.

    Attributes:
        query: Spark's id of the query.
        batch: number of the batch, -1 for none.
        offsets: the input offsets behind it, by topic and partition.
        topic_ids: the broker's ids of topics that may be deleted and created again while they are read.
        plans: the offset log's entries of this batch and of the one before, by number.
        checkpoint: id of the copy of the checkpoint that wrote this.
        start_offsets: the first offsets of the batch, for its writers; not stored.
        output_topics: topics that take its rows.
        event_time: how far event time had come before this batch, epoch ms; None if the stream does not say: see
            `penstock.engine.query.upstream`.
        waits_for_clock: whether rows may follow without records, once event time has come far enough.
        reset_id: id of the reset since which the windows are computed again; "" for none.
        reset_floor: epoch ms; windows that begin before were left as they are by that reset. None for no limit.
        earlier_resets: those before it, oldest first: id, floor, and the watermark, epoch ms, that each came to.
    """

    query: str
    batch: int
    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    plans: Mapping[int, str] = field(default_factory=dict)
    checkpoint: str = ""
    start_offsets: Offsets = field(default_factory=dict, compare=False)
    output_topics: Sequence[str] = ()
    event_time: int | None = None
    waits_for_clock: bool = False
    reset_id: str = ""
    reset_floor: int | None = None
    earlier_resets: Sequence[tuple[str, int | None, int]] = ()

    def value(self) -> bytes:
        fields = asdict(self)
        del fields["start_offsets"]
        return json.dumps(fields).encode()

    @property
    def watermark_ms(self) -> int:
        """The watermark of the batch, epoch ms, 0 if there is none: all windows that end then or before are written.

        Spark emits them with the batch, and drops the records for them in the next one.
        """
        metadata = self.plans.get(self.batch, "").partition("\n")[2].partition("\n")[0]
        return int(json.loads(metadata or "{}").get("batchWatermarkMs", 0))

    @classmethod
    def read(cls, value: bytes) -> CommitMarker:
        fields = json.loads(value)
        fields["offsets"] = {t: {int(p): at for p, at in parts.items()} for t, parts in fields["offsets"].items()}
        fields["plans"] = {int(batch): plan for batch, plan in fields["plans"].items()}
        fields["output_topics"] = tuple(fields["output_topics"])
        fields["earlier_resets"] = tuple(map(tuple, fields.get("earlier_resets", ())))
        return cls(**fields)


NO_COMMIT = CommitMarker("", -1, {})


class Writer(Protocol):
    """Writes a stream's batches into one store. To open it fences every earlier writer of the same stream there.

    Calls do not overlap, and a batch is written before the next one is given. A store without commit markers may be
    closed while a batch is written that does not end. Not every writer is closed: a driver may be killed. If it has
    `counters`, a dataclass of counts since it was opened, they are reported.
    """

    def committed(self) -> CommitMarker:
        """The marker of the last batch whose rows are all in the store; NO_COMMIT if it keeps none.

        Called once, before the first write. A batch before the marker is not given again. Of a store that keeps no
        marker the last batch is given again after a crash, which must change nothing.
        """

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:
        """Write a batch with its commit marker; return when all of it is durable.

        Args:
            rows: by the output's name; an output without rows may be missing; all are if the marker alone is written.
            mark: of the batch.

        Returns:
            The number of rows written.

        Raises:
            LeaseLost: a newer writer has fenced this one.
            Wait: the store asks to back off; the same batch is given again then.
            Refused: rows that the store can never accept. The rest is given again at once, unless the error says that
                it is written; where a batch is to be there once, nothing of it is written before.
            PenstockError: any other failure; the batch is given again after a pause.
        """

    def close(self) -> None:
        """Release resources; a batch that is being written is not finished."""


@dataclass(frozen=True)
class WriterOwner:
    """Whose writer is opened.

    Attributes:
        name: of the stream.
        group: identifies the stream to its stores; a newer writer of the same group fences the older ones.
        bootstrap: the brokers.
    """

    name: str
    group: str
    bootstrap: str


Opener = Callable[[WriterOwner, Sequence["Output"]], Writer]


class Output(ABC):
    """A target of rows, as declared.

    Attributes:
        writer: `module:callable` that opens the store: an Opener.
        delivery: what the store guarantees of a batch that is given twice: it is there once (`exactly once`), because
            its writer keeps the commit marker with the rows and returns it from `committed`; or it is written over
            itself (`upsert`). Only a store of the second kind has a thread of its own, so that it may be slow.
        reader: `module:callable` that reads back the records of a topic: see `penstock.model.record_reader`. Empty for
            a store that keeps no records as they were.
        empty_batches: whether a store without commit markers is also given batches without rows, and so knows all
            offsets that were read.
        versions: `module:callable` that opens what the store has under its name, to build that anew beside itself: a
            `penstock.model.target_versions.VersionsOpener`. Empty if the store cannot.
        mask: columns that are masked before the writer gets them. A dead letter of a row names the record and does not
            hold it.
    """

    writer: ClassVar[str]
    delivery: ClassVar[Delivery]
    reader: ClassVar[str] = ""
    empty_batches: ClassVar[bool] = False
    versions: ClassVar[str] = ""
    mask: tuple[Mask, ...] = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the target; unique among the outputs of a project."""

    @property
    @abstractmethod
    def keyed(self) -> bool:
        """Whether a later row of a key replaces an earlier one."""

    @property
    @abstractmethod
    def store(self) -> Hashable:
        """Outputs of one stream with the same store share a writer."""

    @abstractmethod
    def columns(self) -> list[Column]:
        """What the writer gets of each row: expressions over the transform's columns, each with an alias."""

    def topics(self) -> Sequence[Topic]:
        """Topics that it needs."""
        return ()

    @property
    def replacement_obstacle(self) -> str:
        """Why what it writes cannot be built anew beside itself; empty if it can."""
        return "" if self.versions else f"{self.name} is in a store that shows nothing else under a name at once"

    @property
    def dead_letter_topic(self) -> Topic:
        """Where rows go that the store can never accept: as the record they were made of, if they name it by `topic
        STRING, partition INT, offset BIGINT`, else as they are, `key` and `value`."""
        return DEAD_LETTERS


def open_store(outputs: Sequence[Output], owner: WriterOwner) -> Writer:
    """The writer of outputs that share a store; earlier writers of the same owner there are fenced."""
    with optional_packages():
        opener: Opener = resolve_name(outputs[0].writer)
    return opener(owner, outputs)


@dataclass(frozen=True)
class TopicOutput(Output):
    """Rows as records of a topic, written in one transaction with their commit marker.

    Attributes:
        topic: the target.
        key: one column's name, written as text (BINARY as it is), or several, written as a JSON object with those
            fields, times to the microsecond. Empty: records without a key.
        value: columns as for the key. NULL is a tombstone.
        mask: columns of the key or the value that are masked.
    """

    topic: Topic
    key: Columns = ""
    value: Columns = ""
    mask: tuple[Mask, ...] = ()

    writer: ClassVar[str] = "penstock.kafka.topic_writer:open_topics"
    delivery: ClassVar[Delivery] = "exactly once"

    def __post_init__(self) -> None:
        if not isinstance(self.topic, Topic):
            raise DeclarationError(
                "a TopicOutput needs a Topic", got=self.topic, hint="TopicOutput(Topic('name'), ...)"
            )
        if not self.value:
            raise DeclarationError(
                f"the output to topic {self.topic.name} has no value",
                hint="give value= one column's name, or several as a tuple",
            )
        for what, columns in {"key": self.key, "value": self.value}.items():
            names = (
                [columns]
                if isinstance(columns, str)
                else list(columns)
                if isinstance(columns, list | tuple)
                else [columns]
            )
            if not all(isinstance(name, str) for name in names) or ("" in names and columns) or _repeats(names):
                raise DeclarationError(
                    f"the output to topic {self.topic.name}: {what} names neither one column nor several",
                    got=repr(columns),
                    hint=f"give {what}= one column's name, or several different ones as a tuple",
                )
        self._check_masks()

    def _check_masks(self) -> None:
        what, key, value = f"the output to topic {self.topic.name}", names_of(self.key), names_of(self.value)
        check_masks_fit(what, self.mask, tuple(dict.fromkeys((*key, *value))))
        roots = {mask.root for mask in self.mask}
        for name in (*key, *value):
            # A column by another name would be written as it is.
            is_other = bool(roots) and name.lower() not in roots
            if is_other and ("*" in name or name.replace("`", "").partition(".")[0].lower() in roots):
                hint = "give each value a column of its own, and name it plainly"
                raise DeclarationError(f"{what}: this may be a masked column", got=name, hint=hint)
        dropped = [mask for mask in self.mask if mask.drops_column]
        check_not_masked(what, dropped, [("a column of the key", name) for name in key], "hash or encrypt it")
        left = {name.lower() for name in value} - dropped_columns(self.mask)
        if not left:
            raise DeclarationError(
                f"{what}: no column of the value is left",
                got=", ".join(mask.text for mask in dropped),
                hint="keep a column, or take another value",
            )

    @property
    def name(self) -> str:
        return self.topic.name

    @property
    def keyed(self) -> bool:
        return bool(self.key)

    @property
    def store(self) -> Hashable:
        return "kafka"

    def columns(self, masked: Mapping[str, Column] | None = None) -> list[Column]:
        """Key and value of records.

        Args:
            masked: The expressions of masked columns, by name in lower case.
        """
        dropped = dropped_columns(self.mask)
        if unmasked := {mask.root for mask in self.mask} - dropped - (masked or {}).keys():
            raise DeclarationError(f"the output to topic {self.topic.name} is not masked", got=", ".join(unmasked))
        key = _encoded(self.key, dropped, masked or {}) if self.key else F.lit(None).cast("string")
        return [key.alias("key"), _encoded(self.value, dropped, masked or {}).alias("value")]

    def topics(self) -> Sequence[Topic]:
        return (self.topic,)


@dataclass(frozen=True)
class SideOutput(TopicOutput):
    """Records that did not reach the transform, unchanged: dead letters and late records."""

    value: Columns = "value"


def names_of(columns: Columns) -> tuple[str, ...]:
    """The names of the columns of a key or a value."""
    return tuple(filter(None, (columns,) if isinstance(columns, str) else columns))


def _repeats(names: Sequence[object]) -> bool:
    return len(set(names)) < len(names)


def _encoded(columns: Columns, dropped: Set[str], masked: Mapping[str, Column]) -> Column:
    # As bytes: what is BINARY need not be text, and Arrow's text must be.
    if isinstance(columns, str):
        return masked.get(columns.lower(), F.col(columns)).cast("string").cast("binary")
    kept = [name for name in columns if name.lower() not in dropped]
    named = [masked[name.lower()].alias(name) if name.lower() in masked else F.col(name) for name in kept]
    return F.to_json(F.struct(*named), JSON).cast("binary")
