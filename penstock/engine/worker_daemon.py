"""The process that Spark forks its Python workers from: it loads their libraries once.

`spark.python.daemon.module` names it.
"""

import gc
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

# Spark puts PySpark as an archive before the installed packages. Each new worker would read the archive's directory
# again for every package in it, which takes half a second, and this process would compile all modules from source.
ARCHIVES = (".zip", ".jar")
_installed = [path for path in sys.path if not path.endswith(ARCHIVES)]
if all(PathFinder.find_spec(name, _installed) for name in ("pyspark", "py4j")):
    sys.path[:] = _installed
    for _path in [*sys.path_importer_cache]:
        if _path.endswith(ARCHIVES):
            del sys.path_importer_cache[_path]

# ruff: noqa: E402
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
