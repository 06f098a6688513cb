"""Backfills of an Iceberg table of another program, from a real object store into a real broker's topic."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, IntegerType, LongType, NestedField, TimestamptzType

from penstock.archive import catalog, file_io
from penstock.backfill.job import BackfillJob
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.s3 import S3Server
from penstock.errors import DeclarationError
from penstock.settings import settings
from penstock.streams import Topic
from penstock.testing import create, latest, read
from tests.support.archive_backfills import do
from tests.support.iceberg_tables import DAY, created, delete_positions, job, orders, rows
from tests.support.s3_store import endpoint_of, use_store

if TYPE_CHECKING:
    from pyiceberg.table import Table

pytestmark = pytest.mark.integration

SCHEMA = Schema(NestedField(1, "id", IntegerType()), NestedField(2, "at", TimestamptzType()))
BY_DAY = PartitionSpec(PartitionField(2, 1000, DayTransform(), "day"))
QUERY = "SELECT id, CAST(coalesce(price, 1) * 100 AS BIGINT) AS cents FROM records"


@pytest.fixture
def table(object_store: S3Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Orders of two days, in the catalog of archives."""
    assert settings().home == home
    use_store(monkeypatch, endpoint_of(object_store))
    file_io.open_bucket("lake").ensure_exists()
    return created(catalog.open_catalog(), SCHEMA, BY_DAY)


def numbered(*numbers: int) -> Any:
    given = orders(*numbers)
    return rows(id=given["id"].cast("int32"), at=given["at"])


def cents(broker: Broker) -> dict[int, int]:
    """What the topic has: the orders, each by its latest record."""
    values = [json.loads(value) for value in latest(read(broker.bootstrap, "orders")).values() if value]
    return {value["id"]: value["cents"] for value in values}


def test_a_table_with_partitions_deletes_and_other_columns_than_before(table: Table, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, Topic("orders", partitions=2))
    table.append(numbered(*range(20)))
    table.append(numbered(*range(20, 40)))
    before = datetime.now(UTC)
    with table.update_schema() as change:
        change.rename_column("at", "sent")
        change.update_column("id", LongType())
        change.add_column("price", DecimalType(9, 2))
    table.delete("id = 3")
    day = Record((DAY.date() - date(1970, 1, 1)).days)
    delete_positions(table, "id < 20", 0, 1, partition=day)
    table.append(rows(id=[1000], sent=orders(15)["at"], price=[12.25]).cast(table.schema().as_arrow()))
    one = job(QUERY, 16, event_time="sent", value=("id", "cents"))
    expected = {**dict.fromkeys((2, *range(4, 16)), 100), 1000: 1225}
    done = do(one, fresh_broker)
    assert (done.rows, cents(fresh_broker)) == (len(expected), expected)
    assert "14 rows, hash" in done.summary
    # The same rows in other files, and others outside of the interval, are nothing new.
    table.overwrite(table.scan().to_arrow())
    table.append(rows(id=[2000], sent=orders(16)["at"], price=[1.0]).cast(table.schema().as_arrow()))
    assert do(one, fresh_broker).rows == 0
    table.append(rows(id=[3000], sent=orders(14)["at"], price=[None]).cast(table.schema().as_arrow()))
    assert do(one, fresh_broker).rows == len(expected) + 1
    # As it was, with the columns of that time.
    with pytest.raises(DeclarationError, match=r"its query is invalid.*price"):
        do(job(QUERY, 16, value=("id", "cents"), as_of=before), fresh_broker)
    earlier = job("SELECT id, 1 AS cents FROM records", 48, value=("id", "cents"), as_of=before)
    assert do(earlier, fresh_broker).rows == 40
    empty = BackfillJob(one.backfill, DAY - timedelta(days=9), DAY - timedelta(days=8), "orders")
    assert do(empty, fresh_broker).summary == "nothing is in iceberg.shop.orders for this interval"
