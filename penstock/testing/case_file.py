"""Cases of streams in YAML: `tests/streams/<name>.yaml`, as docs/stream-tests.md describes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, PrivateAttr, ValidationError

from penstock.errors import DeclarationError
from penstock.testing.strict_yaml import YamlDocument, epoch_ms


def _record_time(time: object) -> int:
    """Epoch ms of a time that a record may have."""
    at = epoch_ms(time)
    if at <= 0:
        raise ValueError("a record's time is after 1970-01-01: Kafka's client takes 0 for now")
    return at


RecordTime = Annotated[int, BeforeValidator(_record_time)]
Count = Annotated[int, Field(ge=0)]
Way = Literal["stream", "recompute", "rebuild"]
# Of the file, where a case does not say it.
DEFAULTS = ("streams", "topics", "output", "clock", "ways")


class CaseModel(BaseModel):
    """A part of a file of cases. Unknown keys and other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SentRecord(CaseModel):
    """A record to send.

    Attributes:
        value: A mapping or a number is sent as JSON, a text as it is; null is a tombstone.
        key: As `value`; null is no key.
        topic: Where to; the only input of the first stream that is no table, if it is left out.
        partition: Its partition.
        timestamp: Its own timestamp; the clock, if it is left out.
        headers: Its headers.
    """

    value: JsonValue
    key: JsonValue = None
    topic: str | None = None
    partition: Count = 0
    timestamp: RecordTime | None = None
    headers: dict[str, str] = {}


class ExpectedRecord(CaseModel):
    """A record of an output. key, value: as they are sent."""

    value: JsonValue
    key: JsonValue = None


class ExpectedDeadLetter(CaseModel):
    """A dead letter. reason: why, whole."""

    value: JsonValue
    reason: str


class ExpectedLateRecord(CaseModel):
    """A late record that is kept. late_ms: by how much its window was closed before it."""

    value: JsonValue
    late_ms: int


class CaseStep(CaseModel):
    """A step: the clock moves, records and due heartbeats are sent, the streams run, and all that is new is compared.

    Attributes:
        about: What it shows.
        restart: Whether the streams are stopped before the records are sent, and started from their checkpoints behind
            them.
        send: Records.
        clock: The time to which the clock moves; heartbeats that are due then are sent behind the records.
        expect: All new records of the output.
        dead: All new dead letters.
        dead_counted: How many more there were, of inputs that only count them.
        late: How many records were late.
        kept: All new late records that are kept.
    """

    about: str = ""
    restart: bool = False
    send: list[SentRecord] = []
    clock: RecordTime | None = None
    expect: list[ExpectedRecord] = []
    dead: list[ExpectedDeadLetter] = []
    dead_counted: Count = 0
    late: Count = 0
    kept: list[ExpectedLateRecord] = []
    _line: int = PrivateAttr(0)


class StreamCase(CaseModel):
    """A case: streams, each of which reads what the one before writes, and steps.

    Attributes:
        about: What it shows.
        streams: Names of streams; the file's name, if they are left out.
        topics: Partitions of topics that shall have others than declared, or that a stream reads by a pattern.
        output: The topic whose records are compared; the first output of the last stream, if it is left out.
        clock: The time at the start. Without it, the clock is the machine's.
        ways: How the case is run.
        markers: Of pytest, by which it can be left out.
        steps: In order.
    """

    about: str = ""
    streams: Annotated[list[str], Field(min_length=1)]
    topics: dict[str, Annotated[int, Field(ge=1)]] = {}
    output: str | None = None
    clock: RecordTime | None = None
    ways: Annotated[list[Way], Field(min_length=1)] = ["stream"]
    markers: list[str] = []
    steps: Annotated[list[CaseStep], Field(min_length=1)]
    _name: str = PrivateAttr("")
    _place: str = PrivateAttr("")

    @property
    def name(self) -> str:
        return self._name

    def label(self, number: int) -> str:
        """What a message calls a step. number: from 1."""
        step = self.steps[number - 1]
        about = f" ({step.about})" if step.about else ""
        return f"{self._place}:{step._line}: {self.name}, step {number}{about}"


