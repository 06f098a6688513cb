"""The classes that write the files of checkpoints, in place of Spark's own."""

from __future__ import annotations

import zipfile
from pathlib import Path

from penstock.host.files import publish
from penstock.java import jars
from penstock.java.compiler import compile_java

# On a disk, and in an object store.
LOCAL, CONDITIONAL = "penstock.LocalCheckpointFileManager", "penstock.ConditionalCheckpointFileManager"
SOURCES = Path(__file__).parent / "java"
# Jars of Spark that they are compiled with.
USED = ("spark-sql_", "spark-core_", "spark-common-utils_", "hadoop-client-api-", "scala-library-")


def jar_of(manager: str) -> Path:
    """The jar of a class, compiled where it is missing."""
    source = SOURCES / f"{manager.rpartition('.')[2]}.java"
    spark = sorted((jars.pyspark_folder() / "jars").glob("*.jar"))
    classes = compile_java(source, [jar for jar in spark if jar.name.startswith(USED)])
    target = classes.with_name(f"{classes.name}-jar")
    with publish(target) as fresh:
        if fresh:
            with zipfile.ZipFile(fresh / f"{source.stem}.jar", "w") as out:
                for file in classes.rglob("*.class"):
                    out.write(file, file.relative_to(classes))
    return target / f"{source.stem}.jar"
