"""Datasets have the names of OpenLineage's naming specification, as its own client writes them."""

from __future__ import annotations

import pytest
from openlineage.client.naming.dataset import S3, DatasetNaming, Kafka, MySQL, Postgres

from penstock.lineage.datasets import dataset_name, input_datasets
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from tests.support.caches import clear_caches


@pytest.mark.parametrize(
    ("uri", "naming"),
    [
        ("kafka://broker:9092/shop.orders", Kafka("broker", "9092", "shop.orders")),
        ("mysql://db:3306/shop/orders", MySQL("db", "3306", "shop", "orders")),
        ("postgres://db:5432/shop/public/orders", Postgres("db", "5432", "shop", "public", "orders")),
        ("s3://lake/archive/orders", S3("lake", "archive/orders")),
    ],
)
def test_names_are_those_of_the_specification(uri: str, naming: DatasetNaming) -> None:
    assert dataset_name(uri) == (naming.get_namespace(), naming.get_name())


@pytest.mark.parametrize(
    ("uri", "dataset"),
    [
        ("elasticsearch://search:9200/orders.v2", ("elasticsearch://search:9200", "orders.v2")),
        ("mongodb://store:27017/shop/orders", ("mongodb://store:27017", "shop.orders")),
        ("influxdb://store:8086/shop/%28kind%29", ("influxdb://store:8086", "shop.(kind)")),
        ("x-penstock://views/orders", ("x-penstock://views", "orders")),
        ("sqlite:///data/shop.db/orders", ("sqlite:///data/shop.db", "orders")),
    ],
)
def test_stores_that_the_specification_does_not_have(uri: str, dataset: tuple[str, str]) -> None:
    assert dataset_name(uri) == dataset


def test_an_input_of_a_pattern_has_the_topics_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", "one:9092,two:9092")
    clear_caches()
    inputs = {"all": Input(pattern="shop-.*"), "one": Input(Topic("sales"))}
    stream = Stream(
        "joined", "tests", inputs, lambda all, one: all.union(one), TopicOutput(Topic("out"), value="value"),  # noqa: A006
        Stateless(),
    )  # fmt: skip
    assert list(input_datasets(stream, ["shop-b", "shop-a", "other"])) == [
        ("all", ("kafka://one:9092", "shop-a")),
        ("all", ("kafka://one:9092", "shop-b")),
        ("one", ("kafka://one:9092", "sales")),
    ]
    clear_caches()
