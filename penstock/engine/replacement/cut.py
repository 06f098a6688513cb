"""The cut: the checkpoint of a new version takes the place of the running version's.

It becomes the pending reset of the stream, which its next driver activates. So all that holds for a reset holds here:
a driver that dies in between completes it, and the checkpoint before is kept in `<stream>.before`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.engine.checkpoint import cut_rows
from penstock.engine.checkpoint.layout import RESET_FILE, move_durably
from penstock.engine.jvm.hadoop_fs import HadoopFolder
from penstock.engine.replacement import new_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.engine.replacement.new_version import NewVersion
    from penstock.model.output import CommitMarker

RUNNING_ROWS = "running"
"""The folder, beside the new version's rows, of those of the running version."""


def hand_over(new: NewVersion, spark: SparkSession, marker: CommitMarker, rows: Mapping[str, pa.Table]) -> Path:
    """Let the next driver of a stream go on with the new version. The running version must be stopped.

    Args:
        new: The new version, whose last step is at the marker; it is closed.
        spark: A session.
        marker: The last commit marker of the running version.
        rows: What the first batch writes besides its own rows, by output.

    Returns:
        The folder that waits for the start of the stream.
    """
    reset = new.take_over(marker)
    new.close()
    folder = new.folder
    target = folder.with_name(f"{new.stream.name}.reset")
    cut_rows.write(str(folder), new.stream, rows)
    new.rows.remove()
    for name in (RUNNING_ROWS, f"{new.stream.name}.tables"):
        shutil.rmtree(folder / name, ignore_errors=True)
    HadoopFolder(spark, str(folder)).replace(RESET_FILE, reset.text())
    (folder / new_version.STATE_FILE).unlink(missing_ok=True)
    move_durably(folder, target)
    return target
