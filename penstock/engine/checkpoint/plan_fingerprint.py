"""The fingerprint of a stream's plan: lines that say what it keeps in state.

Two releases are compared by it, as Spark goes on with the state of another aggregate or window if only its types are
the same. The lines are kept in the checkpoint. `python -m penstock.engine.checkpoint.plan_fingerprint APP` compares
them with the present code, for all streams of an app, without a broker; with --accept the next start accepts other
lines, and with --except STREAM that stream may have state of other code.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import orjson
import pyspark

from penstock import catalog
from penstock.engine.checkpoint.recovery import REBUILD_HINT
from penstock.engine.error_text import root_message
from penstock.engine.jvm import bridge
from penstock.engine.jvm.hadoop_fs import HadoopFolder
from penstock.engine.query import source, spark_limits
from penstock.engine.query.expectations import check_expectations
from penstock.engine.query.masks import check_masks
from penstock.engine.query.spark_limits import clear_refusal
from penstock.engine.session import open_session, session_for
from penstock.engine.state import fold as folding
from penstock.engine.state import restore_rules
from penstock.errors import Blocked, PenstockError
from penstock.host.child_output import redirect_stdout, write_result
from penstock.model.sql.error_translation import told_in_sql
from penstock.model.sql.stream_query import declared_in_sql
from penstock.settings import settings
from penstock.tables import topic_reader

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame, SparkSession

    from penstock.engine.operations.reset import Reset
    from penstock.engine.query.source import RecordPosition
    from penstock.engine.state.fold import FoldContext
    from penstock.model.stream import Stream

PLAN_FILE, ACCEPTED_PLAN_FILE = "plan.json", "plan-accepted.json"


def build_frame(
    spark: SparkSession,
    stream: Stream,
    bootstrap: str,
    tables: dict[str, DataFrame],
    excluded: Collection[RecordPosition] = (),
    reset: Reset | None = None,
    *,
    has_commits: bool = True,
    max_records: int = 0,
    traces: bool = False,
    records: DataFrame | None = None,
) -> DataFrame:
    """The frame that a stream's transform makes of its inputs.

    Args:
        spark: A session for the stream.
        stream: The stream.
        bootstrap: The broker.
        tables: Its tables, by name.
        excluded: Records that are not read.
        reset: The reset that the query begins with.
        has_commits: Whether the checkpoint has committed batches.
        max_records: The most records of a batch; 0 for no limit.
        traces: Whether trace contexts are read.
        records: The raw records of its only input, in place of those of the broker.

    Raises:
        DeclarationError: The frame is not what the stream declares.
    """
    frames = {
        name: source.input_stream(
            spark,
            stream,
            name,
            bootstrap,
            excluded,
            reset=reset,
            has_read=has_commits,
            max_records=max_records,
            traces=traces,
            records=records,
        )
        for name in stream.sources
    }
    if stream.tables:
        # Spark would broadcast a table: it takes it for small, and broadcasts before the table is up to date.
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", -1)
        # So a join hashes the batch and not the table.
        frames = {name: frame.hint("shuffle_hash") for name, frame in frames.items()}
    with folding.current_context() as context, told_in_sql(declared_in_sql(stream)):
        frame = stream.transform(**frames, **tables)
        _check_frame(stream, frame, context)
    return frame


def _check_frame(stream: Stream, frame: DataFrame, context: FoldContext) -> None:
    """DeclarationError if a frame, with the folds that made it, is not what a stream declares."""
    spark_limits.check_is_frame(stream, frame)
    spark_limits.check_stateful_steps(
        stream, [*bridge.stateful_steps(frame), *(spark_limits.FOLD for _ in context.folds)]
    )
    spark_limits.check_fold_reads(context.folds.values(), bridge.arrow_functions(frame))
    spark_limits.check_due_timers(stream, [fold.name for fold in context.folds.values() if fold.timer_field])
    spark_limits.check_timer_clocks(stream, bridge.timer_clocks(frame))
    spark_limits.check_event_times(stream, bridge.untimed_groups(frame), bridge.own_watermarks(frame))
    spark_limits.check_windows(stream, bridge.event_time_windows(frame))
    check_expectations(stream, frame)
    check_masks(stream, frame)
    if any(fold.restore_sql for fold in context.folds.values()):
        restore_rules.restore_query_of(stream, frame, context)


def can_rebuild(stream: Stream, spark: SparkSession, bootstrap: str) -> bool:
    """Whether the state of a stream can be rebuilt from its topics."""
    try:
        with folding.current_context() as context:
            build_frame(spark, stream, bootstrap, empty_tables(stream, spark))
    except Exception:
        # A transform may raise anything, and why the stream stands is another matter.
        return False
    return context.can_rebuild


def empty_tables(stream: Stream, spark: SparkSession) -> dict[str, DataFrame]:
    """The tables of a stream, without rows."""
    return {
        name: spark.createDataFrame([], topic_reader.table_ddl(table.fields)) for name, table in stream.tables.items()
    }


def fingerprint_lines(stream: Stream, frame: DataFrame, context: FoldContext | None = None) -> list[str]:
    """The fingerprint of a stream: its state, and which share of a topic it reads.

    With another share it would skip records that another stream has not written yet.

    Args:
        stream: The stream.
        frame: What `build_frame` returned.
        context: The context of its folds.
    """
    shares = [(one.source, *one.share) for one in stream.sources.values() if one.share != (1, 1)]
    folds = folding.state_lines(stream, context) if context else []
    return [*bridge.state_layout(frame), *folds, *(f"share {n} of {of} of {source}" for source, n, of in shares)]


class PlanFingerprint:
    """The fingerprint that is kept in a stream's checkpoint."""

    def __init__(self, spark: SparkSession, stream: str, path: str) -> None:
        self._stream, self._folder = stream, HadoopFolder(spark, path)
        self._reset = HadoopFolder(spark, f"{path}.reset")

    @property
    def is_stored(self) -> bool:
        """Whether the checkpoint has committed batches and the plan that made them."""
        return self._lines(PLAN_FILE) is not None and bool(self._folder.list_names("commits"))

    def check(self, lines: list[str], *, ignore_accepted: bool = False, can_rebuild: bool = False) -> None:
        """Compare the plan with the one that made the state.

        Args:
            lines: The plan's fingerprint.
            ignore_accepted: Whether to ignore a fingerprint that was accepted before.
            can_rebuild: Whether the state can be rebuilt.

        Raises:
            Blocked: The checkpoint has batches of another plan, and this one was not accepted.
        """
        if self._reset.list_names("."):
            return  # the next start begins with a reset
        previous = self._lines(PLAN_FILE)
        accepted = None if ignore_accepted else self._lines(ACCEPTED_PLAN_FILE)
        if previous is None or _matches(lines, previous) or _matches(lines, accepted):
            return
        if self._folder.list_names("commits"):
            raise Blocked(
                f"stream {self._stream} has state of other code, and this code would misread it",
                got=_difference(previous, _in_form_of(previous, lines)),
                hint="take the old code back; or give the stream a new name; or stop it and "
                + (f"{REBUILD_HINT.format(name=self._stream)}; or " if can_rebuild else "")
                + "begin anew from a time, "
                f"`penstock streams reset {self._stream} --to TIME`, or with all that its topics still hold, "
                "`--to earliest`, release and start it; or if the old state fits all the same, here and in all "
                "streams of its app: "
                f"`penstock streams release {self._stream} --accept-state`. "
                "Rows of windows that are closed can be computed again from an archive, if a backfill does that: "
                "`penstock backfill list`",
            )

    def store(self, lines: list[str]) -> None:
        """Record that the state is from now on that of this plan."""
        if self._lines(PLAN_FILE) != lines:
            self._write(PLAN_FILE, lines)
        # What is accepted for the next release stays, if this is a restart before it.
        if _matches(lines, self._lines(ACCEPTED_PLAN_FILE)):
            self._folder.delete(ACCEPTED_PLAN_FILE)

    def accept(self, lines: list[str]) -> None:
        """Let the next start go on with the present state under this plan."""
        try:
            self.check(lines, ignore_accepted=True)
        except Blocked:
            self._write(ACCEPTED_PLAN_FILE, lines)

    def _write(self, name: str, lines: list[str]) -> None:
        self._folder.replace(name, orjson.dumps({"spark": pyspark.__version__, "state": lines}).decode())

    def _lines(self, name: str) -> list[str] | None:
        """None if they cannot be read or are of another version of Spark, which describes plans differently."""
        try:
            read: dict[str, Any] = orjson.loads(self._folder.read_verified(name) or "")
        except orjson.JSONDecodeError:
            return None
        lines: list[str] = read["state"]
        return lines if read["spark"] == pyspark.__version__ else None


