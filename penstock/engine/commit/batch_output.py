"""What a batch holds on its way to the stores, and what is reported of it once it is committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.engine.commit.delivery import TablesByOutput
    from penstock.engine.commit.rejected import RejectedRecords


@dataclass(frozen=True)
class CommittedBatch:
    """What a committed batch holds.

    Attributes:
        rows: rows that the outputs took.
        dead: records and rows that became dead letters, or were counted as such.
        late: records that came too late, kept or counted.
        offsets: next offsets of the inputs, by topic and partition.
        violations: how many rows violated each expectation.
    """

    rows: int
    dead: int
    late: int
    offsets: dict[str, dict[int, int]]
    violations: Mapping[str, int] = field(default_factory=dict)


@dataclass
class BatchOutput:
    """A computed batch on its way to the stores.

    Attributes:
        rows: encoded rows by output name; rows that a store refuses are removed.
        side_rows: dead letters and late records by topic; rows that a store refuses are added.
        rejected: records of the inputs that did not reach the outputs.
        other_dead: dead letters of the stream's tables, and of rows that violate an expectation.
        first_reason: why the first dead letter is one.
        takes_dead_letters: whether a pending store takes dead letters.
        violations: how many rows violated each expectation.
    """

    rows: TablesByOutput
    side_rows: TablesByOutput
    rejected: RejectedRecords
    other_dead: int
    first_reason: str
    takes_dead_letters: bool
    violations: Mapping[str, int] = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        return sum(table.num_rows for table in self.rows.values())

    @property
    def dead(self) -> int:
        return self.rejected.dead + self.other_dead
