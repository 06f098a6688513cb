"""The tests that `penstock init` writes pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import DeclarationError
from penstock.testing import Record, documents
from tests.support.modules import module

pytestmark = pytest.mark.integration


def test_its_tests_pass(shop: Path, spark: SparkSession) -> None:
    module(shop / "tests" / "test_orders.py").test_orders_of_a_minute_are_summed(spark)
    shops = module(shop / "tests" / "test_shops.py")
    shops.test_the_capture_has_a_record_for_each_shop()
    shops.test_a_shop_is_a_document(spark)


@pytest.mark.usefixtures("shop")
def test_documents_of_a_sink(spark: SparkSession) -> None:
    removed = Record("shops", key='{"id":1}', value=None)
    assert documents(spark, "shops-documents", {"shops": [removed]}) == [None]
    with pytest.raises(DeclarationError, match="no such sink; got: shop; hint: shops-documents"):
        documents(spark, "shop", {})
    with pytest.raises(DeclarationError, match="reads other topics; got: shop; hint: shops"):
        documents(spark, "shops-documents", {"shop": []})
