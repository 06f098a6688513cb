"""Tables on a real broker: what a batch sees of them, whatever happened before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from penstock.control import ProgressRow
from penstock.declare.topic import COMMITS
from penstock.engine import tablefeed
from penstock.engine.run import StreamRun
from penstock.engine.tablefiles import MANIFEST
from penstock.kafka.admin import admin, partitions
from penstock.kafka.output import TopicWriter
from penstock.local.parts import Broker
from penstock.streams import Each, Input, Stream, Table, Topic, TopicOutput
from penstock.testing import Record, create, latest, read, running, send
from tests.support import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

AT = 1_700_000_400_000
SALES = Topic("sales", partitions=2, config={"retention.ms": "-1"})
SHOPS = Topic("shops", partitions=2, compacted=True)
OUT = Topic("named-sales", partitions=1, config={"retention.ms": "-1"})


def transform(sales: DataFrame, shops: DataFrame) -> DataFrame:
    return sales.join(shops, sales.shop == shops.key, "left").select("id", "shop", "town")


STREAM = Stream(
    name="naming",
    app="tests",
    inputs={
        "sales": Input(SALES, schema="id BIGINT NOT NULL, shop STRING NOT NULL, at TIMESTAMP", event_time="at"),
        "shops": Table(SHOPS, schema="town STRING NOT NULL"),
    },
    transform=transform,
    output=TopicOutput(OUT, key="id", value="town"),
    promise=Each(),
)


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    create(fresh_broker.bootstrap, SALES, SHOPS, OUT, COMMITS, Topic(SALES.dead_letters), Topic(SHOPS.dead_letters))
    return fresh_broker.bootstrap


def shop(key: str | None, town: str | None) -> Record:
    value = town if town is None or town.startswith("{") else json.dumps({"town": town})
    return Record("shops", key, value, sum((key or "").encode()) % 2)


def sales(*of: tuple[int, str]) -> list[Record]:
    return [Record("sales", None, json.dumps({"id": i, "shop": s, "at": "2023-11-14T22:20:00Z"}), i % 2, timestamp=AT) for i, s in of]


def named(bootstrap: str) -> dict[str | None, str | None]:
    return latest(read(bootstrap, OUT.name))


def folder(root: Path) -> Path:
    return root / "naming.tables" / "shops"


def test_each_batch_sees_the_table_as_it_is_when_the_batch_begins(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    send(bootstrap, [shop("a", "Aachen"), shop("b", "Bonn"), shop("a", "Augsburg")])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        send(bootstrap, sales((1, "a"), (2, "b"), (3, "c")))
        run.settle()
        assert named(bootstrap) == {"1": "Augsburg", "2": "Bonn", "3": None}
        send(bootstrap, [shop("a", None), shop("c", "Celle"), *sales((4, "a"), (5, "b"), (6, "c"))])
        run.settle()
        assert named(bootstrap).items() >= {"4": None, "5": "Bonn", "6": "Celle"}.items()
        assert run.figures.restarts == 0
    send(bootstrap, [shop("b", "Berlin"), *sales((7, "b"))])
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.settle()
        assert named(bootstrap)["7"] == "Berlin"
