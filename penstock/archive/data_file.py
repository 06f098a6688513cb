"""Writes a data file of the table of an archive."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from penstock.archive import records
from penstock.archive.decoded import PartitionValues, as_columns, columns_with_statistics
from penstock.archive.state import EPOCH, HOUR, Spans, hour_start, merge_spans

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from penstock.object_store.bucket import Bucket

SPANS = "penstock.spans"
"""Key of a data file's own metadata: `{"topic/partition": [rows, first offset, last offset, sum of hashes]}`."""


def write_data_file(
    table: Table, bucket: Bucket, hour: str, tables: Iterable[pa.Table], values: PartitionValues
) -> tuple[DataFile, Spans]:
    """Write records into a new file in the folder of a table; see `ArchiveTable.write_file`."""
    schema = table.schema()
    key = f"data/hour={hour_start(hour):%Y-%m-%d-%H}/{uuid.uuid4()}.parquet"
    arrow, spans = schema_to_pyarrow(schema), dict[str, Any]()
    with bucket.open_output(key) as out:
        with pq.ParquetWriter(
            out, arrow, compression="zstd", write_page_checksum=True,
            write_statistics=columns_with_statistics(arrow),
        ) as writer:  # fmt: skip
            for rows in tables:
                writer.write_table(as_columns(rows, arrow), row_group_size=records.ROW_GROUP_ROWS)
                spans = merge_spans([spans, records.spans_of(rows)])
            writer.add_key_value_metadata({SPANS: json.dumps(spans)})
        size, metadata = out.tell(), writer.writer.metadata
    statistics = data_file_statistics_from_parquet_metadata(
        metadata, compute_statistics_plan(schema, table.properties), parquet_path_to_id_mapping(schema)
    )
    entry = DataFile.from_args(
        content=DataFileContent.DATA, file_path=f"{table.location()}/{key}", file_format=FileFormat.PARQUET,
        partition=Record((hour_start(hour) - EPOCH) // HOUR, *values), file_size_in_bytes=size, sort_order_id=None,
        spec_id=table.spec().spec_id, equality_ids=None, key_metadata=None,
        **statistics.to_serialized_dict(),
    )  # fmt: skip
    return entry, spans
