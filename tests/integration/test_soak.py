"""Days of event time through both stages of the summaries: state comes back to the same size, day after day."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.metrics import RECEIPTS, bundles, metrics_settings, summaries
from penstock.devstack.servers.kafka import Broker
from penstock.model.topic import COMMITS
from penstock.streams import Topic
from penstock.testing import Record, create, read, running, send

DAYS, STEP, METRICS = 4, timedelta(hours=4), 20
START = 1_767_225_600_000
HOUR = timedelta(hours=1) // timedelta(milliseconds=1)


@pytest.mark.integration
@pytest.mark.long
def test_state_returns_to_its_size_each_day(spark: SparkSession, fresh_broker: Broker, tmp_path: Path) -> None:
    bootstrap, s = fresh_broker.bootstrap, metrics_settings()
    receipts = Topic(RECEIPTS.name, partitions=2, config={"retention.ms": "-1"})
    late = Topic(bundles.STREAM.late_topic)
    dead = (Topic(t.dead_letters) for t in (RECEIPTS, bundles.BUNDLES))
    create(bootstrap, receipts, bundles.BUNDLES, summaries.SUMMARIES, late, COMMITS, *dead)
    chance = random.Random(4)
    step = STEP // timedelta(milliseconds=1)
    held: list[tuple[int, int]] = []
    with (
        running(bundles.STREAM, spark, bootstrap, tmp_path) as first,
        running(summaries.STREAM, spark, bootstrap, tmp_path) as second,
    ):
        for since in range(START, START + DAYS * 24 * HOUR, step):
            # Every metric in every window, in no order.
            times = [since + at for at in range(0, step, s.bundle // timedelta(milliseconds=1))]
            chance.shuffle(times)
            send(
                bootstrap,
                [
                    Record(RECEIPTS.name, None, receipt(f"m{metric}", at, chance.gauss(50, 9)), metric % 2)
                    for at in times
                    for metric in range(METRICS)
                ],
            )
            first.process_all_available()
            second.process_all_available()
            held.append((first.figures.state_rows or 0, second.figures.state_rows or 0))
    assert first.figures.late == second.figures.late == 0
    a_day = timedelta(days=1) // STEP
    assert held[-1][0] == held[-1 - a_day][0] == held[-1 - 2 * a_day][0], held
    assert held[-1][1] == held[-1 - a_day][1] == held[-1 - 2 * a_day][1], held
    # What is held: the lateness, what came since the watermark was last moved, and the window that is open.
    span = s.grace + 2 * STEP + s.bundle
    assert METRICS <= held[-1][0] <= METRICS * (span // s.bundle)
    # The second comes as far as the first said a step before, which is by its lateness behind.
    span += s.grace + 2 * STEP
    assert METRICS <= held[-1][1] <= METRICS * ((span + 2 * s.summary) // s.summary)
    assert len({r.key for r in read(bootstrap, summaries.SUMMARIES.name)}) == (
        METRICS * (timedelta(days=DAYS) // s.summary)
    )


def receipt(metric: str, at: int, value: float) -> str:
    return json.dumps({"environment": "prod", "metric": metric, "value": value, "timestamp": at})
