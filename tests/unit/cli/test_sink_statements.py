"""`penstock sinks check` and `explain`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from penstock.cli import sinks
from tests.chaos.projects import other_project
from tests.support.caches import clear_caches

ORDERS = """UPSERT INTO mongodb.shop.orders READ orders AS JSON (id BIGINT, name STRING)
KEY (id) TOMBSTONES DELETE (record.key) DEAD LETTERS INTO orders-refused
AS
SELECT id, upper(name) AS name FROM orders"""


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of the sinks of a project that has one, whose store is given."""
    made = tmp_path / "sql" / "sinks"
    made.mkdir(parents=True)
    (made / "orders.sql").write_text(ORDERS)
    monkeypatch.setattr(sinks, "short_session", lambda _name: nullcontext(spark))
    with other_project(tmp_path, {"PENSTOCK_MONGODB_URL": "mongodb://127.0.0.1:1"}):
        yield made


def said(*args: str) -> Result:
    return CliRunner().invoke(sinks.app, args)


@pytest.mark.usefixtures("folder")
def test_a_valid_statement_passes_the_check() -> None:
    assert said("check", "orders").output.strip() == "✓ orders: upsert into mongodb.shop.orders, fields id, name"
    found = said("explain", "orders").output
    for line in (
        "orders: orders -> upsert into mongodb.shop.orders",
        "id: id, as text",
        "version: the event time's milliseconds << 21 | the offset's lower 21 bits",
        "a record without a value deletes its document, by record.key",
        "what the store refuses goes to topic orders-refused, driver sinks",
        "name string",
        "upper(name",
    ):
        assert line in found, found
    told = json.loads(said("explain", "orders", "--json").output)
    assert told["fields"] == [["id", "bigint"], ["name", "string"]]


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("upper(name)", "upper(nmae)", "4:18: Spark does not take this"),
        ("KEY (id)", "KEY (ids)", "2:1: KEY names a column that is not selected; got: ids"),
    ],
)
def test_an_invalid_statement_is_refused_with_its_location(folder: Path, before: str, after: str, what: str) -> None:
    (folder / "orders.sql").write_text(ORDERS.replace(before, after))
    found = said("check")
    assert found.exit_code == 1
    assert f"✗ orders: {folder}/orders.sql:{what}" in found.output.replace("\n", "")


def test_an_invalid_file_of_a_sink_is_an_error(folder: Path) -> None:
    """By itself: the others are checked all the same."""
    (folder / "broken.sql").write_text(ORDERS.replace("READ", "REED"))
    (folder / "bytes.sql").write_bytes(b"\xff")
    for names in ((), ("orders", "broken", "bytes")):
        found = said("check", *names)
        assert found.exit_code == 1
        for line in (
            "✗ broken: ",
            "broken.sql:1:33: this is no clause of a sink; got: REED",
            "✓ orders: ",
            "✗ bytes: ",
        ):
            assert line in found.output.replace("\n", "")
    assert said("check", "orders").exit_code == 0
    assert "REED" in said("explain", "broken").output


def test_a_sink_without_a_configured_store_is_marked(folder: Path) -> None:
    with other_project(folder.parent.parent, {"PENSTOCK_MONGODB_URL": ""}):
        assert "it does not run: set PENSTOCK_MONGODB_URL" in said("check").output


def test_explain_prints_what_is_created_in_the_store(folder: Path) -> None:
    def made(target: str, clauses: str) -> Any:
        (folder / "orders.sql").write_text(
            f"UPSERT INTO {target} READ orders AS JSON (id BIGINT, n INT) {clauses} TOMBSTONES DELETE (record.key) "
            "AS SELECT id, n, record.timestamp AS at FROM orders"
        )
        clear_caches()
        return json.loads(said("explain", "orders", "--json").output)["store_schema"]

    found = made("elasticsearch.orders", "KEY (id) SUFFIX DAY (at)")
    assert (found["index_patterns"][2], found["template"]["aliases"]) == ("orders-21*.*.*", {"orders": {}})
    assert found["template"]["settings"]["index"]["refresh_interval"] == "1s"
    kinds = {name: one["type"] for name, one in found["template"]["mappings"]["properties"].items()}
    assert kinds == {"id": "long", "n": "integer", "at": "date"}
    found = made("mongodb.shop.orders", "KEY (id) UNIQUE INDEX (id, at) EXPIRE AFTER 1 HOUR")
    told = {name: [tuple(one.values()) for one in indexes] for name, indexes in found["indexes"].items()}
    assert (found["database"], told) == ("shop", {
        "orders": [(["id", "at"], True, None), (["_at"], False, 3600)],
        "orders.tombstones": [(["_at"], False, 7 * 86_400)],
    })  # fmt: skip
    found = made("influxdb.shop.orders", "TIME (at)")
    assert (found["measurement"], found["time"], found["fields"]) == ("orders", "at", {"id": "int64", "n": "int32"})
