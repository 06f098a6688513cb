"""For tests of streams: a transform on rows, a stream against a real broker, timed inputs with what must come out.

The first needs a Spark session and nothing else::

    def test_totals(spark):
        orders = [{"shop": "a", "amount": 2.5, "at": 1_700_000_000_000}]
        assert rows(spark, STREAM, orders=orders) == [{"shop": "a", "minute": 1_699_999_980_000, "total": 2.5}]
"""

from penstock.testing.rows import frames, rows, splits
from penstock.testing.run import running, spark_session
from penstock.testing.topics import Record, create, latest, read, send, table

__all__ = [
    "Record", "create", "frames", "latest", "read", "rows", "running", "send",
    "spark_session", "splits", "table",
]  # fmt: skip
