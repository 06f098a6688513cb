"""What a stream is: a pure transform and the declaration beside it.

A stream file holds three things::

    RECEIPT = "environment STRING NOT NULL, metric STRING NOT NULL, value DOUBLE NOT NULL, timestamp BIGINT NOT NULL"

    def transform(receipts: DataFrame) -> DataFrame: ...

    STREAM = Stream(name="minutes", app="metrics", inputs={"receipts": Input(...)}, transform=transform, ...)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.checks.stream_checks import kinds_fit, no_loop, numbers_fit
from penstock.model.declaration import Kind, Place, check_name, here
from penstock.model.input import Input, Table
from penstock.model.output import Beside, Output, TopicOutput
from penstock.model.output_mode import Each, Joined, Promise
from penstock.model.topic import ASIDE, COMMITS, CREATE, CREATE_FOR_SINK, POSITIONS, Topic, beside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TAG = "output"


@dataclass(frozen=True)
class Stream:
    """A stream as declared; the engine turns it into one Spark query.

    name: unique; names the checkpoint, the transactional id and consumer group `penstock.<name>`, and the log lines.
    app: the Spark application it runs in; several streams share one.
    inputs: by name; the transform's parameters carry the same names.
    transform: a pure function from the inputs' frames to the frame of rows; runs on a stream and in a test alike.
    output: where the transform's rows go. Or several by tag: then each row says in its column `output STRING` which
        one it is for, and each output takes its own columns of it.
    promise: what the rows are and when they come; it chooses Spark's output mode and the watermark.
    shuffle_partitions: pinned by the checkpoint, so declared once and kept.
    every: seconds between batches; 0 takes a batch as soon as there is something to read.
    max_records: what a batch takes at most, of each partition in proportion to what waits there; 0 for all there is.
        The watermark waits until a batch has read to the end, so nothing that waits becomes late.
    poison: how many records that make their batch fail are put aside in a row, of one batch and those right behind it,
        and how many rows that their output does not take; beyond that the stream is blocked.
    steps: how many stateful steps the transform has, where it is not as many as the promise says.
    runs: whether it is run at all; one that is not is declared only, and its topics are there for others.

    DeclarationError, with the way out, if it cannot be kept: names, inputs and outputs that do not fit, or what Spark
    cannot do in one query.
    """

    name: str
    app: str
    inputs: Mapping[str, Input | Table]
    transform: Callable[..., DataFrame]
    output: Output | Mapping[str, Output]
    promise: Promise
    shuffle_partitions: int = 1
    every: float = 0.0
    max_records: int = 0
    poison: int = 100
    steps: int | None = None
    runs: bool = True
    # What a declaration of before 0.2 said here.
    key: InitVar[object] = None
    value: InitVar[object] = None
    keep_late: InitVar[object] = None
    where: str = field(default_factory=here, init=False, compare=False, repr=False)

    def __post_init__(self, key: object, value: object, keep_late: object) -> None:
        self._of_today(key, value, keep_late)
        check_name("stream", self.name)
        check_name("app", self.app)
        kinds_fit(self)
        numbers_fit(self)
        self._inputs_fit()
        self._outputs_fit()
        if self.stateful_steps > 1 and self.promise.mode == "update":
            raise DeclarationError(
                f"stream {self.name} has {self.stateful_steps} stateful steps and promises updates, which Spark cannot "
                "do in one query",
                hint="promise Final, or two streams with a topic between: the first writes absolute values by key, "
                "the second reads them",
            )

    def _of_today(self, key: object, value: object, keep_late: object) -> None:
        given = {"key": key, "value": value}
        ways = []
        if isinstance(self.output, Topic):
            columns = ", ".join(f"{name}={'...' if said is None else repr(said)}" for name, said in given.items())
            ways.append(f"output=TopicOutput(Topic({self.output.name!r}), {columns})")
        elif key is not None or value is not None:
            ways.append("leave key and value out: an output says itself which columns it takes")
        if keep_late is not None:
            ways.append('Input(..., late="keep") on each input whose late records are to be kept, and no keep_late')
        if ways:
            old = {**given, "keep_late": keep_late}
            said = [f"output={type(self.output).__name__}", *(f"{k}={v!r}" for k, v in old.items() if v is not None)]
            raise DeclarationError(
                f"stream {self.name} is declared as versions before 0.2 had it",
                got=", ".join(said),
                hint="; ".join(ways),
            )

    def _inputs_fit(self) -> None:
        if not self.sources:
            hint = "give inputs={'name': Input(...)}: tables alone make no batch" if self.inputs else ""
            raise DeclarationError(f"stream {self.name} has no input", hint=hint or "give inputs={'name': Input(...)}")
        wanted = list(inspect.signature(self.transform).parameters)
        if wanted != list(self.inputs):
            raise DeclarationError(
                f"stream {self.name}: the transform's parameters are not its inputs",
                got=f"transform({', '.join(wanted)}) with inputs {', '.join(self.inputs)}",
                hint="name and order both alike",
            )
        if self.max_records and self.promise.due:
            raise DeclarationError(
                f"stream {self.name} waits for the clock, so its batches must read to the end of all partitions",
                got=f"max_records={self.max_records}",
                hint="leave it out",
            )
        if self.promise.due and (patterns := [given.pattern for given in self.sources.values() if given.pattern]):
            raise DeclarationError(
                f"stream {self.name} waits for the clock, and topics of a pattern get no heartbeats, so what was last "
                "would wait for ever",
                got=", ".join(patterns),
                hint="name each topic in an input of its own and unite them, or promise Updates",
            )
        if not isinstance(self.promise, Each) and (far := [i.source for i in self.sources.values() if i.ahead is None]):
            raise DeclarationError(
                f"stream {self.name} believes every time, and keeps state that times end",
                got=f"ahead=None for {', '.join(far)}",
                hint="say how far an event time may lie in the future: ahead=timedelta(minutes=5)",
            )
        read = [given.source for given in self.inputs.values()]
        if twice := sorted(table.source for table in self.tables.values() if read.count(table.source) > 1):
            raise DeclarationError(
                f"stream {self.name} has a table of a topic that it reads once more",
                got=", ".join(dict.fromkeys(twice)),
                hint="give the table once and join it as often as is needed; of a topic's own records the newest value "
                "is the record itself",
            )
        if self.stateful_steps < self.promise.steps or (isinstance(self.promise, Each) and self.stateful_steps):
            raise DeclarationError(
                f"stream {self.name} promises {type(self.promise).__name__}, which means "
                + ("no state" if isinstance(self.promise, Each) else "state"),
                got=f"steps={self.steps}",
                hint="leave steps out, or take the promise that fits: Each has none, all others have one step or more",
            )
        if isinstance(self.promise, Joined) and len(self.sources) < 2:
            raise DeclarationError(
                f"stream {self.name} promises a join of streams and reads one",
                got=", ".join(self.sources),
                hint="give two inputs; for a join with a Table, which needs no state, promise Each",
            )

    def _outputs_fit(self) -> None:
        if not self.outputs:
            raise DeclarationError(f"stream {self.name} has no output", hint="give output=TopicOutput(...)")
        for output in self.outputs.values():
            if not isinstance(output, Output):
                raise DeclarationError(
                    f"stream {self.name}: this is no output", got=repr(output), hint="TopicOutput(Topic(...), ...)"
                )
            if self.promise.refines and not output.keyed:
                raise DeclarationError(
                    f"stream {self.name} updates its rows, but {output.name} takes rows without a key, so it would "
                    "keep every version of each",
                    hint="give the output a key, or promise Final",
                )
            if output.delivery == "upsert" and not output.keyed:
                raise DeclarationError(
                    f"stream {self.name}: {output.name} writes a batch again after a crash, so its rows need a key",
                    hint="give the output a key",
                )
            if not output.keyed and any(topic.compacts for topic in output.topics()):
                raise DeclarationError(
                    f"stream {self.name}: {output.name} is compacted, and takes no rows without a key",
                    hint="give the output a key",
                )
        topics = {topic.name for output in self.outputs.values() for topic in output.topics()}
        topics |= {output.aside.name for output in self.outputs.values()} - {ASIDE.name}
        read = {given.source for given in self.inputs.values()}
        if taken := sorted((topics | read) & {COMMITS.name, POSITIONS.name}):
            raise DeclarationError(
                f"stream {self.name} takes a topic of Penstock's own", got=", ".join(taken), hint="take another"
            )
        topics |= {self.late_topic} if self.keeps_late else set()
        no_loop(self, topics)
        if own := sorted(topics & {given.source for given in self.inputs.values()}):
            raise DeclarationError(
                f"stream {self.name} reads its own output",
                got=", ".join(own),
                hint="write another topic; what a stream must remember of its own rows is state: Updates, or Timed",
            )
        if taken := sorted({output.name for output in self.outputs.values()} & self.beside.keys()):
            raise DeclarationError(
                f"stream {self.name} writes its rows where its dead letters or late records go",
                got=", ".join(taken),
                hint="write another topic",
            )
        names = [output.name for output in self.outputs.values()]
        if twice := {name for name in names if names.count(name) > 1}:
            raise DeclarationError(f"stream {self.name} has two outputs to one place", got=", ".join(sorted(twice)))

    @property
    def sources(self) -> dict[str, Input]:
        """The inputs whose records make batches."""
        return {name: given for name, given in self.inputs.items() if isinstance(given, Input)}

    @property
    def tables(self) -> dict[str, Table]:
        return {name: given for name, given in self.inputs.items() if isinstance(given, Table)}

    @property
    def outputs(self) -> dict[str, Output]:
        """By tag; the tag of an only one is empty."""
        return {"": self.output} if isinstance(self.output, Output) else dict(self.output)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of its outputs, in order."""
        return tuple(output.name for output in self.outputs.values())

    @property
    def written(self) -> tuple[Topic, ...]:
        """The topics that take its rows."""
        return tuple(topic for output in self.outputs.values() for topic in output.topics())

    @property
    def kind(self) -> Kind:
        """A stream, or a sink: one with an output that is no topic."""
        return "sink" if len(self.written) < len(self.outputs) else "stream"

    @property
    def creates(self) -> str:
        """What to do where its topics are not there."""
        return CREATE_FOR_SINK if self.kind == "sink" else CREATE

    @property
    def reads(self) -> Sequence[Place]:
        given = (Place("topic" if i.topic else "pattern", i.source) for i in self.inputs.values())
        return tuple(dict.fromkeys(given))

    @property
    def writes(self) -> Sequence[Place]:
        """Where its rows go, then where records go that do not reach the transform."""
        topics = {topic.name for topic in self.written}
        rows = (Place("topic" if name in topics else "store", name) for name in self.targets)
        return (*rows, *(Place("topic", name) for name in self.beside))

    @property
    def beside(self) -> dict[str, TopicOutput]:
        """Where records go that do not reach the transform, or whose rows an output never takes, by topic; not ASIDE,
        which is everybody's."""
        topics = [rejected for given in self.inputs.values() if (rejected := given.rejected)]
        topics += [output.aside for output in self.outputs.values() if output.aside != ASIDE]
        if self.keeps_late:
            topics.append(beside(self.late_topic))
        return {topic.name: Beside(topic) for topic in topics}

    @property
    def keeps_late(self) -> bool:
        return any(given.late == "keep" for given in self.sources.values())

    def takes(self, topic: str) -> bool:
        """Whether it reads a topic, by name or by a pattern."""
        return topic in {table.topic.name for table in self.tables.values()} or self.follows(topic)

    def follows(self, topic: str) -> bool:
        """Whether records of a topic make its batches."""
        given = self.sources.values()
        return any(i.topic.name == topic if i.topic else re.fullmatch(i.pattern, topic) for i in given)

    @property
    def stateful_steps(self) -> int:
        return self.promise.steps if self.steps is None else self.steps

    def topics(self) -> Iterator[Topic]:
        """The topics that it reads and writes; a pattern names none."""
        for output in (*self.outputs.values(), *self.beside.values()):
            yield from output.topics()
        for given in self.inputs.values():
            if given.topic:
                yield given.topic
        yield COMMITS

    @property
    def group(self) -> str:
        """Its transactional id, and the consumer group under which its offsets are published."""
        return f"penstock.{self.name}"

    @property
    def late_topic(self) -> str:
        return f"{self.name}-late"
