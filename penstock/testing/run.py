"""A stream that is run to the end of its input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.control import ProgressRow
from penstock.engine.query.stream_run import StreamRun
from penstock.engine.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.control.repositories.data_loss import DataLossLog
    from penstock.engine.jvm.query_clock import QueryClock
    from penstock.model.stream import Stream


@contextmanager
def spark_session(java_options: Sequence[str] | None = None) -> Iterator[SparkSession]:
    """A session as a driver has it, for a fixture of scope `session`: it takes some seconds.

    java_options: further options of the JVM, instead of those for its AOT cache.
    """
    spark = open_session("tests", java_options)
    # What a test asks by itself needs no two hundred tasks; a stream has its own.
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def running(
    stream: Stream,
    spark: SparkSession,
    bootstrap: str,
    checkpoints: Path,
    book: DataLossLog | None = None,
    *,
    clock: QueryClock | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[StreamRun]:
    """The stream, started as a driver does; stopped at the end. `process_all_available` waits until all
    that is there is written.

    book: where its gaps are written down. clock: of its batches, if not the machine's. conf: settings of its session.
    """
    figures = ProgressRow(stream.name, stream.app, "test")
    run = StreamRun(replace(stream, every=0.0), spark, bootstrap, str(checkpoints), figures, book)
    for name, value in (conf or {}).items():
        run.session.conf.set(name, value)
    if clock:
        clock.drive(run.session)
    run.start()
    try:
        yield run
    finally:
        run.stop()
