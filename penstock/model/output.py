"""Where a stream's rows go: what is declared (`Output`) apart from what runs (`Writer`).

The engine knows this contract and no store. A kind of store is one module: a class that says what it needs and
promises, and the writer that its `writer` names.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from penstock.errors import DeclarationError
from penstock.model.lazy_spark import F
from penstock.model.topic import ASIDE, Topic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

# Spark's own format of times stops at milliseconds.
MICROS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
JSON = {"ignoreNullFields": "false", "timestampFormat": f"{MICROS}XXX", "timestampNTZFormat": MICROS}
Offsets = Mapping[str, Mapping[int, int]]
Delivery = Literal["exactly once", "upsert"]
Columns = str | tuple[str, ...]


@dataclass(frozen=True)
class Mark:
    """The last batch written: the query's id, its number (-1 for none), and the input offsets behind it.

    ids: the broker's ids of topics that may be deleted and created again while they are read. plans: of this batch and
    of the one before, by number, as the checkpoint has them. checkpoint: which copy of it wrote this. starts: the first
    offsets of the batch, for its writers; they are not kept. writes: topics that take its rows. time: how far in event
    time the stream had come before this batch, epoch ms; None if it does not say: see `penstock.engine.query.upstream`.
    waits:     whether rows may come without records, when the clock has come far enough.
    """

    query: str
    batch: int
    offsets: Offsets
    ids: Mapping[str, str] = field(default_factory=dict)
    plans: Mapping[int, str] = field(default_factory=dict)
    checkpoint: str = ""
    starts: Offsets = field(default_factory=dict, compare=False)
    writes: Sequence[str] = ()
    time: int | None = None
    waits: bool = False

    def value(self) -> bytes:
        found = asdict(self)
        del found["starts"]
        return json.dumps(found).encode()

    @classmethod
    def read(cls, value: bytes) -> Mark:
        found = json.loads(value)
        offsets = {topic: {int(p): at for p, at in parts.items()} for topic, parts in found["offsets"].items()}
        plans = {int(batch): plan for batch, plan in found.get("plans", {}).items()}
        known = {name: found[name] for name in ("ids", "checkpoint", "time", "waits") if name in found}
        writes = tuple(found.get("writes", ()))
        return cls(found["query"], found["batch"], offsets, plans=plans, writes=writes, **known)


NOTHING = Mark("", -1, {})


class Writer(Protocol):
    """Writes a stream's batches into one store. To open it fences every earlier writer of the same stream there.

    No two calls come at once, and a batch is written before the next one is given; a store without marks is closed
    while a batch is written that does not end. Not every writer is closed: a driver may be killed. If it has `figures`,
    a dataclass of counts since it was opened, they are shown.
    """

    def committed(self) -> Mark:
        """The mark of the last batch whose rows are all in the store; NOTHING if it keeps none.

        Called once, before the first write. A batch that lies before the mark is not given again; of a store that
        keeps no mark the last batch is given again after a crash, which must change nothing.
        """

    def write(self, rows: Mapping[str, pa.Table], mark: Mark) -> int:
        """Write a batch, by output's name, with its mark; the number of rows written.

        It returns when all of it is safe. LeaseLost if a newer writer has fenced this one, Wait if the store asks to
        be left alone for a while (the same batch is given again then), Refused for rows that it can never take (the
        rest is given again at once, unless that says it is written; where a batch is to be there once, nothing of it is
        written before), any other PenstockError if it refused: the batch is given again after a pause.
        """

    def close(self) -> None:
        """Give back what was opened; a batch that is being written is not finished."""


@dataclass(frozen=True)
class Owner:
    """Whose writer is opened. name: of the stream; group: its fencing id; bootstrap: the brokers."""

    name: str
    group: str
    bootstrap: str


Opener = Callable[[Owner, Sequence["Output"]], Writer]


class Output(ABC):
    """A place for rows, as declared.

    writer: `module:callable` that opens the store: an Opener. delivery: what the store promises of a batch that is
    given twice: it is there once (`exactly once`), or it is written again over itself (`upsert`). empty_batches:
    whether a store without marks is also given batches without rows, and so knows all offsets that were read.
    """

    writer: ClassVar[str]
    delivery: ClassVar[Delivery]
    empty_batches: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the target; no two outputs of a project have the same."""

    @property
    @abstractmethod
    def keyed(self) -> bool:
        """Whether a later row of a key takes the place of an earlier one."""

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
    def aside(self) -> Topic:
        """Where rows go that it can never take: as the record they were made of, if they say its `topic STRING,
        partition INT, offset BIGINT`, else as they are, `key` and `value`."""
        return ASIDE


def open_store(outputs: Sequence[Output], owner: Owner) -> Writer:
    """The writer of outputs that share a store; earlier writers of the same owner there are fenced."""
    opener: Opener = resolve_name(outputs[0].writer)
    return opener(owner, outputs)


@dataclass(frozen=True)
class TopicOutput(Output):
    """Rows as records of a topic, written in one transaction with their mark.

    key and value: one column's name, written as text (BINARY as it is), or several, written as a JSON object with those
    fields, times to the microsecond. A NULL value is a tombstone. An empty key writes records without one.
    """

    topic: Topic
    key: Columns = ""
    value: Columns = ""

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
        for what, given in {"key": self.key, "value": self.value}.items():
            names = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else [given]
            if not all(isinstance(name, str) for name in names) or ("" in names and given) or _twice(names):
                raise DeclarationError(
                    f"the output to topic {self.topic.name}: {what} is no column, nor several",
                    got=repr(given),
                    hint=f"give {what}= one column's name, or several different ones as a tuple",
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

    def columns(self) -> list[Column]:
        key = _encoded(self.key) if self.key else F.lit(None).cast("string")
        return [key.alias("key"), _encoded(self.value).alias("value")]

    def topics(self) -> Sequence[Topic]:
        return (self.topic,)


@dataclass(frozen=True)
class Beside(TopicOutput):
    """Records of the input that did not reach the transform, as they came: dead letters and late records."""

    value: Columns = "value"


def _twice(names: Sequence[object]) -> bool:
    return len(set(names)) < len(names)


def _encoded(columns: Columns) -> Column:
    # As bytes: what is BINARY need not be text, and Arrow's text must be.
    if isinstance(columns, str):
        return F.col(columns).cast("string").cast("binary")
    return F.to_json(F.struct(*columns), JSON).cast("binary")
