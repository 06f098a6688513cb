"""The process that Spark forks its Python workers from."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def test_workers_import_no_module_from_an_archive(spark: SparkSession) -> None:
    """Spark's archive is first on the path, and a new worker would read its directory once for each package."""

    def archived(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys
        import zipimport

        paths = [path for path, one in sys.path_importer_cache.items() if isinstance(one, zipimport.zipimporter)]
        yield pa.RecordBatch.from_pydict({"path": pa.array(paths, pa.string())})

    assert not spark.range(1).mapInArrow(archived, "path STRING").collect()
