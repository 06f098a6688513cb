"""The golden cases of the shipped streams; penstock.testing.golden says what a case is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.devstack.servers.kafka import Broker
from penstock.testing import Case, cases

HERE = Path(__file__).parent
CASES = [
    pytest.param(case, id=f"{folder.name}-{case.name}")
    for folder in sorted(HERE.iterdir())
    if folder.is_dir() and folder.name != "sinks"
    for case in cases(folder)
]


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_case(case: Case, spark: SparkSession, fresh_broker: Broker, tmp_path: Path) -> None:
    declared = catalog.load()
    every = {**declared.streams, **declared.disabled}
    streams = [every[name] for name in case.given["streams"]]
    case.check(streams, spark, fresh_broker.bootstrap, tmp_path)
