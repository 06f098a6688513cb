"""Runs a case of streams against a real broker and compares what comes out, step by step."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import catalog
from penstock.engine.checkpoint import plan_fingerprint
from penstock.engine.jvm.query_clock import QueryClock
from penstock.engine.operations.rebuild import rebuild
from penstock.engine.session import INTERPRETED, session_for
from penstock.engine.state import fold
from penstock.engine.state.restore_rules import restorable_fold
from penstock.errors import BrokerError, DeclarationError
from penstock.kafka.commit_marker import read_commit_marker
from penstock.kafka.dead_letters import HEADER_PREFIX
from penstock.model.topic import DEAD_LETTERS, Topic
from penstock.supervision.event_clock.heartbeats import HeartbeatSender
from penstock.testing.case_file import CaseStep, StreamCase, as_text
from penstock.testing.registry_values import RegistryTopics
from penstock.testing.row_diff import Row, diff
from penstock.testing.run import running
from penstock.testing.topics import Record, create, read, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.query.stream_run import StreamRun
    from penstock.model.stream import Stream


# Who waits for a query waits for its next look at the broker.
CONF = {**INTERPRETED, "spark.sql.streaming.pollingDelay": "20ms"}


class CaseFailure(AssertionError):
    """A step had another result; says which, and how it differs."""


class NotPossible(Exception):
    """A way in which a case cannot be run; says why."""


@dataclass
class CaseResult:
    """What a case did.

    Attributes:
        sent: The records, with their offsets.
        rows: All records of the output, in the order of the steps.
        dead: The number of dead letters.
        watermark: Epoch ms up to which the windows of the last stream are closed; 0 if none are.
    """

    sent: list[Record] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    dead: int = 0
    watermark: int = 0


class CaseRun:
    """Runs a case.

    Args:
        case: The case.
        streams: The declared streams, in the order of the case.
        registered: The topics whose schemas a registry keeps.
        spark: A session.
        bootstrap: A broker without topics.
        folder: An empty folder for the checkpoints.
        rebuilds: Whether the checkpoints are lost, and the state of folds is rebuilt, behind each step.
    """

    def __init__(
        self,
        case: StreamCase,
        streams: Sequence[Stream],
        registered: RegistryTopics,
        spark: SparkSession,
        bootstrap: str,
        folder: Path,
        *,
        rebuilds: bool = False,
    ) -> None:
        self._case, self._registered = case, registered
        self._spark, self._bootstrap, self._folder = spark, bootstrap, folder
        self._streams = [replace(stream, enabled=True) for stream in streams]
        self._output = case.output or self._streams[-1].output_names[0]
        self._declared = catalog.build(self._streams)
        self._rebuilt = [stream for stream in self._streams if rebuilds and self._can_rebuild(stream)]
        self._clock_ms = case.clock
        self._clock = None if case.clock is None else QueryClock(spark, case.clock)
        self._runs: list[StreamRun] = []
        self._read: dict[str, dict[int, int]] = {}
        self._offsets: dict[tuple[str, int], int] = {}
        self._result = CaseResult()
        if rebuilds and not self._rebuilt:
            raise NotPossible(f"no state can be rebuilt of {', '.join(case.streams)}: see Fold(restore_sql=...)")

    def run(self) -> CaseResult:
        """Run all steps.

        Raises:
            BrokerError: A heartbeat did not arrive.
            CaseFailure: A step had another result.
            DeclarationError: The case does not fit its streams.
        """
        create(self._bootstrap, *self._topics())
        beater = HeartbeatSender(
            self._declared.heartbeat_topics(), None, self._bootstrap, clock=lambda: (self._clock_ms or 0) / 1000
        )
        with ExitStack() as stack:
            stack.callback(beater.close)
            started = stack.enter_context(ExitStack())
            for number, step in enumerate(self._case.steps, 1):
                # The first records are there before the streams: a query that starts on empty topics has a batch
                # without records, which reads the tables sooner or later than the records of the step arrive.
                starts = step.restart or not self._runs
                before = [(0, 0)] * len(self._streams) if starts else [_counts(run) for run in self._runs]
                if starts:
                    started.close()
                with ExitStack() as held:
                    # So each stream reads all records of a step in one batch.
                    for run in () if starts else self._runs:
                        held.enter_context(run.held())
                    if step.clock is not None and self._clock is not None:
                        self._clock_ms = step.clock
                        self._clock.set(step.clock)
                    self._send(step)
                    if step.clock is not None:
                        beater.run_once()
                        for topic, why in beater.failing.items():
                            raise BrokerError(f"heartbeats of {topic} do not arrive", got=why)
                if starts:
                    self._start(started)
                for run in self._runs:
                    run.process_all_available()
                now = [_counts(run) for run in self._runs]
                late, dead = (sum(a[i] - b[i] for a, b in zip(now, before, strict=True)) for i in (0, 1))
                self._check(step, self._case.label(number), late, dead)
                self._result.watermark = max(self._result.watermark, self._runs[-1].figures.watermark or 0)
                if self._rebuilt and number < len(self._case.steps):
                    started.close()
                    self._rebuild()
                    self._start(started)
        return self._result

    def _topics(self) -> Iterator[Topic]:
        """The topics as they are declared, except for what the case says. Old records are not deleted for their age."""
        longest = str(2**63 - 1)
        keep = {"min.compaction.lag.ms": longest, "max.compaction.lag.ms": longest}
        declared = dict(self._declared.topics)
        for name in self._case.topics:
            if name not in declared and not any(stream.reads_topic(name) for stream in self._streams):
                raise DeclarationError(
                    f"{self._case.label(1)}: no stream of the case reads or writes this topic",
                    got=name,
                    hint=", ".join(sorted(declared)),
                )
            declared.setdefault(name, Topic(name))
        for topic in declared.values():
            config = {**topic.config, **(keep if topic.compacts else {}), "retention.ms": "-1"}
            yield replace(topic, partitions=self._case.topics.get(topic.name, topic.partitions), config=config)

    def _start(self, started: ExitStack) -> None:
        self._runs = [
            started.enter_context(
                running(one, self._spark, self._bootstrap, self._folder, clock=self._clock, conf=CONF)
            )
            for one in self._streams
        ]

    def _send(self, step: CaseStep) -> None:
        now = self._clock_ms if self._clock_ms is not None else int(time.time() * 1000)
        records = []
        for one in step.send:
            topic = one.topic or self._only_topic()
            offset = self._offsets.get((topic, one.partition), 0)
            self._offsets[topic, one.partition] = offset + 1
            at = now if one.timestamp is None else one.timestamp
            headers = tuple(one.headers.items())
            label = self._case.label(self._case.steps.index(step) + 1)
            value = self._registered.to_bytes(topic, one.value, label)
            text = as_text(one.value)
            records.append(Record(topic, as_text(one.key), text, one.partition, offset, at, headers, value))
        # A record of a table makes no batch: one that comes after the batch of the step would not be read in the step.
        tables = {table.topic.name for stream in self._streams for table in stream.tables.values()}
        for is_table in (True, False):
            if part := [record for record in records if (record.topic in tables) is is_table]:
                send(self._bootstrap, part)
        self._result.sent += records

    def _only_topic(self) -> str:
        first = self._streams[0]
        topics = {source.topic.name for source in first.sources.values() if source.topic}
        if len(topics) != 1:
            raise DeclarationError(
                f"{self._case.label(1)}: a record does not say its topic, and stream {first.name} has not one input",
                got=", ".join(sorted(topics)),
                hint="give each record `topic`",
            )
        return topics.pop()

    def _check(self, step: CaseStep, label: str, late: int, dead: int) -> None:
        rows = [(record.key, self._registered.text(record.value_bytes)) for record in self._new_records(self._output)]
        self._result.rows += rows
        self._result.dead += dead
        expected = [
            (as_text(row.key), self._registered.expected(row.value, [self._output], label)) for row in step.expect
        ]
        inputs = [one.topic.name for stream in self._streams for one in stream.sources.values() if one.topic]
        outputs = [name for stream in self._streams for name in stream.output_names]
        compare(f"{label}: records of {self._output}", rows, expected)
        compare(
            f"{label}: dead letters, with their reasons",
            [self._with_header(record, "reason") for record in (self._new_dead_letters() if dead else ())],
            [(self._registered.expected(one.value, [*inputs, *outputs], label), one.reason) for one in step.dead],
            "value",
        )
        if dead != (wanted := len(step.dead) + step.dead_counted):
            raise CaseFailure(f"{label}: {dead} dead letters were counted, not {wanted}")
        if late != step.late:
            raise CaseFailure(f"{label}: {late} records were late, not {step.late}")
        compare(
            f"{label}: late records that are kept, with late_ms",
            [
                self._with_header(r, "late-ms")
                for stream in self._streams
                if stream.keeps_late_records and late
                for r in self._new_records(stream.late_topic)
            ],
            [(self._registered.expected(one.value, inputs, label), str(one.late_ms)) for one in step.kept],
            "value",
        )

    def _new_records(self, topic: str) -> list[Record]:
        """What was written to a topic since the last call."""
        next_offsets = self._read.setdefault(topic, {})
        records = read(self._bootstrap, topic, next_offsets)
        next_offsets.update({record.partition: record.offset + 1 for record in records})
        return records

    def _new_dead_letters(self) -> list[Record]:
        """Records of inputs, and rows that an output or an expectation refuses."""
        of_inputs = {name for stream in self._streams for name in stream.side_outputs if name != stream.late_topic}
        letters = [record for topic in sorted(of_inputs) for record in self._new_records(topic)]
        # Those of all streams that have no topic of their own; rows of other streams that are late are there too.
        shared = self._new_records(DEAD_LETTERS.name)
        return letters + [record for record in shared if f"{HEADER_PREFIX}late-ms" not in dict(record.headers)]

    def _with_header(self, record: Record, name: str) -> Row:
        return self._registered.text(record.value_bytes), dict(record.headers)[f"{HEADER_PREFIX}{name}"]

    def _can_rebuild(self, stream: Stream) -> bool:
        """Whether the state of a stream can be rebuilt as it was: all that its fold knows, except for late records."""
        session = session_for(self._spark, stream)
        with fold.use_checkpoint(stream, f"{self._folder}/{stream.name}") as context:
            plan_fingerprint.build_frame(
                session, stream, self._bootstrap, plan_fingerprint.empty_tables(stream, session)
            )
        try:
            of_inputs = not restorable_fold(stream, context).restore_sql
        except DeclarationError:
            return False
        if of_inputs and any(step.late for step in self._case.steps):
            raise NotPossible(f"a state that is rebuilt from the inputs of {stream.name} has the late records too")
        return True

    def _rebuild(self) -> None:
        for stream in self._rebuilt:
            shutil.rmtree(self._folder / stream.name)
            # Before its first batch a stream begins anew.
            if read_commit_marker(stream.name, self._bootstrap).batch >= 0:
                session = session_for(self._spark, stream)
                rebuild(stream, session, self._bootstrap, str(self._folder), lambda: None)


def _counts(run: StreamRun) -> tuple[int, int]:
    """How many records were late, and how many became dead letters."""
    return run.figures.late, run.figures.dead


def compare(label: str, actual: list[Row], expected: list[Row], title: str = "key") -> None:
    """CaseFailure if rows differ. title: what the first part of a row is."""
    if lines := diff(actual, expected, title):
        raise CaseFailure(f"{label}\n\n{lines}")
