"""Iceberg tables of other programs as sources of backfills: what is read of them, exactly, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from penstock.archive import catalog
from penstock.backfill import iceberg_source, retry
from penstock.errors import InputNotReady, SinkError, Wait
from tests.support.iceberg_tables import (
    DAY,
    NAME,
    QUERY,
    add_file,
    created,
    data_files,
    delete_positions,
    ids,
    job,
    named_catalog,
    orders,
    read,
    rows,
    tables,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

ORDERS = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestamptzType()))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Catalog]:
    with tables(tmp_path / "lake") as catalog:
        yield catalog


@pytest.mark.parametrize(
    ("spec", "event_time", "reads"),
    [
        # By the partition, or by the statistics of a file.
        (PartitionSpec(PartitionField(2, 1000, DayTransform(), "d")), "at", (1,)),
        (PartitionSpec(), "`AT`", (1,)),
        (PartitionSpec(), "timestamp_seconds(sent)", (1,)),
        (PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "day")), "day", (1,)),
        # What is no column is read everywhere.
        (PartitionSpec(), '"at" + INTERVAL 0 SECOND', (0, 1, 2)),
    ],
)
def test_files_of_other_times_are_not_read(
    shop: Catalog, tmp_path: Path, spec: PartitionSpec, event_time: str, reads: tuple[int, ...]
) -> None:
    fields = (LongType(), TimestamptzType(), LongType(), DateType())
    names = ("id", "at", "sent", "day")
    schema = Schema(*(NestedField(n + 1, *both) for n, both in enumerate(zip(names, fields, strict=True))))
    table, lake = created(shop, schema, spec), tmp_path / "lake"
    by_day = list[set[Path]]()
    for day in range(3):
        numbers = range(24 * day, 24 * day + 24)
        sent = [int(DAY.timestamp()) + 3600 * n for n in numbers]
        at, days = orders(*numbers)["at"], [DAY.date() + timedelta(days=day)] * 24
        table.append(rows(id=pa.array(numbers), at=at, sent=pa.array(sent), day=pa.array(days)))
        by_day.append(set(data_files(lake)) - set().union(*by_day))
    for day in {0, 1, 2} - set(reads):
        for path in by_day[day]:
            path.unlink()
    one = job(begin=DAY + timedelta(days=1), end=DAY + timedelta(hours=36 if event_time != "day" else 48),
              event_time=event_time)  # fmt: skip
    assert ids(one, tmp_path / "job") == list(range(24, 36 if event_time != "day" else 48))
    if len(reads) == 1:
        with pytest.raises(SinkError, match=r"an object does not exist; got: s3://lake/orders/data/"):
            ids(job(event_time=event_time, hours=48), tmp_path / "job")


@pytest.mark.parametrize(
    "spec",
    [
        PartitionSpec(),
        # In the manifest their partition is NULL, and so comes before no time and after none.
        PartitionSpec(PartitionField(2, 1000, DayTransform(), "d")),
        PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "at_is")),
    ],
)
def test_rows_without_an_event_time_are_counted(shop: Catalog, tmp_path: Path, spec: PartitionSpec) -> None:
    table = created(shop, ORDERS, spec)
    table.append(orders(1, 2, 99))
    table.append(pa.table({"id": pa.array([7, 8]), "at": pa.nulls(2, pa.timestamp("us", "UTC"))}))
    found, source = read(job(), tmp_path / "job")
    assert [row["id"] for row in found] == [1, 2]
    assert source.skipped_records.summary == (
        "; 2 records of the source are left out: iceberg.shop.orders: they have no event time"
    )


def evolved(shop: Catalog) -> datetime:
    """A table whose columns changed; returns the time before."""
    table = created(shop, Schema(NestedField(1, "id", IntegerType()), NestedField(2, "at", TimestamptzType()),
                     NestedField(3, "who", StringType()))
    )  # fmt: skip
    first = orders(1, 2)
    table.append(rows(id=first["id"].cast(pa.int32()), at=first["at"], who=["a", "b"]))
    snapshot = table.current_snapshot()
    assert snapshot
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.rename_column("at", "sent")
        change.update_column("id", LongType())
        change.delete_column("who")
    with table.update_schema() as change:
        change.add_column("who", LongType())
    return datetime.fromtimestamp((snapshot.timestamp_ms + 1) / 1000, UTC)


def test_columns_are_those_that_the_table_has_now(shop: Catalog, tmp_path: Path) -> None:
    before = evolved(shop)
    query = "SELECT id, to_json(r)::VARCHAR AS said FROM (SELECT * EXCLUDE (event_time) FROM records) r"
    # No snapshot has the new columns yet.
    found, source = read(job(query, event_time="sent"), tmp_path / "job")
    assert found[0] == {"id": 1, "said": '{"id":1,"sent":"2026-01-01 01:00:00+00","who":null}'}
    shop.load_table(NAME).append(
        rows(id=[3], sent=orders(3)["at"], who=[2**40])
    )  # fmt: skip
    found, after = read(job(query, event_time="sent"), tmp_path / "job")
    assert [row["id"] for row in found] == [1, 2, 3]
    assert found[2]["said"] == f'{{"id":3,"sent":"2026-01-01 03:00:00+00","who":{2**40}}}'
    assert source.spans != after.spans
    # As of a time it has the columns of that time.
    found, _ = read(job(query, as_of=before), tmp_path / "job")
    assert [row["said"] for row in found] == [
        f'{{"id":{n},"at":"2026-01-01 0{n}:00:00+00","who":"{who}"}}' for n, who in ((1, "a"), (2, "b"))
    ]


def test_the_time_of_the_first_snapshot_can_be_given(shop: Catalog, tmp_path: Path) -> None:
    created(shop, ORDERS).append(orders(1))
    with pytest.raises(SinkError, match=r"iceberg.shop.orders keeps no snapshot of that time") as told:
        read(job(as_of=DAY - timedelta(days=9999)), tmp_path / "job")
    [first] = re.findall(r"take a time from (\S+) on", str(told.value))
    assert ids(job(as_of=datetime.fromisoformat(f"{first}+00:00")), tmp_path / "job") == [1]


def test_deletes_of_other_engines(shop: Catalog, tmp_path: Path) -> None:
    table = created(shop, ORDERS)
    table.append(orders(*range(10)))
    table.append(orders(*range(10, 20)))
    table.delete("id < 2")
    delete_positions(table, "id < 10", 0, 5)
    assert sorted(ids(job(hours=12), tmp_path / "job")) == [3, 4, 5, 6, 8, 9, 10, 11]
    add_file(table, "equal", DataFileContent.EQUALITY_DELETES, rows(id=[3]), equal=[1])
    with pytest.raises(SinkError, match=r"cannot be read.*equality deletes.*rewrite_data_files"):
        read(job(), tmp_path / "job")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_does_not_answer_is_read_again(
    shop: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    table = created(shop, ORDERS)
    for first in (0, 5, 10):
        table.append(orders(*range(first, first + 5), hours={first: 99}))
    table.append(rows(id=[77], at=pa.nulls(1, pa.timestamp("us", "UTC"))))
    monkeypatch.setattr(iceberg_source, "ROWS_PER_FILE", 5)
    chunks, waits, failed = iceberg_source.IcebergSource._chunks, list[str](), list[int]()

    def cut_off(source: Any, *given: Any) -> Iterator[pa.Table]:
        for number, chunk in enumerate(chunks(source, *given)):
            if number == at and not failed:
                failed.append(number)
                with source._errors():
                    raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation")
            yield chunk

    monkeypatch.setattr(iceberg_source.IcebergSource, "_chunks", cut_off)
    found, source = read(job(), tmp_path / "job", waits.append)
    said = "the store of iceberg.shop.orders does not answer; got: AWS Error NETWORK_CONNECTION during GetObject"
    assert [why.startswith(said) for why in waits] == [True]
    assert sorted(row["id"] for row in found) == [1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14]
    assert [(span.rows, span.first, span.last) for span in source.spans.values()] == [(12, 0, 11)]
    assert source.skipped_records.count == 1


def test_the_same_rows_in_other_files_are_the_same(
    shop: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(shop, ORDERS)
    assert read(job(), tmp_path / "job")[1].spans == {}
    for first in range(0, 20, 5):
        table.append(orders(*range(first, first + 5)))
    monkeypatch.setattr(iceberg_source, "ROWS_PER_FILE", 7)
    found, source = read(job(), tmp_path / "job")
    assert len(found) == 20
    assert source.files == 2
    monkeypatch.undo()
    monkeypatch.setenv("PENSTOCK_CONTROL_URL", f"sqlite:///{tmp_path}/lake/catalog.db")
    table.overwrite(orders(*range(100, 110), *reversed(range(20))))
    assert read(job(), tmp_path / "job")[1].spans == source.spans
    table.overwrite(orders(*range(20), hours={3: 4}))
    assert read(job(), tmp_path / "job")[1].spans != source.spans


def test_a_snapshot_that_is_expired_while_it_is_read(
    shop: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    table = created(shop, ORDERS)
    table.append(orders(1))
    [first] = data_files(lake)
    open_ = iceberg_source.IcebergSource._open

    def open_and_lose(source: Any) -> Any:
        """The table, which is then written anew, and its former snapshot expired with its file."""
        found = open_(source)
        if first.exists():
            table.overwrite(orders(2))
            [old] = [one for one in table.snapshots() if one.parent_snapshot_id is None]
            table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.snapshots()][:-1]).commit()
            assert old
            first.unlink()
        return found

    monkeypatch.setattr(iceberg_source.IcebergSource, "_open", open_and_lose)
    with pytest.raises(InputNotReady, match=r"the snapshot of iceberg.shop.orders was expired while it was read"):
        read(job(), tmp_path / "job")
    assert ids(job(), tmp_path / "job") == [2]
    for path in data_files(lake):
        path.unlink(missing_ok=True)
    with pytest.raises(SinkError, match=r"a file of iceberg.shop.orders does not exist|an object does not exist"):
        read(job(), tmp_path / "job")


@pytest.mark.processes
@pytest.mark.usefixtures("shop")
def test_catalogs_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_TIMEOUT", 0.0)
    with pytest.raises(SinkError, match=r"no such Iceberg table; got: iceberg.shop.orders; .*PENSTOCK_ICEBERG_CATALOG"):
        read(job(), tmp_path / "job")
    with pytest.raises(SinkError, match=r"no Iceberg catalog other that can be.*URI missing.*PYICEBERG_CATALOG__OTHER"):
        read(job(catalog="other"), tmp_path / "job")
    for name, hint in (("my_lake", r"in .pyiceberg.yaml$"), ("my-lake", r"PYICEBERG_CATALOG__MY_LAKE__URI")):
        with pytest.raises(SinkError, match=rf"no Iceberg catalog {name} that can.*{hint}"):
            read(job(catalog=name), tmp_path / "job")
    with named_catalog("other", uri="mysql://me:secret@db/x"), pytest.raises(SinkError, match=r"//\.\.\.@db") as told:
        read(job(catalog="other"), tmp_path / "job")
    assert "secret" not in str(told.value)
    with named_catalog("other", uri="http://127.0.0.1:9"):
        with pytest.raises(Wait, match="the Iceberg catalog does not answer for catalog other"):
            read(job(catalog="other"), tmp_path / "job")
    (tmp_path / "house").mkdir()
    with named_catalog("other", uri=f"sqlite:///{tmp_path}/other.db", warehouse=f"file://{tmp_path}/house"):
        with pytest.raises(SinkError, match=r"no such Iceberg table; got: iceberg.other:shop.orders"):
            read(job(catalog="other"), tmp_path / "job")
        other = catalog.open_named("other")
        other.create_namespace("shop")
        other.create_table(NAME, orders(1).schema).append(orders(1, 2))
        assert ids(job(QUERY, catalog="other"), tmp_path / "job") == [1, 2]
        for path in data_files(tmp_path / "house"):
            path.write_bytes(b"PAR1 damaged")
        with pytest.raises(SinkError, match=r"file .*parquet of iceberg.other:shop.orders cannot be.*ArrowInvalid"):
            read(job(catalog="other"), tmp_path / "job")


@pytest.mark.processes
@pytest.mark.usefixtures("shop")
def test_a_rest_catalog_by_name(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    with named_catalog("files", uri=f"sqlite:///{tmp_path}/files.db", warehouse=f"file://{tmp_path}/house"):
        files = catalog.open_named("files")
    files.create_namespace("shop")
    table = files.create_table(NAME, orders(1).schema)
    table.append(orders(1, 2, 30))

    class Rest(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer: dict[str, Any] = {"defaults": {}, "overrides": {}}
            if (allowed := self.headers["Authorization"] == "Bearer good") and "/tables/" in self.path:
                answer = {
                    "metadata-location": table.metadata_location,
                    "metadata": table.metadata.model_dump(mode="json"),
                }
            body = json.dumps(answer if allowed else {"error": {"message": "no", "type": "no", "code": 401}}).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Rest) as server:
        Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            with named_catalog("lake", uri=url, token="good"):
                assert sorted(ids(job(catalog="lake"), tmp_path / "job")) == [1, 2]
            with named_catalog("lake", uri=url, token="bad"):
                with pytest.raises(SinkError, match=r"refuses catalog lake.*the configuration of catalog lake"):
                    read(job(catalog="lake"), tmp_path / "job")
        finally:
            server.shutdown()
