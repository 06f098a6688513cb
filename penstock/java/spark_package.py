"""The installed Spark: two packages hold its Python files, and one of them its jars."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from penstock.errors import HostError
from penstock.java import jars


def check() -> str:
    """The version of Spark.

    Raises:
        HostError: Its parts have different versions. pyspark-client, which the Spark provider requires, overwrites
            Python files of pyspark, and pip reports no conflict.
    """
    folder = jars.pyspark_folder()
    versions = {}
    for package in ("pyspark", "pyspark-client"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    declared = re.search(r"""__version__.*?=\s*['"]([^'"]+)""", (folder / "version.py").read_text())
    versions["Python files"] = declared[1] if declared else "none"
    core = next((folder / "jars").glob("spark-core_*.jar"), None)
    versions["jars"] = core.stem.rpartition("-")[2] if core else "none"
    if len(set(versions.values())) > 1:
        raise HostError(
            "the parts of Spark in this environment have different versions",
            got=", ".join(f"{name} {v}" for name, v in versions.items()),
            hint="create the environment again; a requirement of yours for pyspark or pyspark-client must name the "
            "version that Penstock requires",
        )
    return versions["jars"]
