"""The process that Spark forks its Python workers from: it loads their libraries once.

`spark.python.daemon.module` names it.
"""

import gc
import os
from pathlib import Path

import duckdb  # noqa: F401

# Spark imports it in a worker's first task; the collection after each task would then scan it, for 12 ms.
import pandas  # noqa: F401
import pyarrow
import pyspark.worker  # noqa: F401
from pyspark import daemon

import penstock.codec.columnar  # noqa: F401
from penstock.engine.executor_code import EXECUTOR_FOLDER

# Arrow's own pool keeps freed memory: some 40 MB in each worker.
pyarrow.set_memory_pool(pyarrow.system_memory_pool())

if __name__ == "__main__":
    if Path(EXECUTOR_FOLDER).is_dir():
        os.environ["PENSTOCK_PROJECT"] = str(Path(EXECUTOR_FOLDER).resolve())
    # A worker collects garbage after each task; frozen objects are skipped, and stay shared between workers.
    gc.freeze()
    daemon.manager()