class RefusedStatement(CaseModel):
    """A statement that must be refused.

    Attributes:
        sql: A stream in SQL.
        error: A part of the message.
        about: What it shows.
        name: The name of the stream, so of its file.
    """

    sql: str
    error: Annotated[str, Field(min_length=1)]
    about: str = ""
    name: str = "refused"


class ExpectedDocument(CaseModel):
    """A document that a sink writes. document: null for one that is deleted."""

    id: str
    document: dict[str, JsonValue] | None


class DocumentCase(CaseModel):
    """Records and the documents that a sink writes for them.

    Attributes:
        sink: Its name.
        send: Records; those without a topic are of the only one that it reads.
        expect: All documents, in any order.
        about: What it shows.
    """

    sink: str
    send: Annotated[list[SentRecord], Field(min_length=1)]
    expect: list[ExpectedDocument] = []
    about: str = ""


class CaseFile(CaseModel):
    """A file of cases. The first five are for cases that do not say it themselves."""

    about: str = ""
    streams: list[str] | None = None
    topics: dict[str, int] | None = None
    output: str | None = None
    clock: RecordTime | None = None
    ways: list[Way] | None = None
    cases: dict[str, StreamCase] = {}
    documents: dict[str, DocumentCase] = {}
    refused: dict[str, RefusedStatement] = {}


def read_cases(path: Path) -> CaseFile:
    """The cases of a file.

    Raises:
        DeclarationError: It is not valid; names the file and the line.
    """
    document = YamlDocument(path)
    try:
        file = CaseFile.model_validate(_with_defaults(document.data, path))
    except ValidationError as e:
        raise _explained(document, e) from e
    if not (file.cases or file.documents or file.refused):
        raise document.error(1, "the file has no case", hint="give it `cases`, `documents` or `refused`")
    for name, case in file.cases.items():
        case._name, case._place = name, path.name
        clock = case.clock
        for number, step in enumerate(case.steps):
            place = ("cases", name, "steps", number)
            step._line = document.line(place)
            if step.clock is None:
                continue
            line = document.line((*place, "clock"))
            if clock is None:
                raise document.error(line, "a step moves a clock that the case does not have", hint="give it `clock`")
            if step.clock < clock:
                raise document.error(line, "the clock goes back", f"{step.clock}, after {clock}")
            clock = step.clock
    return file


def as_text(value: JsonValue) -> str | None:
    """What a record has: a text as it is, anything else as JSON without blanks; None for null."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _with_defaults(data: Any, path: Path) -> Any:
    """The data, with what the file says for all cases in each of them."""
    if not isinstance(data, Mapping) or not isinstance(data.get("cases"), Mapping):
        return data
    defaults = {"streams": [path.stem], **{name: data[name] for name in DEFAULTS if name in data}}
    cases = {name: {**defaults, **case} if isinstance(case, Mapping) else case for name, case in data["cases"].items()}
    return {**data, "cases": cases}


def _explained(document: YamlDocument, e: ValidationError) -> DeclarationError:
    """The first mistake of a file, with its line."""
    first = e.errors(include_url=False)[0]
    # Of a value that may have several types, pydantic adds which was tried.
    place = tuple(part for part in first["loc"] if not str(part).startswith(("json-", "function-")))
    name = ".".join(map(str, place)) or "the file"
    what, got, hint = first["msg"].removeprefix("Value error, "), first["input"], ""
    if first["type"] == "extra_forbidden":
        what, got, hint = "this key is unknown", place[-1], "see docs/stream-tests.md"
    elif first["type"] == "missing":
        what, got, place = "this key is missing", None, place[:-1]
    return document.error(document.line(place), f"{name}: {what}", got, hint)
