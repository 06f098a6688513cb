"""Random histories, versions and moments of the cut: the output is what an oracle in plain Python says."""

from __future__ import annotations

import random
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.engine.replacement import new_version
from penstock.engine.replacement.replacement import Replacement
from tests.support.random_cases import seeds
from tests.support.replaced_streams import (
    KINDS,
    RandomRecords,
    ReplacedStream,
    check_output,
    create_topics,
    random_versions,
)

pytestmark = pytest.mark.integration


def is_ready(made: Replacement) -> bool:
    """Whether it can be cut, after so many steps that there is nothing left to read."""
    return any(made.advance() and made.is_ready for _ in range(30))


@pytest.mark.parametrize("seed", seeds(1, 300))
def test_each_row_is_written_by_one_version(
    seed: int, spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(new_version, "STEP_RECORDS", rng.choice([5, 20, 1_000]))
    old, new = random_versions(KINDS[seed % len(KINDS)], rng)
    name = f"replaced-{seed}"
    create_topics(name, broker.bootstrap)
    records = RandomRecords(name, rng, both=old.kind in ("inner", "outer"))
    case = ReplacedStream(name, old, new, spark, broker.bootstrap, tmp_path)
    with ExitStack() as stack:
        with case.running(new=False) as process:
            for _ in range(rng.randrange(1, 3)):
                process(records.next())
            made = stack.enter_context(closing(case.open()))
            for _ in range(rng.randrange(3)):
                for _ in range(rng.randrange(3)):
                    made.advance()
                process(records.next())
            while not is_ready(made):
                # Its state is complete when time has gone on.
                process(records.next())
            if rng.random() < 0.7:
                process(records.next())
        made.cut()
    with case.running(new=True) as process:
        process(())
        if rng.random() < 0.7:
            process(records.next())
        # The first moves the watermark, by which the second closes the windows.
        process(records.last())
        process(records.last())
    check_output(name, old, new, records.events, broker.bootstrap, tmp_path)
