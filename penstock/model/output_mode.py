"""Output modes: when a stream emits rows, and how often a row is emitted. Each chooses one of Spark's output modes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import ClassVar, Literal

from penstock.errors import DeclarationError

SparkMode = Literal["append", "update"]
ZERO = timedelta(0)
POSITIVE = {"least": 1}
# Every time of the calendar's last centuries can be moved by so much.
MAX_DURATION = timedelta(days=365_000)
MAX_DURATION_MS = MAX_DURATION // timedelta(milliseconds=1)


def millis(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def check_duration(what: str, duration: object, *, least: int = 0) -> None:
    """Check that a duration is a whole number of milliseconds within bounds.

    Args:
        what: names the argument in the error.
        duration: the argument.
        least: smallest allowed duration, ms.

    Raises:
        DeclarationError: it is no timedelta of whole milliseconds, is below `least`, or is above MAX_DURATION.
    """
    if (
        not isinstance(duration, timedelta)
        or duration % timedelta(milliseconds=1)
        or not least <= millis(duration) <= MAX_DURATION_MS
    ):
        raise DeclarationError(
            f"{what} is not a valid duration",
            got=repr(duration),
            hint=f"give a timedelta of whole milliseconds, {least} at least, {MAX_DURATION.days} days at most",
        )


@dataclass(frozen=True)
class HeartbeatSchedule:
    """Event times at which the watermark must advance: `offset` after each multiple of `interval`."""

    interval: timedelta
    offset: timedelta = ZERO

    def next(self, after_ms: int) -> int:
        """The first scheduled time later than `after_ms`, epoch ms."""
        interval, offset = millis(self.interval), millis(self.offset)
        return ((after_ms - offset) // interval + 1) * interval + offset


@dataclass(frozen=True)
class OutputMode:
    """Base of all output modes.

    Attributes:
        spark_mode: Spark's output mode.
        stateful_steps: stateful operators (aggregations, stream-stream joins, deduplication, state with timers) of the
            transform, unless the stream says otherwise.
        updates_rows: whether a row may be emitted again with newer values.
    """

    spark_mode: ClassVar[SparkMode] = "append"
    stateful_steps: ClassVar[int] = 1
    updates_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for one in fields(self):
            duration = getattr(self, one.name)
            if duration is not None or one.default is not None:
                check_duration(f"{type(self).__name__}({one.name}=...)", duration, least=one.metadata.get("least", 0))
        if self.window_phase and self.window_phase >= self.window_length:
            raise DeclarationError(
                f"{type(self).__name__}(phase=...) does not lie between one window's end and the next",
                got=repr(self.window_phase),
                hint="give a phase below window, and none with first_step=...",
            )

    @property
    def watermark_delay(self) -> timedelta:
        return ZERO

    @property
    def window_length(self) -> timedelta:
        """The window that decides which record is late; zero where no window does."""
        return ZERO

    @property
    def window_phase(self) -> timedelta:
        """How long after each multiple of `window_length` a window ends."""
        return ZERO

    @property
    def record_retention(self) -> timedelta:
        """How long behind its own event time a record is late, where no window decides it."""
        return ZERO

    @property
    def drops_late(self) -> bool:
        """Whether records can be late. If so, no row older than the watermark is emitted."""
        return True

    @property
    def heartbeat_schedule(self) -> HeartbeatSchedule | None:
        """When the watermark must advance on an idle topic; None if it need not."""
        return None


@dataclass(frozen=True)
class EmitFinal(OutputMode):
    """Each window is emitted once, when it closes.

    Attributes:
        window: length of the window (the slide of windows that overlap), so when a window closes.
        grace: how long after a window's end its records are accepted; later ones are late.
        first_step: where another stateful step precedes the windows, or the windows are sessions: how long that step
            keeps a record, which then decides what is late. The gap of a session; zero for deduplication.
        phase: how long after each multiple of `window` a window ends. Windows of five minutes that slide by two end
            one minute after.
    """

    window: timedelta = field(metadata=POSITIVE)
    grace: timedelta
    first_step: timedelta | None = None
    phase: timedelta = ZERO

    @property
    def watermark_delay(self) -> timedelta:
        return self.grace

    @property
    def window_length(self) -> timedelta:
        return self.window if self.first_step is None else ZERO

    @property
    def window_phase(self) -> timedelta:
        return self.phase

    @property
    def record_retention(self) -> timedelta:
        return self.first_step or ZERO

    @property
    def heartbeat_schedule(self) -> HeartbeatSchedule:
        return HeartbeatSchedule(self.window, self.grace + self.phase)


@dataclass(frozen=True)
class EmitChanges(OutputMode):
    """Each change of a window is upserted as its new absolute value.

    Attributes:
        window: length of the window (the slide of windows that overlap); one second at least in practice.
        grace: how long after a window's end its records are accepted; later ones are late.
        phase: as in EmitFinal.
    """

    window: timedelta = field(metadata=POSITIVE)
    grace: timedelta
    phase: timedelta = ZERO

    spark_mode: ClassVar[SparkMode] = "update"
    updates_rows: ClassVar[bool] = True

    @property
    def watermark_delay(self) -> timedelta:
        return self.grace

    @property
    def window_length(self) -> timedelta:
        return self.window

    @property
    def window_phase(self) -> timedelta:
        return self.phase


@dataclass(frozen=True)
class Stateless(OutputMode):
    """Each record becomes rows by itself, without window or state. Tables may be joined to it."""

    stateful_steps: ClassVar[int] = 0

    @property
    def drops_late(self) -> bool:
        return False


@dataclass(frozen=True)
class StreamJoin(OutputMode):
    """A stream-stream join. Each pair is emitted once; an unmatched row of an outer join when no partner can follow.

    Attributes:
        within: how far apart in event time partners may lie; the transform's join condition says the same.
        grace: how long after its event time a record is accepted.
    """

    within: timedelta
    grace: timedelta

    @property
    def watermark_delay(self) -> timedelta:
        return self.grace

    @property
    def heartbeat_schedule(self) -> HeartbeatSchedule:
        # An unmatched row waits for `within` and the grace: half as long again does no harm.
        return HeartbeatSchedule(max(timedelta(seconds=1), (self.within + self.grace) / 2))


@dataclass(frozen=True)
class Timers(OutputMode):
    """State with timers in event time (`transformWithState`). Rows follow records and timers.

    Attributes:
        tick: how often the watermark advances on an idle topic, and so how exact timers are.
        grace: how long after its event time a record is accepted, before timers pass it.
    """

    tick: timedelta = field(metadata=POSITIVE)
    grace: timedelta

    @property
    def watermark_delay(self) -> timedelta:
        return self.grace

    @property
    def heartbeat_schedule(self) -> HeartbeatSchedule:
        return HeartbeatSchedule(self.tick)


@dataclass(frozen=True)
class KeyedState(OutputMode):
    """State by key in columns (`Fold`). Rows follow records and timers, and newer ones replace older ones of a key
    where the output's key is meant so.

    Attributes:
        grace: how long after its event time a record is accepted; later ones are late. None accepts every record.
        tick: how often the watermark advances on an idle topic, and so how exact timers are: `grace` after each
            multiple of it, so that a timer set at one fires at once. None if the folds have no timers.
    """

    grace: timedelta | None = None
    tick: timedelta | None = field(default=None, metadata=POSITIVE)

    @property
    def watermark_delay(self) -> timedelta:
        return self.grace or ZERO

    @property
    def drops_late(self) -> bool:
        return self.grace is not None

    @property
    def heartbeat_schedule(self) -> HeartbeatSchedule | None:
        return HeartbeatSchedule(self.tick, self.watermark_delay) if self.tick else None
