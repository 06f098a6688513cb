"""Which errors are no record's: those of a cluster's parts are not searched for a record to blame."""

from __future__ import annotations

import pytest

from penstock.engine.faults import poison_search

SPARK = "org.apache.spark.SparkException"
PYTHON = "org.apache.spark.api.python.PythonException"
TRACEBACK = "Traceback (most recent call last):\n  in decode\n"
ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in stage "
    "3.0 (TID 12) (127.0.0.1 executor 5): "
)
STAGE = (
    "Job aborted due to stage failure: ResultStage 9 (toArrow at x.py:1) has failed the maximum allowable number of "
    "times: 4. Most recent failure reason: x"
)


@pytest.mark.parametrize(
    ("causes", "outside"),
    [
        # As a cluster said them when its parts were killed.
        ([(SPARK, ABORTED), ("java.nio.file.NoSuchFileException", "blockmgr-1/1f/shuffle_108_314_0.index")], True),
        ([(SPARK, f"{ABORTED}ExecutorLostFailure (executor 5 exited caused by one of the running tasks)")], True),
        ([(SPARK, STAGE)], True),
        ([(SPARK, "gone"), ("org.apache.spark.shuffle.FetchFailedException", "Failed to connect")], True),
        ([(SPARK, "gone"), ("java.net.ConnectException", "Connection refused")], True),
        ([], True),
        ([(SPARK, ABORTED), (PYTHON, f"{TRACEBACK}penstock.errors.RegistryError: the schema registry does not")], True),
        *(
            ([(SPARK, ABORTED), (PYTHON, f"{TRACEBACK}{raised}")], True)
            for raised in (
                "OSError: [Errno 28] No space left on device: '/checkpoints/sums/folds/sums/0/1f.arrow'",
                "OSError: [Errno 122] Disk quota exceeded",
                "OSError: [Errno 24] Too many open files: '/proc/meminfo'",
                "OSError: [Errno 12] Cannot allocate memory",
                "_duckdb.IOException: IO Error: Could not write file",
                "penstock.errors.Wait: the object store of s3://b/c does not answer",
                "penstock.engine.state.state_part.DamagedState: a file of a stream's state is missing",
                "penstock.tables.table_store.TableCorrupt: the manifest of a table cannot be read",
            )
        ),
        # A record's own, whatever words it has.
        ([(SPARK, ABORTED), (PYTHON, f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file: 'of a record'")], False),
        ([(SPARK, ABORTED), (PYTHON, f"{TRACEBACK}OSError: [Errno 36] File name too long: 'of a record'")], False),
        ([(SPARK, ABORTED), (PYTHON, f"{TRACEBACK}ValueError: OSError: [Errno 28] No space left")], False),
        ([(SPARK, ABORTED), ("org.apache.spark.SparkArithmeticException", "[DIVIDE_BY_ZERO] Division by zero")], False),
        ([(SPARK, f"{ABORTED}org.x.Y: (executor 5): ExecutorLostFailure (")], False),
        ([(SPARK, ABORTED), (PYTHON, f"{TRACEBACK}ValueError: penstock.errors.RegistryError: ")], False),
        ([(SPARK, ABORTED), ("java.net.URISyntaxException", "Illegal character: NoSuchFileException")], False),
    ],
)  # fmt: skip
def test_what_no_record_causes(monkeypatch: pytest.MonkeyPatch, causes: list[tuple[str, str]], outside: bool) -> None:
    monkeypatch.setattr("penstock.engine.jvm.bridge.error_chain", lambda _: causes)
    assert poison_search.is_infrastructure_error(ValueError()) is outside
