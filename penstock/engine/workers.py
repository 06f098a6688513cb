"""The process that Spark forks its Python workers from: what they need is loaded once, not in each.

Spark is told its name by `spark.python.daemon.module`.
"""

import duckdb  # noqa: F401
import pyarrow  # noqa: F401
from pyspark import daemon

import penstock.records.columns  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
