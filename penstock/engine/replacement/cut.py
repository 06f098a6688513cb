"""The cut: the checkpoint of a new version takes the place of the running version's.

It becomes the pending reset of the stream, which its next driver activates. So all that holds for a reset holds here:
a driver that dies in between completes it, and the checkpoint before is kept in `<stream>.before`.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.engine.checkpoint import cut_rows
from penstock.engine.checkpoint.layout import Checkpoint, move_durably
from penstock.engine.operations.reset import Reset
from penstock.model.target_versions import open_versions, versioned_output

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.engine.replacement.new_version import NewVersion
    from penstock.model.output import CommitMarker
    from penstock.model.stream import Stream


def hand_over(
    new: NewVersion, marker: CommitMarker, rows: Mapping[str, pa.Table], earlier: Mapping[str, pa.Table]
) -> Path:
    """Let the next driver of a stream go on with the new version. The running version must be stopped.

    A process that is killed meanwhile has changed nothing, or all: the move of the checkpoint decides.

    Args:
        new: The new version, whose last step is at the marker; it is closed.
        marker: The last commit marker of the running version.
        rows: What the first batch writes besides its own rows, by output.
        earlier: What the running version has written, and going back writes again, by output.

    Returns:
        The folder that waits for the start of the stream.
    """
    target = new.folder.with_name(f"{new.stream.name}.reset")
    cut_rows.write(str(new.checkpoint_folder), new.stream, rows, earlier)
    new.take_over(marker)
    new.close()
    move_durably(new.checkpoint_folder, target)
    shutil.rmtree(new.folder, ignore_errors=True)
    return target


def show_documents(stream: Stream, replacement: str, *, back: bool) -> None:
    """Let readers of a sink's store see the documents of the new version, once that has the place of the running one.

    Nothing is done for streams with topics, nor if they are shown already.

    Args:
        stream: The new version.
        replacement: The id of the replacement.
        back: Whether the documents before are shown again.

    Raises:
        Wait: The store is away.
        PenstockError: It refuses that.
    """
    if output := versioned_output(stream):
        with closing(open_versions(output, replacement, back=back)) as versions:
            versions.show()


def discard_documents(stream: Stream, replacement: str, *, back: bool) -> None:
    """Remove the documents of a new version that was cancelled or has failed; as `show_documents`."""
    if output := versioned_output(stream):
        with closing(open_versions(output, replacement, back=back)) as versions:
            versions.discard()


def is_handed_over(spark: SparkSession, root: str, stream: str, id: str) -> bool:  # noqa: A002
    """Whether a stream goes on, or will with its next start, with the new version of a replacement.

    Args:
        spark: A session.
        root: The root of all checkpoints.
        stream: The name of the stream.
        id: The id of the replacement.
    """
    checkpoint = Checkpoint(spark, root, stream)
    resets = (checkpoint.pending_reset(), checkpoint.active_reset())
    return any(text and Reset.read(text).id == id for text in resets)
