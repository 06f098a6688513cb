"""Java classes of Penstock that Spark's JVM loads, compiled where they are missing."""

from __future__ import annotations

import zipfile
from pathlib import Path

from penstock.host.files import publish
from penstock.java import jars
from penstock.java.compiler import compile_java

# Jars of Spark that they are compiled with.
USED = (
    "spark-catalyst_", "spark-common-utils_", "spark-core_", "spark-sql-api_", "spark-sql_", "hadoop-client-api-",
    "scala-library-",
)  # fmt: skip


def jar_of(source: Path) -> Path:
    """The jar of a source's classes."""
    spark = sorted((jars.pyspark_folder() / "jars").glob("*.jar"))
    classes = compile_java(source, [jar for jar in spark if jar.name.startswith(USED)])
    target = classes.with_name(f"{classes.name}-jar")
    with publish(target) as fresh:
        if fresh:
            with zipfile.ZipFile(fresh / f"{source.stem}.jar", "w") as out:
                for file in classes.rglob("*.class"):
                    out.write(file, file.relative_to(classes))
    return target / f"{source.stem}.jar"
