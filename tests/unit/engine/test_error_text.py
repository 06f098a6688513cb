"""Which line of a failed query's report is shown."""

from __future__ import annotations

import pytest

from penstock.engine.error_text import root_message

PYTHON = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "x.py", line 1, in call
    raise e
  File "y.py", line 2, in _write
    raise BrokerError("no")
penstock.errors.BrokerError: stream a could not commit a batch; got: timed out

=== Streaming Query ===
Identifier: a"""
JAVA = """Job aborted due to stage failure: Task 0 in stage 1.0 failed
	at org.apache.spark.Scheduler
Caused by: java.lang.RuntimeException: outer
	at x
Caused by: java.io.IOException: No space left on device
	at y"""

BROKEN = "BrokerError: stream a could not commit a batch; got: timed out"
CALLED = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "z.py", line 3, in find
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o8.toPythonIterator.
: org.apache.spark.KafkaIllegalStateException: Partitions do not match.
Specified: Set(a-0)
	at org.apache.spark.Kafka"""


@pytest.mark.parametrize(
    ("cause", "shown"),
    [
        (None, "the query ended by itself"),
        (RuntimeError(PYTHON), BROKEN),
        (RuntimeError(PYTHON.replace("    raise e\n", "    raise e\nTraceback (most recent call last):\n")), BROKEN),
        (RuntimeError(JAVA), "java.io.IOException: No space left on device"),
        (RuntimeError(CALLED), "org.apache.spark.KafkaIllegalStateException: Partitions do not match."),
        (RuntimeError(f"{CALLED}\nCaused by: java.io.IOException: no"), "java.io.IOException: no"),
        (ValueError("plain"), "plain"),
        (
            RuntimeError("An error occurred while calling o4.rename.\n: java.io.IOException: no\n\tat x"),
            "java.io.IOException: no",
        ),
        (KeyError(), "KeyError"),
    ],
)
def test_root_message(cause: BaseException | None, shown: str) -> None:
    assert root_message(cause) == shown
