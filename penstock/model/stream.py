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
from penstock.model.checks.expectation_checks import expectations_fit
from penstock.model.checks.schema_checks import schema_fits
from penstock.model.checks.stream_checks import kinds_fit, no_loop, numbers_fit, partition_fits
from penstock.model.declaration import CatalogNode, Kind, caller_location, check_name
from penstock.model.expectation import Expectation
from penstock.model.input import Input, Table
from penstock.model.mask import mask_text
from penstock.model.output import Output, SideOutput, TopicOutput
from penstock.model.output_mode import EmitFinal, OutputMode, Stateless, StreamJoin
from penstock.model.partition import LENGTHS, PartitionBy, Partitions
from penstock.model.topic import COMMITS, CREATE, CREATE_FOR_SINK, DEAD_LETTERS, POSITIONS, Topic, side_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TAG = "output"


@dataclass(frozen=True)
class Stream:
    """A stream as declared; the engine turns it into one Spark query.

    Attributes:
        name: unique; names the checkpoint, the transactional id and consumer group `penstock.<name>`, and the log
            lines.
        app: the Spark application that runs it, with all others of the app.
        inputs: by name; the transform's parameters have the same names.
        transform: a pure function from the inputs' frames to the frame of rows. Runs on a stream and in a test alike.
        output: where the transform's rows go. Or several by tag: each row names in its column `output STRING` the tag
            of its output, and each output takes its own columns of it.
        output_mode: when rows are emitted; determines Spark's output mode and the watermark.
        shuffle_partitions: fixed by the checkpoint, so declared once and kept.
        every: seconds between batches, unless there is one input, and `max_records` of it are there before; 0 starts a
            batch as soon as there is something to read.
        max_records: upper bound of a batch, spread over the partitions in proportion to their lag; 0 for no bound. The
            watermark waits until a batch has read to the end, so no record becomes late by waiting.
        max_poison: how many records in a row may make their batch fail, in one batch and those right behind it, and how
            many rows the output may refuse. They become dead letters; beyond that the stream is blocked.
        steps: how many stateful operators the transform has, if not as many as the output mode implies.
        enabled: whether it is run. If not, it only declares its topics for others.
        partition: what Airflow gets an asset event for, once, when all its windows are closed and written: each `hour`
            or `day` (UTC), or each `window`. For EmitFinal. None: no events.
        expectations: the rules that each row is checked against before it is written.
        location: where it is declared.

    Raises:
        DeclarationError: names, inputs and outputs do not go together, or Spark cannot run it in one query.
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
    max_poison: int = 100
    steps: int | None = None
    enabled: bool = True
    partition: PartitionBy | None = None
    expectations: tuple[Expectation, ...] = ()
    location: str = field(default_factory=caller_location, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_name("stream", self.name)
        check_name("app", self.app, argument="app")
        kinds_fit(self)
        schema_fits(self)
        numbers_fit(self)
        partition_fits(self)
        self._inputs_fit()
        self._outputs_fit()
        if self.stateful_steps > 1 and self.output_mode.spark_mode == "update":
            raise DeclarationError(
                f"stream {self.name} has {self.stateful_steps} stateful steps and emits changes, which Spark cannot "
                "do in one query",
                hint="use EmitFinal, or two streams with a topic between: the first writes absolute values by key, "
                "the second reads them",
                argument="steps",
            )
        expectations_fit(self)
        if self.keeps_late_records and not self.output_mode.drops_late:
            raise DeclarationError(
                f"stream {self.name} keeps late records, and none is ever late",
                got=f'late_records="keep" with {type(self.output_mode).__name__}',
                hint="leave late_records out; or say how late a record may be: KeyedState(grace=...)",
            )

    def _inputs_fit(self) -> None:
        if not self.sources:
            hint = "give inputs={'name': Input(...)}: tables alone make no batch" if self.inputs else ""
            raise DeclarationError(
                f"stream {self.name} has no input", hint=hint or "give inputs={'name': Input(...)}", argument="inputs"
            )
        parameters = list(inspect.signature(self.transform).parameters)
        if parameters != list(self.inputs):
            raise DeclarationError(
                f"stream {self.name}: the transform's parameters are not its inputs",
                got=f"transform({', '.join(parameters)}) with inputs {', '.join(self.inputs)}",
                hint="name and order both alike",
            )
        if self.max_records and self.output_mode.heartbeat_schedule:
            raise DeclarationError(
                f"stream {self.name} waits for the clock, so its batches must read to the end of all partitions",
                got=f"max_records={self.max_records}",
                hint="leave it out",
            )
        if self.output_mode.heartbeat_schedule and (
            patterns := [input_.pattern for input_ in self.sources.values() if input_.pattern]
        ):
            raise DeclarationError(
                f"stream {self.name} waits for the clock, and topics of a pattern get no heartbeats, so what was last "
                "would wait for ever",
                got=", ".join(patterns),
                hint="name each topic in an input of its own and unite them, or use EmitChanges",
            )
        if not isinstance(self.output_mode, Stateless) and (
            unbounded := [i.source for i in self.sources.values() if i.max_ahead is None]
        ):
            raise DeclarationError(
                f"stream {self.name} accepts every event time, and has state that event time ends",
                got=f"max_ahead=None for {', '.join(unbounded)}",
                hint="say how far an event time may lie in the future: max_ahead=timedelta(minutes=5)",
            )
        read = [input_.source for input_ in self.inputs.values()]
        if duplicates := sorted(table.source for table in self.tables.values() if read.count(table.source) > 1):
            raise DeclarationError(
                f"stream {self.name} has a table of a topic that it reads once more",
                got=", ".join(dict.fromkeys(duplicates)),
                hint="give the table once and join it as often as is needed; of a topic's own records the newest value "
                "is the record itself",
            )
        if self.stateful_steps < self.output_mode.stateful_steps or (
            isinstance(self.output_mode, Stateless) and self.stateful_steps
        ):
            raise DeclarationError(
                f"stream {self.name} uses {type(self.output_mode).__name__}, which means "
                + ("no state" if isinstance(self.output_mode, Stateless) else "state"),
                got=f"steps={self.steps}",
                hint="leave steps out, or take the output mode that fits: Stateless has none, all others one or more",
                argument="steps",
            )
        if isinstance(self.output_mode, StreamJoin) and len(self.sources) < 2:
            raise DeclarationError(
                f"stream {self.name} joins streams and reads one",
                got=", ".join(self.sources),
                hint="give two inputs; for a join with a Table, which needs no state, use Stateless",
                argument="output_mode",
            )

    def _outputs_fit(self) -> None:
        if not self.outputs:
            raise DeclarationError(f"stream {self.name} has no output", hint="give output=TopicOutput(...)")
        for output in self.outputs.values():
            if not isinstance(output, Output):
                raise DeclarationError(
                    f"stream {self.name}: this is no output", got=repr(output), hint="TopicOutput(Topic(...), ...)"
                )
            if self.output_mode.updates_rows and not output.keyed:
                raise DeclarationError(
                    f"stream {self.name} updates its rows, but {output.name} takes rows without a key, so it would "
                    "keep every version of each",
                    hint="give the output a key, or use EmitFinal",
                    argument="output_mode",
                )
            if not isinstance(output, TopicOutput) and getattr(self.transform, "mask", ()) != output.mask:
                raise DeclarationError(
                    f"stream {self.name}: its transform does not mask the rows of {output.name}",
                    got=mask_text(output.mask) or "no mask of the output",
                    hint="declare a sink in sql/sinks/ with the clause MASK, or mask the output to a topic",
                )
            if self.stateful_steps and (dropped := [mask for mask in output.mask if mask.drops_column]):
                raise DeclarationError(
                    f"stream {self.name} keeps state, and Spark keeps none for a column that is not written: "
                    "to drop one would change the state",
                    got=mask_text(dropped),
                    hint="leave it out of the SELECT or the transform; or hash it",
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
        topics |= {output.dead_letter_topic.name for output in self.outputs.values()} - {DEAD_LETTERS.name}
        read = {input_.source for input_ in self.inputs.values()}
        if conflicts := sorted((topics | read) & {COMMITS.name, POSITIONS.name}):
            raise DeclarationError(
                f"stream {self.name} takes a topic of Penstock's own", got=", ".join(conflicts), hint="take another"
            )
        topics |= {self.late_topic} if self.keeps_late_records else set()
        no_loop(self, topics)
        if own_outputs := sorted(topics & {input_.source for input_ in self.inputs.values()}):
            raise DeclarationError(
                f"stream {self.name} reads its own output",
                got=", ".join(own_outputs),
                hint="write another topic; what a stream must remember of its own rows is state: EmitChanges or Timers",
            )
        if conflicts := sorted({output.name for output in self.outputs.values()} & self.side_outputs.keys()):
            raise DeclarationError(
                f"stream {self.name} writes its rows where its dead letters or late records go",
                got=", ".join(conflicts),
                hint="write another topic",
            )
        names = [output.name for output in self.outputs.values()]
        if duplicates := {name for name in names if names.count(name) > 1}:
            raise DeclarationError(
                f"stream {self.name} has two outputs to one place", got=", ".join(sorted(duplicates))
            )

    @property
    def sources(self) -> dict[str, Input]:
        """The inputs whose records make batches."""
        return {name: input_ for name, input_ in self.inputs.items() if isinstance(input_, Input)}

    @property
    def tables(self) -> dict[str, Table]:
        return {name: input_ for name, input_ in self.inputs.items() if isinstance(input_, Table)}

    @property
    def outputs(self) -> dict[str, Output]:
        """By tag; the tag of an only one is empty."""
        return {"": self.output} if isinstance(self.output, Output) else dict(self.output)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of its outputs, in order."""
        return tuple(output.name for output in self.outputs.values())

    @property
    def output_topics(self) -> tuple[Topic, ...]:
        """The topics that take its rows."""
        return tuple(topic for output in self.outputs.values() for topic in output.topics())

    @property
    def kind(self) -> Kind:
        """A stream, or a sink: one with an output that is no topic."""
        return "sink" if len(self.output_topics) < len(self.outputs) else "stream"

    @property
    def create_hint(self) -> str:
        """What to do where its topics are not there."""
        return CREATE_FOR_SINK if self.kind == "sink" else CREATE

    @property
    def reads(self) -> Sequence[CatalogNode]:
        nodes = (CatalogNode("topic" if i.topic else "pattern", i.source) for i in self.inputs.values())
        return tuple(dict.fromkeys(nodes))

    @property
    def writes(self) -> Sequence[CatalogNode]:
        """Where its rows go, then where records go that do not reach the transform."""
        topics = {topic.name for topic in self.output_topics}
        rows = (CatalogNode("topic" if name in topics else "store", name) for name in self.output_names)
        return (*rows, *(CatalogNode("topic", name) for name in self.side_outputs))

    @property
    def side_outputs(self) -> dict[str, TopicOutput]:
        """Where records go that do not reach the transform, or whose rows an output never takes, by topic; not
        DEAD_LETTERS, which is everybody's."""
        topics = [topic for input_ in self.inputs.values() if (topic := input_.dead_letter_topic)]
        topics += [
            output.dead_letter_topic for output in self.outputs.values() if output.dead_letter_topic != DEAD_LETTERS
        ]
        if self.keeps_late_records:
            topics.append(side_topic(self.late_topic))
        return {topic.name: SideOutput(topic) for topic in topics}

    @property
    def keeps_late_records(self) -> bool:
        return any(input_.late_records == "keep" for input_ in self.sources.values())

    def reads_topic(self, topic: str) -> bool:
        """Whether it reads a topic, by name or by a pattern."""
        return topic in {table.topic.name for table in self.tables.values()} or self.has_input_topic(topic)

    def has_input_topic(self, topic: str) -> bool:
        """Whether records of a topic make its batches."""
        inputs = self.sources.values()
        return any(i.topic.name == topic if i.topic else re.fullmatch(i.pattern, topic) for i in inputs)

    @property
    def stateful_steps(self) -> int:
        return self.output_mode.stateful_steps if self.steps is None else self.steps

    @property
    def partitions(self) -> Partitions | None:
        """The partitions that it declares."""
        if self.partition is None or not isinstance(self.output_mode, EmitFinal):
            return None
        if self.partition == "window":
            return Partitions(self.output_mode.window, self.output_mode.phase)
        return Partitions(LENGTHS[self.partition])

    def topics(self) -> Iterator[Topic]:
        """The topics that it reads and writes; a pattern names none."""
        for output in (*self.outputs.values(), *self.side_outputs.values()):
            yield from output.topics()
        for input_ in self.inputs.values():
            if input_.topic:
                yield input_.topic
        yield COMMITS

    @property
    def group(self) -> str:
        """Its transactional id, and the consumer group under which its offsets are published."""
        return f"penstock.{self.name}"

    @property
    def late_topic(self) -> str:
        return f"{self.name}-late"
