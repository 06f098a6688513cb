"""What a stream's query does, in words: its columns, its state, and whether a release continues with that state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.checkpoint import plan_fingerprint
from penstock.engine.checkpoint.plan_fingerprint import PlanFingerprint
from penstock.engine.query.spark_limits import clear_refusal
from penstock.engine.state import fold
from penstock.errors import Blocked
from penstock.settings import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.model.stream import Stream


@dataclass(frozen=True)
class StreamExplanation:
    """What a stream's query does.

    Attributes:
        columns: The transform's columns and their types, as Spark writes them.
        state: What is kept in state: keys and values of each stateful step, a line each.
        release: What a release of this code means for the state that there is; empty if that was not asked.
    """

    columns: list[tuple[str, str]]
    state: list[str]
    release: str = ""

    @classmethod
    def of(cls, frame: DataFrame, lines: list[str], release: str = "") -> StreamExplanation:
        """The explanation of the frame that a stream's transform returned. lines: its fingerprint."""
        columns = [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
        # The output mode says which windows they are.
        return cls(columns, [line for line in lines if not line.startswith("windows of ")], release)


def explain(stream: Stream, spark: SparkSession) -> StreamExplanation:
    """Explain a stream by its plan and its checkpoint; no broker is asked.

    Raises:
        DeclarationError: The transform cannot run as it is declared.
    """
    path = f"{settings().checkpoint_root.rstrip('/')}/{stream.name}"
    with clear_refusal(stream), fold.use_checkpoint(stream, path) as context:
        tables = plan_fingerprint.empty_tables(stream, spark)
        frame = plan_fingerprint.build_frame(spark, stream, settings().bootstrap, tables)
    lines = plan_fingerprint.fingerprint_lines(stream, frame, context)
    plan = PlanFingerprint(spark, stream.name, path)
    if not plan.is_stored:
        release = "the stream has no state yet"
    else:
        try:
            plan.check(lines, can_rebuild=context.can_rebuild)
            release = "the stream continues with its state" if lines else "the stream continues; it keeps no state"
        except Blocked as e:
            release = f"the stream would be blocked: {e}"
    return StreamExplanation.of(frame, lines, release)
