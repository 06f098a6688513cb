"""A step that failed by what no record causes can be run again."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from penstock.engine.replacement.step_error import StepInterrupted, step_error


class JavaClass:
    def __init__(self, name: str) -> None:
        self._name = name

    def getName(self) -> str:  # noqa: N802
        return self._name


class JavaError(Exception):
    """An error of Spark, as py4j has it: with an error of Java, and its cause."""

    def __init__(self, *names: str) -> None:
        super().__init__(names[-1])
        self._name, self._cause = names[0], JavaError(*names[1:]) if names[1:] else None
        self._origin = self

    def getClass(self) -> JavaClass:  # noqa: N802
        return JavaClass(self._name)

    def getMessage(self) -> str:  # noqa: N802
        return "it failed"

    def getCause(self) -> JavaError | None:  # noqa: N802
        return self._cause


QUERY = "org.apache.spark.sql.streaming.StreamingQueryException"


@pytest.mark.parametrize(
    "cause", ["org.apache.kafka.common.errors.TimeoutException", "java.util.concurrent.TimeoutException"]
)
def test_a_broker_that_is_away_interrupts_a_step(cause: str) -> None:
    failure = StreamingQueryException("[STREAM_FAILED] Query [id = 1] terminated")
    failure.__dict__["_origin"] = JavaError(QUERY, "java.util.concurrent.ExecutionException", cause)
    error = step_error("orders", failure)
    assert isinstance(error, StepInterrupted)
    assert error.got == f"{cause}: it failed"
    assert "transform" not in error.hint


def test_a_record_that_a_transform_refuses_ends_it() -> None:
    error = step_error("orders", JavaError(QUERY, "org.apache.spark.SparkArithmeticException"))
    assert not isinstance(error, StepInterrupted)
    assert error.hint.startswith("mend the transform")
