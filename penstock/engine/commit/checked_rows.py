"""Rows of a batch that were checked against the expectations of their stream: what is written, and what is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.commit.dead_letters import dead_letters_of_rows
from penstock.engine.commit.delivery import TablesByOutput, merge_tables
from penstock.engine.query.expectations import VIOLATION_PREFIX, reason_text, rule_columns
from penstock.errors import Blocked
from penstock.kafka.dead_letters import printable

if TYPE_CHECKING:
    from penstock.engine.commit.dead_letter_index import DeadLetterIndex
    from penstock.model.expectation import Expectation
    from penstock.model.stream import Stream

# Characters of each column of the row that an error shows.
WIDTH = 200
REASON = "_reason"
EXAMPLES = 10
NO_REASON = pa.scalar("")


@dataclass(frozen=True)
class CheckedRows:
    """The encoded rows of a batch.

    Attributes:
        by_output: The rows to write, by output.
        violations: How many rows violate each rule, for all rules of the stream.
        dead: The rows that become dead letters by output, each with a column of its reason.
    """

    by_output: TablesByOutput
    violations: Mapping[str, int] = field(default_factory=dict)
    dead: TablesByOutput = field(default_factory=dict)

    @classmethod
    def of(cls, stream: Stream, rows: TablesByOutput) -> CheckedRows:
        """Check rows as `split_by_output` returns them. A row that violates several rules is counted for each.

        Raises:
            Blocked: A row violates a rule by which the batch fails.
        """
        if not stream.expectations:
            return cls(rows)
        violations: Counter[str] = Counter({rule.name: 0 for rule in stream.expectations})
        good: TablesByOutput = {}
        dead: TablesByOutput = {}
        for output, table in rows.items():
            for column, rule in rule_columns(stream, "keep", "dead letter", "fail"):
                violations[rule.name] += pc.sum(table[column]).as_py() or 0
            for column, rule in rule_columns(stream, "fail"):
                if violations[rule.name]:
                    raise _failed(stream, rule, output, table.filter(table[column]), violations[rule.name])
            own = [column for column in table.column_names if not column.startswith(VIOLATION_PREFIX)]
            good[output] = table.select(own)
            rules = rule_columns(stream, "dead letter")
            if any(violations[rule.name] for _, rule in rules):
                reasons = _reasons(table, rules)
                is_dead = pc.not_equal(reasons, NO_REASON)
                dead[output] = good[output].append_column(REASON, reasons).filter(is_dead)
                good[output] = good[output].filter(pc.invert(is_dead))
        return cls(good, violations, dead)

    @property
    def dead_count(self) -> int:
        return sum(table.num_rows for table in self.dead.values())

    @property
    def first_reason(self) -> str:
        return next((str(table[REASON][0]) for table in self.dead.values() if table.num_rows), "")

    @property
    def examples(self) -> list[tuple[bytes | None, str]]:
        """Value and reason of some rows that become dead letters."""
        tables = (table.select(["value", REASON]).slice(0, EXAMPLES) for table in self.dead.values())
        return [(row["value"], row[REASON]) for table in tables for row in table.to_pylist()]

    def dead_letters(self, stream: Stream, bootstrap: str, index: DeadLetterIndex) -> TablesByOutput:
        """The dead letters by topic, as those of rows that an output refuses."""
        outputs = {output.name: output for output in stream.outputs.values()}
        letters: TablesByOutput = {}
        for name, rows in self.dead.items():
            target = outputs[name].dead_letter_topic.name
            reasons = {number: str(reason) for number, reason in enumerate(rows[REASON].to_pylist())}
            table = dead_letters_of_rows(
                rows, reasons, stream.name, name, bootstrap, index, target, hides_records=bool(outputs[name].mask)
            )
            letters = merge_tables(letters, {target: table})
        return letters


def _reasons(table: pa.Table, rules: list[tuple[str, Expectation]]) -> pa.ChunkedArray[Any]:
    """TEXT: the reasons of all rules that a row violates; empty if it violates none."""
    reasons: Any = ""
    # Arrow's join of texts leaves rows out where all of them are NULL.
    for column, rule in rules:
        between = pc.if_else(pc.and_(table[column], pc.not_equal(reasons, NO_REASON)), "; ", "")
        reasons = pc.binary_join_element_wise(reasons, between, pc.if_else(table[column], reason_text(rule), ""), "")
    joined: pa.ChunkedArray[Any] = reasons
    return joined


def _failed(stream: Stream, rule: Expectation, output: str, rows: pa.Table, count: int) -> Blocked:
    own = [column for column in rows.column_names if not column.startswith(VIOLATION_PREFIX)]
    [first] = rows.select(own).slice(0, 1).to_pylist()
    example = ", ".join(
        f"{name} {printable(value if isinstance(value, bytes) else str(value), WIDTH)}"
        for name, value in first.items()
        if value is not None
    )
    return Blocked(
        f"stream {stream.name}: expectation {rule.name} is violated, which fails the batch: {rule.text}",
        got=f"{count:,} rows for {output}, the first: {example}",
        hint=f"correct the SELECT or the transform, or the rule or its ON VIOLATION, and release app {stream.app}: it "
        "continues with this batch, of which nothing is written, and nothing is lost",
    )
