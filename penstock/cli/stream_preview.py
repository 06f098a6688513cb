"""`penstock streams check`, `explain` and `preview`: a declaration before anything runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.text import Text

from penstock.cli.arguments import AsJson, milliseconds
from penstock.cli.output import clear_errors, console, echo, emit, printable_text, unknown
from penstock.cli.spark import short_session
from penstock.cli.stream_names import complete
from penstock.errors import DeclarationError, PenstockError
from penstock.model.output_mode import KeyedState
from penstock.settings import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.operations.stream_explanation import StreamExplanation
    from penstock.engine.operations.stream_preview import PreviewBatch, PreviewPlan, PreviewStart
    from penstock.model.stream import Stream

StreamOrFile = Annotated[
    str, typer.Argument(help="A stream, or a file that declares one.", autocompletion=complete, metavar="STREAM|FILE")
]
# Characters of a key or a value; examples of dead letters.
WIDTH, EXAMPLES = 400, 5


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Streams, or files; all if none is named.", metavar="[STREAM|FILE]..."),
    ] = None,
) -> None:
    """Check declarations without Spark and without a broker: clauses, schemas, topics, names, folds of topics.

    Exit code 1 if one is invalid. Spark checks the SELECT: see `penstock streams explain`.
    """
    with clear_errors():
        if names:
            for name in names:
                _check_folds(stream := find_declared(name))
                echo(f"✓ {stream.name}")
            return
        from penstock.catalog import partial_catalog

        catalog, broken = partial_catalog()
    mistakes: list[DeclarationError] = [*broken]
    for name, stream in sorted(catalog.streams.items()):
        try:
            _check_folds(stream)
            echo(f"✓ {name}")
        except DeclarationError as e:
            mistakes.append(e)
    for mistake in mistakes:
        echo(f"error: {mistake}", err=True)
    if mistakes:
        raise typer.Exit(1)


def _check_folds(stream: Stream) -> None:
    """Raises DeclarationError if DuckDB refuses a fold that reads a topic."""
    # Most streams have no fold, and need neither DuckDB nor Arrow.
    if isinstance(stream.output_mode, KeyedState):
        from penstock.engine.state.fold_check import check_folds_of_topics

        check_folds_of_topics(stream)


def explain(name: StreamOrFile, as_json: AsJson = False) -> None:
    """Show what a stream reads, keeps and writes, and what a release of it would mean for its state.

    Spark makes the plan; no broker is asked, and nothing is changed.
    """
    with clear_errors():
        stream = find_declared(name)
        with _session("explain", stream) as spark:
            from penstock.engine.operations import stream_explanation

            explanation = stream_explanation.explain(stream, spark)
    if as_json:
        emit(_data(stream, explanation))
        return
    _print_facts(stream, explanation, _with_partitions(stream, _inputs(stream)))


def preview(
    name: StreamOrFile,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME",
            help="Where to begin; without it, the newest 10,000 records of each partition are read, and what follows.",
        ),
    ] = "newest",
    length: Annotated[
        str,
        typer.Option("--for", metavar="DURATION", help="How long to go on after the first batch, as 30s or 5m."),
    ] = "30s",
    rows: Annotated[int, typer.Option("--rows", min=1, help="Stop after so many rows.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
) -> None:
    """Run a stream on live topics without a trace: print the rows that it would write, and write nothing.

    No topic, consumer group, dead letter, commit marker or checkpoint is left. Late records and those that would become
    dead letters are counted, with examples, and so are rows that violate an expectation.
    """
    with clear_errors():
        begin, seconds = _start(start), milliseconds(length) / 1000
        stream = find_declared(name)
        if other := [output.name for output in stream.outputs.values() if output.delivery != "exactly once"]:
            raise PenstockError(
                f"{stream.name} does not write to topics",
                got=", ".join(other),
                hint=f"penstock sinks dry-run {stream.name}",
            )
        with _session("preview", stream) as spark:
            from penstock.engine.operations.stream_preview import StreamPreview

            printer = _Printer(rows, as_json)
            run = StreamPreview(stream, spark, settings().bootstrap, begin, printer.take)
            with run.running() as plan:
                printer.begin(stream, plan)
                # The first batch makes Spark load and compile what later ones have.
                until = 0.0 if any(plan.reads.values()) else time.monotonic() + seconds
                try:
                    while not printer.is_full and run.wait(0.2) and (not until or time.monotonic() < until):
                        if printer.batches and not until:
                            until = time.monotonic() + seconds
                except KeyboardInterrupt:
                    pass
            printer.end()


def find_declared(name: str) -> Stream:
    """The stream of that name, or that a file declares.

    Raises:
        DeclarationError: The file declares none, or several, or is broken.
        typer.Exit: There is no such stream.
    """
    from penstock.catalog import load_partial, partial_catalog

    path = Path(name)
    is_file = path.suffix in (".sql", ".py")
    if is_file and not path.is_file():
        raise PenstockError("there is no such file", got=name, hint="name a stream, or a file that declares one")
    path = path.resolve()
    own = is_file and path.is_relative_to(settings().project)
    drafts = [path] if is_file and not own and path.suffix == ".sql" else []
    catalog, broken = load_partial(combiners=False, drafts=drafts) if drafts else partial_catalog()
    if not is_file:
        if name in catalog.streams:
            return catalog.stream(name)
        for e in broken:
            echo(f"error: {e}", err=True)
        raise unknown("stream", name, catalog.streams)
    for e in broken:
        if e.path == path:
            raise e
    declared = [
        one for one in catalog.streams.values() if one.location.startswith(f"{path}:") or one.location == str(path)
    ]
    if len(declared) != 1:
        got = ", ".join(one.name for one in declared) or "none"
        raise DeclarationError("the file does not declare one stream", got=f"{name}: {got}", hint="name the stream")
    return declared[0]


@contextmanager
def _session(command: str, stream: Stream) -> Iterator[SparkSession]:
    with short_session(command) as spark:
        from penstock.engine.session import session_for

        yield session_for(spark, stream)


def _start(text: str) -> PreviewStart:
    from penstock.engine.operations.reset_plan import parse_target

    if text == "newest":
        return "newest"
    target = parse_target(text)
    if isinstance(target, Mapping):
        raise PenstockError("a preview begins at a time", got=text, hint="earliest, latest or a time")
    return target


def _inputs(stream: Stream) -> list[str]:
    return [one.source for one in stream.inputs.values()]


def _partitions(stream: Stream) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in stream.topics()}


def _with_partitions(stream: Stream, names: Iterable[str]) -> str:
    partitions = _partitions(stream)
    return ", ".join(f"{one} ({_count(partitions[one])})" if one in partitions else one for one in names)


def _count(partitions: int) -> str:
    return f"{partitions} partition{'s' if partitions > 1 else ''}"


def _data(stream: Stream, explanation: StreamExplanation) -> dict[str, Any]:
    from penstock.catalog.listing import described_mode

    return {
        "stream": stream.name, "location": stream.location, "reads": _inputs(stream),
        "writes": list(stream.output_names), "partitions": _partitions(stream),
        "state_partitions": stream.shuffle_partitions if explanation.state else 0,
        "output_mode": described_mode(stream.output_mode),
        "expectations": [asdict(rule) for rule in stream.expectations],
        "masks": [{"output": one.name, **asdict(mask)} for one in stream.outputs.values() for mask in one.mask],
        **asdict(explanation),
    }  # fmt: skip


def _print_facts(stream: Stream, explanation: StreamExplanation, reads: str) -> None:
    data = _data(stream, explanation)
    state = [*explanation.state, f"in {_count(stream.shuffle_partitions)}"] if explanation.state else []
    facts = {
        "stream": f"{stream.name}  {stream.location}",
        "reads": reads,
        "columns": ", ".join(f"{name} {kind}" for name, kind in explanation.columns),
        "writes": _with_partitions(stream, data["writes"]),
        "mode": data["output_mode"],
        "expects": "\n".join(f"{r.name}: {r.text}: {r.on_violation}" for r in stream.expectations),
        "masks": "\n".join(mask.text for output in stream.outputs.values() for mask in output.mask),
        "state": "\n".join(state) or "none",
        "release": explanation.release,
    }
    for title, text in facts.items():
        for number, line in enumerate(text.split("\n") if text else ()):
            console().print(Text(f"{'' if number else title:<9}{line}"))


@dataclass
class _Printer:
    """Prints batches as they come. limit: the rows to print."""

    limit: int
    as_json: bool
    batches: int = 0
    rows: int = 0
    dead: int = 0
    late: int = 0
    examples: list[tuple[bytes | None, str]] = field(default_factory=list)
    violations: Counter[str] = field(default_factory=Counter)
    started_at: float = 0.0

    @property
    def is_full(self) -> bool:
        return self.rows >= self.limit

    def begin(self, stream: Stream, plan: PreviewPlan) -> None:
        self.started_at = time.monotonic()
        if self.as_json:
            self._line({**_data(stream, plan.explanation), "records": plan.reads})
            return
        reads = ", ".join(f"{topic} ({count:,} offsets now)" for topic, count in plan.reads.items())
        _print_facts(stream, plan.explanation, reads)
        echo("")

    def take(self, batch: PreviewBatch) -> None:
        from penstock.kafka.dead_letters import printable

        self.dead, self.late, self.batches = self.dead + batch.dead, self.late + batch.late, self.batches + 1
        for rule, count in batch.violations.items():
            self.violations[rule] += count
        self.examples += batch.dead_examples[: EXAMPLES - len(self.examples)]
        for output, table in batch.rows.items():
            for row in table.slice(0, self.limit - self.rows).to_pylist():
                self.rows += 1
                key, value = row.get("key"), row.get("value")
                if self.as_json:
                    self._line({"output": output, "key": _text(key), "value": _text(value)})
                else:
                    echo(f"{output}  {printable(key, WIDTH)}  {printable(value, WIDTH)}")

    def end(self) -> None:
        from penstock.kafka.dead_letters import printable

        passed = time.monotonic() - self.started_at
        if self.as_json:
            examples = [{"value": _text(value), "reason": why} for value, why in self.examples]
            counts = {"rows": self.rows, "dead": self.dead, "late": self.late, "violations": self.violations}
            self._line({**counts, "dead_examples": examples})
            return
        full = "; stopped, as that is the limit of --rows" if self.is_full else ""
        echo(f"\nrows {self.rows}, dead letters {self.dead}, late records {self.late}, in {passed:.0f} s{full}")
        for rule, violations in self.violations.items():
            echo(f"violations of {rule}: {violations}")
        for value, why in self.examples:
            echo(f"dead: {printable(value, WIDTH)}: {why}")

    def _line(self, data: Any) -> None:
        typer.echo(printable_text(orjson.dumps(data).decode()))


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")
