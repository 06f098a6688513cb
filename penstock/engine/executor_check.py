"""Checks that an executor has what batches need: Python, its libraries, this code, the connector, the brokers.

An app asks for one executor, as other apps do, and runs on it what every batch needs. The last line of its output is
the result as JSON.

    python -m penstock.engine.executor_check
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from penstock.engine.executor_wait import ExecutorWatch
from penstock.engine.session import open_session
from penstock.kafka.admin import admin, end_offsets, first_offsets
from penstock.model.topic import COMMITS
from penstock.settings import settings
from penstock.supervision import launch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

APP = "doctor"
# Seconds until the executor is there, and for the whole check.
EXECUTOR_TIMEOUT_S, CHECK_TIMEOUT_S = 20.0, 150.0
MAX_ERROR_CHARS = 600


@dataclass(frozen=True)
class ExecutorCheckResult:
    """python: the one that ran, on that host; records: that were read; lacking: why it was not tried; wrong: what."""

    python: str = ""
    host: str = ""
    records: int = 0
    missing: str = ""
    error: str = ""


def check_executor() -> ExecutorCheckResult:
    """Run the check in a process. It takes seconds, as a JVM starts."""
    cores = str(settings().executor_cores)
    try:
        answer = launch.run_json_module(
            ["penstock.engine.executor_check"], CHECK_TIMEOUT_S, PENSTOCK_APP_CORES=cores, PENSTOCK_DRIVER_MEMORY="512m"
        )
    except subprocess.TimeoutExpired:
        return ExecutorCheckResult(error=f"no answer within {CHECK_TIMEOUT_S:g} s")
    except subprocess.CalledProcessError as e:
        return ExecutorCheckResult(error=_short(e.stderr.decode(errors="replace")) or f"it ended with {e.returncode}")
    return ExecutorCheckResult(**answer)


def run_check(spark: SparkSession) -> ExecutorCheckResult:
    executors = ExecutorWatch(spark, APP)
    deadline = time.monotonic() + EXECUTOR_TIMEOUT_S
    while executors.missing is not None and time.monotonic() < deadline:
        time.sleep(0.2)
    executors.close()
    if executors.missing is not None:
        return ExecutorCheckResult(missing=executors.missing or "the executor that was started does not come")
    try:
        ran = spark.range(1, numPartitions=1).mapInArrow(_executor_facts, "host string, python string").first()
        assert ran
        return ExecutorCheckResult(python=ran.python, host=ran.host, records=_read(spark))
    except Exception as e:  # whatever the host lacks is reported
        return ExecutorCheckResult(error=_short(str(e)))


def _executor_facts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import socket

    import pyarrow as pa

    import penstock.engine.query.decode  # noqa: F401  # as what is sent by streams does

    for batch in batches:
        facts = {"host": [socket.gethostname()] * len(batch), "python": [sys.executable] * len(batch)}
        yield pa.RecordBatch.from_pydict(facts)


def _read(spark: SparkSession) -> int:
    """Read one partition of the commit markers; the number of records."""
    from penstock.engine.query.source import topic_records  # the doctor itself needs no Spark

    bootstrap = settings().bootstrap
    client, partitions = admin(bootstrap), [(COMMITS.name, p) for p in range(COMMITS.partitions)]
    firsts, ends = first_offsets(client, partitions, bootstrap), end_offsets(client, partitions, bootstrap)
    full = [partition for partition in partitions if partition in firsts and firsts[partition] < ends.get(partition, 0)]
    if not full:
        return 0
    (topic, partition_read), lasts = full[0], {p: ends.get((t, p), 0) for t, p in partitions}
    starts = lasts | {partition_read: firsts[topic, partition_read]}
    return topic_records(spark, bootstrap, {topic: starts}, {topic: lasts}).count()


def _short(text: str) -> str:
    """The line of an error's text that has the last cause."""
    causes = re.findall(r"^(?:Caused by: )?((?:[\w.$]+)?(?:Exception|Error)\b.*)$", text, re.MULTILINE)
    return (causes[-1] if causes else text.strip())[-MAX_ERROR_CHARS:]


if __name__ == "__main__":
    session = open_session(APP)
    print(json.dumps(asdict(run_check(session))), flush=True)
    session.stop()
