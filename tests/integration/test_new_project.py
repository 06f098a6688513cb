"""The tests that `penstock init` writes pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.testing.case_file import read_cases
from penstock.testing.documents import check_documents
from tests.support.modules import module

pytestmark = pytest.mark.integration


def test_its_tests_pass(shop: Path, spark: SparkSession) -> None:
    module(shop / "tests" / "test_orders.py").test_orders_of_a_minute_are_summed(spark)
    module(shop / "tests" / "test_shops.py").test_the_capture_has_a_record_for_each_shop()
    documents = read_cases(shop / "tests" / "streams" / "shops.yaml").documents
    assert len(documents) == 2
    for name, case in documents.items():
        check_documents(case, name, shop, spark)
