"""The Java classes of this package, which Spark's JVM loads."""

from __future__ import annotations

from pathlib import Path

from penstock.java import spark_classes

SOURCES = Path(__file__).parent / "java"


def jars() -> list[Path]:
    """Their jars, compiled where they are missing."""
    return [spark_classes.jar_of(source) for source in sorted(SOURCES.glob("*.java"))]
