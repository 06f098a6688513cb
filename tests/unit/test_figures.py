"""What a stream's progress makes of its figures."""

from __future__ import annotations

from typing import Any

from penstock.control import ProgressRow
from penstock.engine.figures import Figures


def progress(batch: int, second: int, **durations: int) -> dict[str, Any]:
    return {
        "batchId": batch, "timestamp": f"2026-01-01T00:00:{second:02}.000Z", "durationMs": durations,
        "numInputRows": 5, "eventTime": {}, "stateOperators": [],
    }  # fmt: skip


def test_an_idle_query_tells_of_a_batch_that_did_not_run() -> None:
    figures = Figures(ProgressRow("s", "tests", "i"))
    assert figures.take(progress(3, 1, addBatch=5, triggerExecution=9))
    assert not figures.take(progress(4, 11, latestOffset=2, triggerExecution=2))
    assert (figures.row.batch_id, figures.row.batch_ms, figures.row.rows_in) == (3, 9, 5)
    assert figures.progress_at == "2026-01-01T00:00:11.000Z"
