"""The time of a batch, which is not written into the code that Spark generates. Tested with Spark 4.2.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


def batch_time(spark: SparkSession) -> Column:
    """TIMESTAMP: when the batch of a query was planned, as `current_timestamp()` is.

    Spark writes the latter as a number into the code that it generates, and so compiles it for each batch: two classes,
    which take 10 ms each, and start cold. `java/BatchConstant.java` hands the number to the code.
    """
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm: Any = spark._jvm
    now: Any = F.current_timestamp()
    columns = jvm.org.apache.spark.sql.classic.ExpressionUtils
    return ClassicColumn(columns.column(jvm.penstock.BatchConstant(columns.expression(now._jc))))
