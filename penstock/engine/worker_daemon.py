"""The process that Spark forks its Python workers from: what they need is loaded once, not in each.

Spark is told its name by `spark.python.daemon.module`.
"""

import gc

import duckdb  # noqa: F401

# What Spark's own code takes in for a worker's first task, and every task's end would search for garbage: 12 ms each.
import pandas  # noqa: F401
import pyarrow
import pyspark.worker  # noqa: F401
from pyspark import daemon

import penstock.codec.columnar  # noqa: F401

# Arrow's own pool keeps what was freed: some 40 MB of each worker.
pyarrow.set_memory_pool(pyarrow.system_memory_pool())

if __name__ == "__main__":
    # A worker collects garbage after each task; what is loaded here is none, and stays shared between workers.
    gc.freeze()
    daemon.manager()
