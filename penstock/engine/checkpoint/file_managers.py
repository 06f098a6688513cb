"""The classes that write the files of checkpoints, in place of Spark's own."""

from __future__ import annotations

from pathlib import Path

from penstock.java import spark_classes

# On a disk, and in an object store.
LOCAL, CONDITIONAL = "penstock.LocalCheckpointFileManager", "penstock.ConditionalCheckpointFileManager"
SOURCES = Path(__file__).parent / "java"


def jar_of(manager: str) -> Path:
    """The jar of a class, compiled where it is missing."""
    return spark_classes.jar_of(SOURCES / f"{manager.rpartition('.')[2]}.java")