def _matches(lines: list[str], stored: list[str] | None) -> bool:
    return stored is not None and _in_form_of(stored, lines) == stored


def _in_form_of(stored: list[str], lines: list[str]) -> list[str]:
    """The lines without the types of folds' keys, if they are compared with stored ones of a version that kept none."""
    if any(line.startswith(folding.KEY_LINE) for line in stored):
        return lines
    return [line for line in lines if not line.startswith(folding.KEY_LINE)]


def _difference(before: list[str], after: list[str]) -> str:
    removed, added = (
        [line for line in lines if line not in others] for lines, others in ((before, after), (after, before))
    )
    if not removed and not added:
        return f"another order: was {', '.join(before)}; is {', '.join(after)}"
    return f"was {', '.join(removed) or 'without'}; is {', '.join(added) or 'without'}"


def compare_plans(app: str, *, accept: bool = False, excepted: str = "") -> dict[str, list[str]]:
    """Compare the state of an app's streams with the present code.

    Args:
        app: The app.
        accept: Whether the next start accepts state of other code.
        excepted: A stream that may have state of other code.

    Returns:
        refused: why streams cannot go on, a text each. differing: the streams that have state of other code.
    """
    declared_catalog, _ = catalog.load_partial(first=app, combiners=False)
    base = open_session("plans")
    refused: list[str] = []
    differing: list[str] = []
    accepted: list[tuple[PlanFingerprint, list[str]]] = []
    for name in (declared.name for declared in declared_catalog.app(app)):
        stream = declared_catalog.stream(name)
        spark = session_for(base, stream)
        try:
            path = f"{settings().checkpoint_root.rstrip('/')}/{name}"
            with clear_refusal(stream), folding.use_checkpoint(stream, path) as context:
                frame = build_frame(spark, stream, settings().bootstrap, empty_tables(stream, spark))
            lines = fingerprint_lines(stream, frame, context)
            plan = PlanFingerprint(spark, name, path)
            if accept:
                accepted.append((plan, lines))
            elif name != excepted:
                try:
                    plan.check(lines, ignore_accepted=True, can_rebuild=context.can_rebuild)
                except Blocked:
                    differing.append(name)
                    raise
        except PenstockError as e:
            refused.append(str(e))
        except Exception as e:
            # Of the checkpoint, for example; the other streams are checked all the same.
            refused.append(f"stream {name}: {type(e).__name__}: {root_message(e)}")
    # All or none.
    for plan, lines in [] if refused else accepted:
        plan.accept(lines)
    bridge.stop_jvm(base)
    return {"refused": refused, "differing": differing}


def main() -> dict[str, list[str]]:
    """Compare plans as the command line says."""
    parser = argparse.ArgumentParser(description="Compare the state of an app's streams with the code as it is.")
    parser.add_argument("app")
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("--except", dest="excepted", default="", metavar="STREAM")
    arguments = parser.parse_args()
    return compare_plans(arguments.app, accept=arguments.accept, excepted=arguments.excepted)


if __name__ == "__main__":
    out = redirect_stdout()
    write_result(out, main())
