"""What makes a step of a new version fail."""

from __future__ import annotations

from pyspark.errors import StreamingQueryException

from penstock.engine.error_text import root_message
from penstock.engine.faults.poison_search import is_infrastructure_error
from penstock.engine.jvm import bridge
from penstock.errors import PenstockError


class StepFailed(Exception):
    """Tells Spark that a step failed. It has no text: Spark looks for causes in it by a pattern, which overflows the
    stack of the query if the text is that of a job that was cancelled."""


class StepInterrupted(PenstockError):
    """A step failed by what no record causes, such as a broker that is away: it can be run again."""


def step_error(stream: str, failure: Exception) -> PenstockError:
    """The error of a step that has failed.

    Args:
        stream: The name of the stream.
        failure: What was raised by Spark, or by what the step does.
    """
    if isinstance(failure, PenstockError):
        return failure
    what, got = f"a step of the new version of stream {stream} failed", root_message(failure)
    if isinstance(failure, StreamingQueryException) and (chain := bridge.error_chain(failure)):
        # Its own text begins with ids of the query.
        got = root_message(Exception(": ".join(chain[-1])))
    error: PenstockError
    if is_infrastructure_error(failure):
        hint = f"correct that if it lasts, and replace the stream again: `penstock streams replace {stream}`"
        error = StepInterrupted(what, got=got, hint=hint)
    else:
        hint = "mend the transform, or leave the record out of it, and replace the stream again"
        error = PenstockError(what, got=got, hint=hint)
    error.__cause__ = failure
    return error
