"""Iceberg tables that others wrote, as a backfill reads them: in a local folder, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.catalog
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.utils.config import Config

from penstock.archive import catalog
from penstock.backfill import transform
from penstock.backfill.iceberg_source import IcebergSource
from penstock.backfill.job import BackfillJob, BackfillMarker
from penstock.backfill.retry import OnWait
from penstock.streams import Backfill, IcebergTable, RowsQuery, Topic, TopicOutput
from tests.support.small_archive import local_store, parquet_bytes

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

DAY = datetime(2026, 1, 1, tzinfo=UTC)
NAME = "shop.orders"
QUERY = "SELECT id, to_json(r)::VARCHAR AS said FROM records r"
DELETED = pa.table({"file_path": pa.array([], pa.string()), "pos": pa.array([], pa.int64())}).schema


@contextmanager
def tables(folder: Path) -> Iterator[Catalog]:
    """The catalog of archives, with a namespace for tables."""
    with local_store(folder):
        found = catalog.open_catalog()
        found.create_namespace_if_not_exists("shop")
        yield found


@contextmanager
def named_catalog(name: str, **properties: str) -> Iterator[None]:
    """A catalog of pyiceberg's own configuration within the block."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in properties.items():
            patch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__{key.upper()}", value)
        patch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
        yield


def created(
    catalog: Catalog, schema: Schema, spec: PartitionSpec | None = None, properties: Mapping[str, str] | None = None
) -> Table:
    """A new table `NAME` in the bucket `lake`."""
    catalog.create_namespace_if_not_exists("shop")
    return catalog.create_table(
        NAME,
        schema,
        location="s3://lake/orders",
        partition_spec=spec or PartitionSpec(),
        properties=dict(properties or {}),
    )


def add_file(
    table: Table, name: str, content: DataFileContent, rows: pa.Table, partition: Record | None = None,
    equal: Sequence[int] = (),
) -> None:  # fmt: skip
    """Commit a file as another engine would, such as one of deletes, which pyiceberg does not write.

    Args:
        table: The table, of one way of partitioning.
        name: Of the file.
        content: What its rows say.
        rows: The rows.
        partition: Where they belong.
        equal: Of equality deletes, the columns by which they say what is deleted.
    """
    data, path = parquet_bytes(rows), f"{table.location()}/data/{name}.parquet"
    with table.io.new_output(path).create() as out:
        out.write(data)
    entry = DataFile.from_args(
        content=content, file_path=path, file_format=FileFormat.PARQUET, partition=partition or Record(),
        record_count=rows.num_rows, file_size_in_bytes=len(data), column_sizes={}, value_counts={},
        null_value_counts={}, nan_value_counts={}, lower_bounds={}, upper_bounds={}, key_metadata=None,
        split_offsets=None, equality_ids=list(equal) or None, sort_order_id=None, spec_id=table.spec().spec_id,
    )  # fmt: skip
    with table.transaction() as change, change.update_snapshot().fast_append() as files:
        files.append_data_file(entry)


def delete_positions(table: Table, where: str, *positions: int, partition: Record | None = None) -> None:
    """Delete rows of the file that holds what a condition says, by a file of deletes."""
    [task] = table.scan(where).plan_files()
    deleted = [{"file_path": task.file.file_path, "pos": position} for position in positions]
    rows = pa.Table.from_pylist(deleted, DELETED)
    add_file(table, f"deletes-{positions[0]}", DataFileContent.POSITION_DELETES, rows, partition)


def data_files(folder: Path) -> list[Path]:
    """The files of rows of all tables below a folder, by name."""
    return sorted(folder.rglob("data/**/*.parquet"))


def job(
    query: str = QUERY, hours: float = 24, *, name: str = NAME, catalog: str = "", event_time: str = "at",
    schema: str | None = None, key: str = "id", value: tuple[str, ...] = ("id", "said"), **given: Any,
) -> BackfillJob:  # fmt: skip
    """A backfill of a table over hours of its first day."""
    rows = RowsQuery(event_time, query) if schema is None else RowsQuery(event_time, query, schema)
    output = TopicOutput(Topic("orders"), key=key, value=value)
    backfill = Backfill("orders", IcebergTable(name, catalog), output, rows=rows)
    given = {"begin": DAY, "end": DAY + timedelta(hours=hours)} | given
    return BackfillJob(backfill, target="orders", **given)


def read(one: BackfillJob, folder: Path, waits: OnWait = lambda _: None) -> tuple[list[dict[str, Any]], IcebergSource]:
    """The rows that a job writes, as their values say, and its source after it was read."""
    folder.mkdir(exist_ok=True)
    source = IcebergSource(one, waits)
    files = source.fetch(folder, lambda _: None)
    (folder / "rows.parquet").unlink(missing_ok=True)
    plan = BackfillMarker(source.spans, {}, {}, "", {}, 0)
    path = transform.make_rows(one, files, plan, folder, lambda *_: iter(()))
    values = pq.read_table(path)["value"].to_pylist()
    return [json.loads(value) for value in values if value], source


def ids(one: BackfillJob, folder: Path) -> list[Any]:
    """The ids of the rows that a job writes."""
    return [row["id"] for row in read(one, folder)[0]]


def rows(**columns: Any) -> pa.Table:
    """Rows of these columns."""
    return pa.table(columns)


def orders(*numbers: int, hours: Mapping[int, float] | None = None) -> pa.Table:
    """Orders, each of its own hour of the first days unless it is given."""
    at = [DAY + timedelta(hours=(hours or {}).get(n, n)) for n in numbers]
    return pa.table({"id": pa.array(numbers, pa.int64()), "at": pa.array(at, pa.timestamp("us", "UTC"))})
