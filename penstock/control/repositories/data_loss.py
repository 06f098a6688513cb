"""Records of inputs that are passed before a stream was done with them: what was found, accepted and passed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

from sqlalchemy import delete, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, insert_if_new, rows
from penstock.control.repositories.actions import record_action
from penstock.control.rows import Actor

# Removed before they were read; the log's end lies before what was read or planned; another topic of the same name;
# no topic of the name; and of the topic of marks: batches that ended and have none.
DataLossKind = Literal["removed", "cut", "recreated", "deleted", "unmarked"]
WHOLE = -1


@dataclass(frozen=True)
class DataLoss:
    """Offsets of one partition, `start` to `end` (not included), that are not there, or a whole topic (WHOLE).

    records: that the stream has not read, at most so many; None if nobody can know. topic_id: the topic's that is
    there now.
    """

    topic: str
    kind: DataLossKind
    partition: int = WHOLE
    start: int = 0
    end: int = 0
    records: int | None = None
    topic_id: str = ""

    @property
    def place(self) -> str:
        return self.topic if self.partition == WHOLE else f"{self.topic}[{self.partition}]"

    def __str__(self) -> str:
        if self.kind == "removed":
            return f"{self.place}: offsets {self.start} to {self.end - 1} were removed before they were read"
        if self.kind == "cut":
            return (
                f"{self.place}: its log was cut at offset {self.start}, and had been read or planned up to {self.end}"
            )
        if self.kind == "recreated":
            return f"{self.topic}: it was deleted and recreated; nobody knows what of the old one was not read"
        if self.kind == "unmarked":
            return (
                f"{self.topic}: it has no mark of batches up to {self.end - 1}; what they wrote may be lost, or twice"
            )
        return f"{self.topic}: it was deleted; nobody knows what of it was not read"


@dataclass(frozen=True)
class DataLossRow:
    """A gap of a stream. Times are epoch ms; accepted_by: who let the stream go on, or `its declaration`."""

    id: str
    name: str
    topic: str
    kind: DataLossKind
    partition: int
    start: int
    end: int
    records: int | None
    topic_id: str
    found_at: int
    accepted_at: int | None
    accepted_by: str | None
    passed_at: int | None

    @property
    def gap(self) -> DataLoss:
        return DataLoss(self.topic, self.kind, self.partition, self.start, self.end, self.records, self.topic_id)


class DataLossLog(Protocol):
    """Where the gaps of a driver's streams are written down."""

    def report_data_loss(self, name: str, gaps: Sequence[DataLoss]) -> set[DataLoss]:
        """Say what a stream stands before, instead of what it said before; which of it was accepted."""

    def pass_data_loss(self, name: str, gaps: Sequence[DataLoss]) -> None:
        """Say that a stream went on behind gaps."""


@dataclass
class InMemoryDataLossLog:
    """A book of one process, for streams without a control database."""

    pending: dict[str, list[DataLoss]] = field(default_factory=dict)
    accepted: set[tuple[str, DataLoss]] = field(default_factory=set)
    passed: dict[str, list[DataLoss]] = field(default_factory=dict)

    def report_data_loss(self, name: str, gaps: Sequence[DataLoss]) -> set[DataLoss]:
        self.pending[name] = list(gaps)
        return {gap for gap in gaps if (name, gap) in self.accepted or gap in self.passed.get(name, ())}

    def pass_data_loss(self, name: str, gaps: Sequence[DataLoss]) -> None:
        known = self.passed.setdefault(name, [])
        known += [gap for gap in gaps if gap not in known]


class DataLossRepository(ControlDatabase):
    """The gaps of all streams."""

    def report_data_loss(self, name: str, gaps: Sequence[DataLoss]) -> set[DataLoss]:
        by_id = {_id(name, gap): gap for gap in gaps}
        t = s.data_loss
        with self.begin() as c:
            open_ = (t.c.name == name) & t.c.passed_at.is_(None)
            c.execute(delete(t).where(open_, t.c.id.not_in(list(by_id))))
            for key, gap in by_id.items():
                insert_if_new(c, t, id=key, name=name, found_at=s.now_ms(), **asdict(gap))
            known = select(t.c.id).where(t.c.name == name, t.c.accepted_at.is_not(None))
            return {by_id[key] for key in c.execute(known).scalars() if key in by_id}

    def pass_data_loss(self, name: str, gaps: Sequence[DataLoss]) -> None:
        t = s.data_loss
        with self.begin() as c:
            for gap in gaps:
                key = _id(name, gap)
                insert_if_new(c, t, id=key, name=name, found_at=s.now_ms(), **asdict(gap))
                mine = (t.c.id == key) & t.c.accepted_at.is_(None)
                c.execute(update(t).where(mine).values(accepted_at=s.now_ms(), accepted_by="its declaration"))
                c.execute(update(t).where(t.c.id == key, t.c.passed_at.is_(None)).values(passed_at=s.now_ms()))

    def accept_data_loss(self, name: str, actor: Actor, detail: str = "") -> list[DataLoss]:
        """Accept exactly the gaps that a stream stands before; those."""
        t = s.data_loss
        with self.begin() as c:
            standing = (t.c.name == name) & t.c.accepted_at.is_(None)
            found = rows(
                DataLossRow, c.execute(select(t).where(standing).order_by(t.c.topic, t.c.partition)).mappings()
            )
            for row in found:
                c.execute(update(t).where(t.c.id == row.id).values(accepted_at=s.now_ms(), accepted_by=actor.name))
            if found:
                said = "; ".join(str(row.gap) for row in found)
                record_action(c, actor, "go-on", name, f"{detail}: {said}" if detail else said)
        return [row.gap for row in found]

    def data_losses(self, name: str | None = None) -> list[DataLossRow]:
        """All gaps, of one stream or of all, newest first."""
        query = select(s.data_loss).order_by(
            s.data_loss.c.found_at.desc(), s.data_loss.c.topic, s.data_loss.c.partition
        )
        if name is not None:
            query = query.where(s.data_loss.c.name == name)
        with self.begin() as c:
            return rows(DataLossRow, c.execute(query).mappings())


def lost(found: Sequence[DataLossRow]) -> Mapping[str, int]:
    """By stream, how many records it went on without, at most."""
    counted: dict[str, int] = {}
    for row in found:
        if row.passed_at is not None:
            counted[row.name] = counted.get(row.name, 0) + (row.records or 0)
    return counted


def _id(name: str, gap: DataLoss) -> str:
    said = "\n".join(map(str, (name, gap.topic, gap.kind, gap.partition, gap.start, gap.end, gap.topic_id)))
    return hashlib.sha256(said.encode()).hexdigest()[:32]
