"""Sends the code of a release to executors, which may be on hosts that do not have the driver's copy of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTOR_FOLDER = "penstock-release"
"""The folder of an executor in which Spark unpacks it; first on the path of its Python."""


def send_code(spark: SparkSession) -> None:
    """Let all executors of a session, also later ones, fetch this driver's release from it before their first task."""
    # The executors' Python imports this module, and must not load settings for it.
    from penstock.settings import settings
    from penstock.supervision import code_snapshot

    project = settings().project
    if str(spark.sparkContext.master).startswith("local") or project != code_snapshot.folder_of(project.name):
        return
    # Spark takes it for a URL, because of the fragment.
    spark.sparkContext.addArchive(f"{code_snapshot.archive_copy(project.name).as_uri()}#{EXECUTOR_FOLDER}")
