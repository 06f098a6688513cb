"""The worked examples, each against a real broker; penstock.testing.golden says what a case is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.devstack.servers.kafka import Broker
from penstock.testing import Case, cases

HERE = Path(__file__).parent
# The others are planned, not run, in `make test` (`test_plan_fingerprint.py`).
SHORT = ("named-sales", "sorted-sales")


@pytest.mark.integration
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.long] * (case.name not in SHORT))
        for case in cases(HERE / "cases")
    ],
)
def test_case(case: Case, spark: SparkSession, fresh_broker: Broker, tmp_path: Path) -> None:
    streams = [catalog.load(HERE).stream(name) for name in case.given["streams"]]
    case.check(streams, spark, fresh_broker.bootstrap, tmp_path)
