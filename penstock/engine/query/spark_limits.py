"""What Spark does not support in one query, with hints what to do instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from penstock.engine.error_text import root_message
from penstock.errors import DeclarationError, PenstockError, line_within
from penstock.model.output_mode import KeyedState, Stateless, StreamJoin, Timers
from penstock.model.sql.error_translation import told_in_sql
from penstock.model.sql.stream_query import declared_in_sql
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.engine.jvm.bridge import EventTimeWindows
    from penstock.model.fold import Fold
    from penstock.model.stream import Stream

FOLD = "Fold"
GROUP_BY_TIME = (
    'group by a window of event_time as well, F.window("event_time", ...): declare another time as the event time of '
    'the input; shift windows for days of another zone, F.window("event_time", "1 day", startTime="5 hours"), and say '
    "their phase in the output mode; for a value by key without an end take a Fold"
)
TWO_STREAMS = "make two streams with a topic between: the first writes absolute values by key, the second reads them"
# By a pattern of Spark's message: what is not supported, and a hint.
REFUSALS = {
    "correctness' issue": (
        "a stateful step after one that Spark does not support before it",
        f"use EmitFinal, or {TWO_STREAMS}",
    ),
    "aggregations without watermark": (
        "an aggregate that never ends, as its groups have no event time",
        GROUP_BY_TIME,
    ),
    "without a watermark in the join keys": (
        "an outer join without an end",
        "say in its condition how far apart the partners' event times may lie, as StreamJoin(within=...) does",
    ),
    r"join\w* with (a )?streaming .* (on the (right|left)|static)": (
        "a join that would need all of a stream that has no end",
        "join the stream with the table, not the table with the stream; for rows without a partner, filter a left join",
    ),
    "session window streaming aggregations": ("sessions that are updated", "use EmitFinal: a session is emitted once"),
    "Distinct aggregations": (
        "a count of different values",
        "drop duplicates in a step before (steps=2), take size(collect_set(...)), or approx_count_distinct",
    ),
    "Sorting is not supported": ("an order of rows", "leave it out: readers order by key or time"),
    "NON_TIME_WINDOW": (
        "a window over rows",
        "max_by or min_by in a window of event_time, or state with timers (Timers)",
    ),
    "Limits are not supported": ("a limit over a stream", "leave it out, or aggregate by a window of event_time"),
    "(Intersect|Except) of streaming": ("sets of a stream's rows", "join the streams on the columns"),
}


@contextmanager
def clear_refusal(stream: Stream) -> Iterator[None]:
    """Turn what a transform or Spark raises into a DeclarationError that names the stream and the line."""
    try:
        with refusals(stream):
            yield
    except PenstockError:
        raise
    except Exception as e:
        raise DeclarationError(
            f"the transform of stream {stream.name} fails",
            got=f"{type(e).__name__}: {root_message(e)}",
            hint=f"mend it in {line_within(settings().project, e) or stream.location}",
        ) from e


@contextmanager
def refusals(stream: Stream) -> Iterator[None]:
    """Turn Spark's refusal of a query into a DeclarationError that says what to do, if it is a known one."""
    try:
        yield
    except AnalysisException as e:
        message = str(e)
        for pattern, (what, hint) in REFUSALS.items():
            if re.search(pattern, message):
                first = message.splitlines()[0].partition(";")[0]
                with told_in_sql(declared_in_sql(stream)):
                    raise DeclarationError(
                        f"stream {stream.name} uses {what}, which Spark does not support", got=first[:300], hint=hint
                    ) from e
        raise


def check_is_frame(stream: Stream, rows: object) -> None:
    """DeclarationError if a transform gave something else."""
    if not isinstance(rows, DataFrame):
        raise DeclarationError(
            f"stream {stream.name}: the transform does not return a DataFrame",
            got=repr(rows),
            hint="return a DataFrame",
        )


def check_windows(stream: Stream, windows: Sequence[EventTimeWindows]) -> None:
    """DeclarationError if the windows of a plan with one step end at other times than the output mode says."""
    output_mode = stream.output_mode
    if stream.stateful_steps > 1 or not output_mode.window_length:
        return
    for window in windows:
        if (window.slide, window.phase) != (output_mode.window_length, output_mode.window_phase):
            kind, declared = (
                type(output_mode).__name__,
                f"window={output_mode.window_length!r}, phase={output_mode.window_phase!r}",
            )
            raise DeclarationError(
                f"stream {stream.name} has other windows than its output mode declares",
                got=f"windows of {window.length}, every {window.slide}, from {window.start} on, and {kind}({declared})",
                hint=f"use {kind}(window={window.slide!r}, phase={window.phase!r}, ...), or take other windows",
            )


def check_event_times(stream: Stream, untimed: Sequence[str], watermarks: Sequence[str]) -> None:
    """DeclarationError if groups of a plan have no event time, or it has a watermark of its own.

    untimed, watermarks: as `jvm.untimed_groups` and `jvm.own_watermarks` return them.
    """
    if watermarks:
        raise DeclarationError(
            f"stream {stream.name} sets a watermark, but the watermark of a stream follows from its output mode",
            got=f"withWatermark on {', '.join(watermarks)}",
            hint="remove withWatermark: declare the grace in the output mode, and the event time in the input",
        )
    if stream.output_mode.updates_rows and untimed:
        raise DeclarationError(
            f"stream {stream.name} uses {type(stream.output_mode).__name__} for groups without event time, so their "
            "state would grow without limit",
            got=f"groups by {', '.join(untimed)}",
            hint=GROUP_BY_TIME,
        )


