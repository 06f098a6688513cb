"""The folders of a replacement, beside the checkpoint of its stream."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from penstock.engine.checkpoint import cut_rows, s3a
from penstock.engine.checkpoint.layout import Checkpoint
from penstock.engine.operations.reset import Reset
from penstock.errors import DeclarationError, PenstockError
from penstock.model.output import TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.model.stream import Stream

CHECKPOINT = "checkpoint"
# What a checkpoint has of Penstock's: of a reset, of splits and of who owns it.
OWN_FILES = ("penstock-*.json*", ".penstock-*", "penstock.json", ".penstock.json*", f"{cut_rows.FOLDER}*")


def new_version_folder(stream: str, root: str) -> Path:
    """The folder in which a new version of a stream is built: its checkpoint, its rows and what is known of it."""
    return Path(urlparse(root).path, f"{stream}.replacement")


def check_replaceable(stream: Stream, root: str) -> None:
    """Raise DeclarationError if a stream cannot be replaced beside its running version."""
    others = [output for output in stream.outputs.values() if not isinstance(output, TopicOutput)]
    if others and (len(stream.outputs) > 1 or others[0].replacement_obstacle):
        raise DeclarationError(
            f"stream {stream.name} cannot be replaced beside its running version",
            got=others[0].replacement_obstacle or ", ".join(stream.output_names),
            hint="let a sink of another name, and with another target, write the documents anew from the first record; "
            f"or stop it, release its app, and `penstock streams reset {stream.name}`",
        )
    if s3a.is_object_store(root):
        raise DeclarationError(
            f"the checkpoint of stream {stream.name} is in an object store, where no folder can take another's place",
            got=root,
            hint=f"`penstock streams reset {stream.name} --to TIME` begins anew; or give the stream a new name",
        )


def copy_earlier(stream: Stream, spark: SparkSession, root: str, target: Path) -> None:
    """Copy the checkpoint that was kept of the version before the running one, up to the last batch that it wrote.

    Args:
        stream: The stream.
        spark: A session.
        root: The root of all checkpoints.
        target: The folder of the copy.

    Raises:
        PenstockError: It is not kept.
    """
    folder = new_version_folder(stream.name, root).with_name(f"{stream.name}.before")
    active = Checkpoint(spark, root, stream.name).active_reset()
    query, written = (Reset.read(active).continues if active else None) or ("", -1)
    earlier = Checkpoint(spark, root, folder.name)
    done, (_, planned_ends) = earlier.last_commit, earlier.pending_offsets()
    # Its driver may have ended between the output of its last batch and Spark's commit: the batch runs again.
    is_planned = done >= 0 and done + 1 == written and bool(planned_ends)
    if not query or earlier.query_id != query or not (done == written or is_planned):
        raise PenstockError(
            f"the version of stream {stream.name} before the running one is not kept",
            got=f"{folder} is {'of another version' if folder.is_dir() else 'not there'}",
            hint="put the earlier code on the disk, and build its state anew: "
            f"`penstock streams replace {stream.name}`",
        )
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*OWN_FILES))
    planned = target / "offsets" / str(written + 1)
    # It may end where the running version has not been.
    planned.unlink(missing_ok=True)
    planned.with_name(f".{planned.name}.crc").unlink(missing_ok=True)
