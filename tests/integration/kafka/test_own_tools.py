"""What Kafka's own tools show of a stream."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.kafka import Broker
from penstock.kafka.client import client_id
from penstock.model.topic import COMMITS
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, running, send
from tests.support.kafka_tools import run_tool
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

ORDERS = Topic("orders", partitions=2)
BILLS = Topic("bills", partitions=1)
STREAM = Stream(
    name="bills",
    app="shop",
    inputs={"orders": Input(ORDERS, schema="amount INT, at BIGINT", event_time="timestamp_millis(at)")},
    transform=lambda orders: orders.select("amount"),
    output=TopicOutput(BILLS, value="amount"),
    output_mode=Stateless(),
)


def orders(count: int) -> list[Record]:
    values = [json.dumps({"amount": n, "at": 1_700_000_000_000}) for n in range(count)]
    return [Record(ORDERS.name, None, value, partition=n % 2) for n, value in enumerate(values)]


def lag(bootstrap: str) -> dict[str, str]:
    rows = run_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", bootstrap, "--describe", "--group", STREAM.group
    )
    assert {row["GROUP"] for row in rows} == {"penstock.bills"}
    return {f"{row['TOPIC']}-{row['PARTITION']}": row["LAG"] for row in rows}


@pytest.mark.long
def test_consumer_groups_show_the_lag_of_a_running_and_of_a_stopped_stream(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    bootstrap = fresh_broker.bootstrap
    create(bootstrap, ORDERS, Topic(ORDERS.dead_letters), BILLS, COMMITS)
    send(bootstrap, orders(10))
    with running(STREAM, spark, bootstrap, tmp_path) as run:
        run.process_all_available()
        wait_until(lambda: lag(bootstrap) == {"orders-0": "0", "orders-1": "0"}, 60)
        transactions = run_tool("org.apache.kafka.tools.TransactionsCommand", bootstrap, "list")
    assert "penstock.bills" in {row["TransactionalId"] for row in transactions}
    send(bootstrap, orders(5))
    assert lag(bootstrap) == {"orders-0": "3", "orders-1": "2"}


def test_a_client_id_names_the_client_and_its_host() -> None:
    assert client_id("penstock.bills") == f"penstock.bills@{socket.gethostname()}"