def check_timer_clocks(stream: Stream, clocks: Sequence[str]) -> None:
    """DeclarationError if state of a plan, by the names that `jvm.clocks` gives, lives by another than event time."""
    if others := [clock for clock in clocks if not clock.startswith("EventTime")]:
        raise DeclarationError(
            f"stream {stream.name} has timers in event time, but its state uses another clock",
            got=", ".join(others),
            hint='transformWithState(..., "Append", "EventTime"), on rows that still have the column event_time',
        )


def check_fold_reads(folds: Iterable[Fold], functions: Sequence[str]) -> None:
    """DeclarationError if the rows of a fold are not read once.

    Args:
        folds: Those that a transform calls.
        functions: The names of the functions that its plan calls, as often as it does.
    """
    for fold in folds:
        reads = functions.count(f"fold {fold.name}")
        if reads > 1:
            raise DeclarationError(
                f"{fold.location}: fold {fold.name} would be computed as often as its rows are read",
                got=f"they are read {reads} times",
                hint="read them once: emit each row as often as it is needed, with a column that says for what",
            )
        if not reads:
            raise DeclarationError(
                f"{fold.location}: nobody reads the rows of fold {fold.name}, so it would keep no state",
                hint="read them, or leave the fold out",
            )


def check_due_timers(stream: Stream, due: Sequence[str]) -> None:
    """DeclarationError if keys of some folds are due at times, and nothing moves time, or none is. due: those folds."""
    # A tick without timers makes batches that keep tables near the ends of their topics.
    if not due and not stream.tables and isinstance(stream.output_mode, KeyedState) and stream.output_mode.tick:
        raise DeclarationError(
            f"stream {stream.name} has a tick, and neither a fold with a timer nor a table",
            got=f"KeyedState(tick={stream.output_mode.tick!r})",
            hint="leave tick out, or declare Fold(timer_field=...)",
        )
    if due and not stream.output_mode.heartbeat_schedule:
        raise DeclarationError(
            f"stream {stream.name} has timers, and nothing advances time if no records arrive",
            got=f"fold {', '.join(due)} and {type(stream.output_mode).__name__}() without tick",
            hint="use KeyedState(tick=timedelta(seconds=1)), or a longer tick",
        )


def check_stateful_steps(stream: Stream, steps: Sequence[str]) -> None:
    """DeclarationError if the stateful steps of a plan, by Spark's names, are not what the stream promises."""
    output_mode = type(stream.output_mode).__name__
    joins, timers = "Join" in steps, any(step.startswith(("TransformWithState", "FlatMapGroups")) for step in steps)
    if joins and not isinstance(stream.output_mode, StreamJoin):
        raise DeclarationError(
            f"stream {stream.name} joins two streams and has the output mode {output_mode}",
            got=", ".join(steps),
            hint="use StreamJoin(within=..., grace=...): each pair comes once; for values of pairs that are updated "
            + TWO_STREAMS,
        )
    if timers and not isinstance(stream.output_mode, Timers):
        raise DeclarationError(
            f"stream {stream.name} has state of its own and the output mode {output_mode}",
            got=", ".join(steps),
            hint="use Timers(tick=..., grace=...): each row once, when records or timers make them; for values that "
            f"are updated {TWO_STREAMS}",
        )
    if isinstance(stream.output_mode, KeyedState) and FOLD in steps and {*steps} != {FOLD}:
        raise DeclarationError(
            f"stream {stream.name} has other state beside that of its folds",
            got=", ".join(steps),
            hint=f"compute it in a fold; for windows and joins {TWO_STREAMS}",
        )
    if (FOLD in steps) != isinstance(stream.output_mode, KeyedState):
        raise DeclarationError(
            f"stream {stream.name} has the output mode {output_mode}, and "
            + ("folds" if FOLD in steps else "does not fold"),
            got=", ".join(steps) or "no stateful step",
            hint="use KeyedState(grace=...) for a transform whose only state is that of its folds; for another "
            + TWO_STREAMS,
        )
    if "GlobalLimit" in steps:
        what, hint = REFUSALS["Limits are not supported"]
        raise DeclarationError(f"stream {stream.name} uses {what}, which ends after the first rows", hint=hint)
    if isinstance(stream.output_mode, Stateless) and steps:
        raise DeclarationError(
            f"stream {stream.name} keeps state, and has the output mode Stateless",
            got=", ".join(steps),
            hint="use EmitFinal(window=..., grace=...), which emits each window once, or EmitChanges",
        )
    missing = (isinstance(stream.output_mode, StreamJoin) and not joins) or (
        isinstance(stream.output_mode, Timers) and not timers
    )
    if missing or len(steps) != stream.stateful_steps:
        raise DeclarationError(
            f"stream {stream.name} has the output mode {output_mode} with {stream.stateful_steps} stateful steps",
            got=f"{', '.join(steps) or 'none'} in its transform",
            hint=f"say steps={len(steps)}, or take another output mode; with EmitChanges one is all that Spark can do",
        )
