"""What the rules of a stream leave of a batch, by the columns that Spark computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.commit.checked_rows import CheckedRows
from penstock.engine.query.expectations import VIOLATION_PREFIX
from penstock.errors import Blocked
from penstock.model.expectation import OnViolation
from penstock.streams import Expectation, Input, Stateless, Stream, Topic, TopicOutput

PLAIN = Stream(
    "s", "a", {"sold": Input(Topic("sold"), schema="n INT, timestamp TIMESTAMP")}, lambda sold: sold,
    TopicOutput(Topic("out"), value="n"), Stateless(),
)  # fmt: skip


def stream(*actions: OnViolation) -> Stream:
    return replace(
        PLAIN, expectations=tuple(Expectation(f"r{n}", f"n > {n}", action) for n, action in enumerate(actions))
    )


def rows(*violations: str) -> dict[str, pa.Table]:
    """A row for each text, whose characters say by `x` which rules it violates; in chunks of two rows."""
    count = len(violations[0]) if violations else 1
    columns: dict[str, pa.Array[Any]] = {
        "value": pa.array([str(n).encode() for n in range(len(violations))], pa.binary())
    }
    columns |= {
        f"{VIOLATION_PREFIX}{n}": pa.array([row[n] == "x" for row in violations], pa.bool_()) for n in range(count)
    }
    table = pa.table({"key": pa.nulls(len(violations), pa.binary()), **columns})
    return {"out": pa.concat_tables([table.slice(at, 2) for at in range(0, max(1, len(violations)), 2)])}


def values(table: pa.Table) -> list[Any]:
    assert not [name for name in table.column_names if name.startswith(VIOLATION_PREFIX)]
    return table["value"].to_pylist()


def test_a_stream_without_rules_writes_all() -> None:
    given = {"out": pa.table({"value": [b"1"]})}
    assert CheckedRows.of(PLAIN, given) == CheckedRows(given)


def test_each_rule_is_counted_over_all_rows_and_a_dead_row_has_all_reasons() -> None:
    checked = CheckedRows.of(stream("dead letter", "keep", "dead letter"), rows("...", "x..", ".x.", "xxx", "..x"))
    assert checked.violations == {"r0": 2, "r1": 2, "r2": 2}
    assert values(checked.by_output["out"]) == [b"0", b"2"]
    assert (checked.dead_count, checked.first_reason) == (3, "the row violates r0: n > 0")
    both = "the row violates r0: n > 0; the row violates r2: n > 2"
    reasons = ["the row violates r0: n > 0", both, "the row violates r2: n > 2"]
    assert checked.examples == list(zip((b"1", b"3", b"4"), reasons, strict=True))


@pytest.mark.parametrize("given", [(), ("..", "..")])
def test_a_batch_without_violations_has_no_dead_rows(given: tuple[str, ...]) -> None:
    actions: tuple[OnViolation, ...] = ("dead letter", "keep") if given else ("dead letter",)
    checked = CheckedRows.of(stream(*actions), rows(*given))
    assert not any(checked.violations.values())
    assert (len(values(checked.by_output["out"])), checked.dead, checked.first_reason) == (len(given), {}, "")


def test_a_rule_fails_the_batch_with_a_short_example() -> None:
    given = rows("..", ".x", "xx")
    large = {"out": given["out"].set_column(1, "value", pa.array([b"0", b"9" * 10_000, b"2"]))}
    with pytest.raises(
        Blocked, match=r"expectation r1 is violated.*n > 1; got: 2 rows for out, the first: value 999"
    ) as e:
        CheckedRows.of(stream("keep", "fail"), large)
    assert len(str(e.value)) < 1000
