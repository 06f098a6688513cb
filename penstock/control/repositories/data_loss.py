"""Data loss of streams: gaps in their inputs that were found, accepted and skipped."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

from sqlalchemy import delete, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, insert_if_new, rows
from penstock.control.repositories.actions import record_action
from penstock.control.rows import Actor
from penstock.errors import DataLossChanged

# Removed before they were read; the log's end lies before what was read or planned; another topic of the same name;
# no topic of the name; and of the topic of marks: batches that ended and have none.
DataLossKind = Literal["removed", "cut", "recreated", "deleted", "unmarked"]
"""Why records are missing.

- removed: deleted from the topic before they were read
- cut: the log ends before the offsets that were read or planned
- recreated: another topic has the name now
- deleted: no topic has the name
- unmarked: the topic of commit markers lacks those of batches that ended
"""
WHOLE_TOPIC = -1


@dataclass(frozen=True)
class DataLoss:
    """Missing offsets of one partition, or of a whole topic.

    Attributes:
        topic: The topic.
        kind: Why they are missing.
        partition: The partition, or `WHOLE_TOPIC`.
        start: First offset.
        end: Offset after the last one.
        records: Upper bound of the records that the stream has not read; None if it is unknown.
        topic_id: Id of the topic that has the name now.
    """

    topic: str
    kind: DataLossKind
    partition: int = WHOLE_TOPIC
    start: int = 0
    end: int = 0
    records: int | None = None
    topic_id: str = ""

    @property
    def topic_partition(self) -> str:
        """The topic, or topic and partition, as text."""
        return self.topic if self.partition == WHOLE_TOPIC else f"{self.topic}[{self.partition}]"

    def __str__(self) -> str:
        if self.kind == "removed":
            return f"{self.topic_partition}: offsets {self.start} to {self.end - 1} were removed before they were read"
        if self.kind == "cut":
            return (
                f"{self.topic_partition}: its log ends at offset {self.start}, and was read or planned up to {self.end}"
            )
        if self.kind == "recreated":
            return f"{self.topic}: it was deleted and recreated; how many old records were not read is unknown"
        if self.kind == "unmarked":
            return (
                f"{self.topic}: markers of batches up to {self.end - 1} are missing; their rows may be missing or twice"
            )
        return f"{self.topic}: it was deleted; how many of its records were not read is unknown"


@dataclass(frozen=True)
class DataLossRow:
    """A gap of a stream. Times are epoch ms.

    Attributes:
        accepted_by: Who accepted it, or `its declaration`.
        passed_at: When the stream continued after the gap.
    """

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
    """Where a driver records the gaps of its streams."""

    def report_data_loss(self, name: str, gaps: Sequence[DataLoss]) -> set[DataLoss]:
        """Replace the open gaps of a stream; returns those that are accepted."""

    def pass_data_loss(self, name: str, gaps: Sequence[DataLoss]) -> None:
        """Record that a stream continued after gaps."""


@dataclass
class InMemoryDataLossLog:
    """The log of one process, for streams without a control database."""

    pending: dict[str, list[DataLoss]] = field(default_factory=dict)
    accepted: set[tuple[str, DataLoss]] = field(default_factory=set)
    passed: dict[str, list[DataLoss]] = field(default_factory=dict)

    def report_data_loss(self, name: str, gaps: Sequence[DataLoss]) -> set[DataLoss]:
        self.pending[name] = list(gaps)
        return {gap for gap in gaps if (name, gap) in self.accepted or gap in self.passed.get(name, ())}

    def pass_data_loss(self, name: str, gaps: Sequence[DataLoss]) -> None:
        gaps_of_stream = self.passed.setdefault(name, [])
        gaps_of_stream += [gap for gap in gaps if gap not in gaps_of_stream]


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
            accepted = select(t.c.id).where(t.c.name == name, t.c.accepted_at.is_not(None))
            return {by_id[key] for key in c.execute(accepted).scalars() if key in by_id}

    def pass_data_loss(self, name: str, gaps: Sequence[DataLoss]) -> None:
        t = s.data_loss
        with self.begin() as c:
            for gap in gaps:
                key = _id(name, gap)
                insert_if_new(c, t, id=key, name=name, found_at=s.now_ms(), **asdict(gap))
                mine = (t.c.id == key) & t.c.accepted_at.is_(None)
                c.execute(update(t).where(mine).values(accepted_at=s.now_ms(), accepted_by="its declaration"))
                c.execute(update(t).where(t.c.id == key, t.c.passed_at.is_(None)).values(passed_at=s.now_ms()))

    def accept_data_loss(self, name: str, actor: Actor, shown: Collection[str], detail: str = "") -> list[DataLoss]:
        """Accept the gaps that block a stream; returns them.

        Args:
            name: The stream.
            actor: Who accepts them.
            shown: Ids of the gaps that the actor has seen.
            detail: Why.

        Raises:
            DataLossChanged: Another gap blocks the stream, too.
        """
        t = s.data_loss
        with self.begin() as c:
            is_unaccepted = (t.c.name == name) & t.c.accepted_at.is_(None)
            unaccepted = rows(
                DataLossRow, c.execute(select(t).where(is_unaccepted).order_by(t.c.topic, t.c.partition)).mappings()
            )
            if others := [str(row.gap) for row in unaccepted if row.id not in shown]:
                raise DataLossChanged(
                    f"stream {name} is blocked by gaps that were not shown, so none is accepted",
                    got=others[0] + (f"; and {len(others) - 1} more" if len(others) > 1 else ""),
                    hint="look at its gaps again, and let it go on if they may be given up",
                )
            for row in unaccepted:
                c.execute(update(t).where(t.c.id == row.id).values(accepted_at=s.now_ms(), accepted_by=actor.name))
            if unaccepted:
                text = "; ".join(str(row.gap) for row in unaccepted)
                record_action(c, actor, "go-on", name, f"{detail}: {text}" if detail else text)
        return [row.gap for row in unaccepted]

    def data_losses(self, name: str | None = None) -> list[DataLossRow]:
        """The gaps of one stream or of all, newest first."""
        query = select(s.data_loss).order_by(
            s.data_loss.c.found_at.desc(), s.data_loss.c.topic, s.data_loss.c.partition
        )
        if name is not None:
            query = query.where(s.data_loss.c.name == name)
        with self.begin() as c:
            return rows(DataLossRow, c.execute(query).mappings())


def lost(losses: Sequence[DataLossRow]) -> Mapping[str, int]:
    """Upper bound of the records that each stream has skipped."""
    records: dict[str, int] = {}
    for row in losses:
        if row.passed_at is not None:
            records[row.name] = records.get(row.name, 0) + (row.records or 0)
    return records


def _id(name: str, gap: DataLoss) -> str:
    text = "\n".join(map(str, (name, gap.topic, gap.kind, gap.partition, gap.start, gap.end, gap.topic_id)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
