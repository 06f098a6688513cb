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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.checks.stream_checks import kinds_fit, no_loop, numbers_fit
from penstock.model.declaration import Kind, Place, check_name, here
from penstock.model.input import Input, Table
from penstock.model.output import Beside, Output, TopicOutput
from penstock.model.output_mode import OutputMode, Stateless, StreamJoin
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
    steps: how many stateful steps the transform has, where it is not as many as the output mode says.
    runs: whether it is run at all; one that is not is declared only, and its topics are there for others.

    DeclarationError, with the way out, if it cannot be kept: names, inputs and outputs that do not fit, or what Spark
    cannot do in one query.
    """

    name: str
    app: str
    inputs: Mapping[str, Input | Table]
    transform: Callable[..., DataFrame]
    output: Output | Mapping[str, Output]
    output_mode: OutputMode
    shuffle_partitions: int = 1
    every: float = 0.0
    max_records: int = 0
    poison: int = 100
    steps: int | None = None
    runs: bool = True
    where: str = field(default_factory=here, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_name("stream", self.name)
        check_name("app", self.app)
        kinds_fit(self)
        numbers_fit(self)
        self._inputs_fit()
        self._outputs_fit()
        if self.stateful_steps > 1 and self.output_mode.mode == "update":
            raise DeclarationError(
                f"stream {self.name} has {self.stateful_steps} stateful steps and emits changes, which Spark cannot "
                "do in one query",
                hint="use EmitFinal, or two streams with a topic between: the first writes absolute values by key, "
                "the second reads them",
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
        if self.max_records and self.output_mode.due:
            raise DeclarationError(
                f"stream {self.name} waits for the clock, so its batches must read to the end of all partitions",
                got=f"max_records={self.max_records}",
                hint="leave it out",
            )
        if self.output_mode.due and (patterns := [given.pattern for given in self.sources.values() if given.pattern]):
            raise DeclarationError(
                f"stream {self.name} waits for the clock, and topics of a pattern get no heartbeats, so what was last "
                "would wait for ever",
                got=", ".join(patterns),
                hint="name each topic in an input of its own and unite them, or use EmitChanges",
            )
        if not isinstance(self.output_mode, Stateless) and (
            far := [i.source for i in self.sources.values() if i.ahead is None]
        ):
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
        if self.stateful_steps < self.output_mode.steps or (
            isinstance(self.output_mode, Stateless) and self.stateful_steps
        ):
            raise DeclarationError(
                f"stream {self.name} has the output mode {type(self.output_mode).__name__}, which means "
                + ("no state" if isinstance(self.output_mode, Stateless) else "state"),
                got=f"steps={self.steps}",
                hint="leave steps out, or take the output mode that fits: Stateless has none, all others one or more",
            )
        if isinstance(self.output_mode, StreamJoin) and len(self.sources) < 2:
            raise DeclarationError(
                f"stream {self.name} joins streams and reads one",
                got=", ".join(self.sources),
                hint="give two inputs; for a join with a Table, which needs no state, use Stateless",
            )

    def _outputs_fit(self) -> None:
        if not self.outputs:
            raise DeclarationError(f"stream {self.name} has no output", hint="give output=TopicOutput(...)")
        for output in self.outputs.values():
            if not isinstance(output, Output):
                raise DeclarationError(
                    f"stream {self.name}: this is no output", got=repr(output), hint="TopicOutput(Topic(...), ...)"
                )
            if self.output_mode.refines and not output.keyed:
                raise DeclarationError(
                    f"stream {self.name} updates its rows, but {output.name} takes rows without a key, so it would "
                    "keep every version of each",
                    hint="give the output a key, or use EmitFinal",
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
                hint="write another topic; what a stream must remember of its own rows is state: EmitChanges or Timers",
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
        return self.output_mode.steps if self.steps is None else self.steps

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
