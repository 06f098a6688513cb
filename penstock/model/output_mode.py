"""When a stream emits rows, and how often a row is emitted. Each output mode chooses one of Spark's."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import ClassVar, Literal

from penstock.errors import DeclarationError

Mode = Literal["append", "update"]
NONE = timedelta(0)
POSITIVE = {"least": 1}
# Every time of the calendar's last centuries can be moved by so much.
LONGEST = timedelta(days=365_000)
MOST = LONGEST // timedelta(milliseconds=1)


def millis(length: timedelta) -> int:
    return length // timedelta(milliseconds=1)


def check_length(what: str, length: object, *, least: int = 0) -> None:
    """DeclarationError if it is no length of time in whole milliseconds, below `least` ms, or above LONGEST."""
    if not isinstance(length, timedelta) or length % timedelta(milliseconds=1) or not least <= millis(length) <= MOST:
        raise DeclarationError(
            f"{what} is no length of time that can be kept",
            got=repr(length),
            hint=f"give a timedelta of whole milliseconds, {least} at least, {LONGEST.days} days at most",
        )


@dataclass(frozen=True)
class HeartbeatSchedule:
    """Moments at which time must have moved: every so often, `after` behind each multiple of that."""

    every: timedelta
    after: timedelta = NONE

    def next(self, after_ms: int) -> int:
        """Epoch ms of the first one later than `after_ms`."""
        every, after = millis(self.every), millis(self.after)
        return ((after_ms - after) // every + 1) * every + after


@dataclass(frozen=True)
class OutputMode:
    """mode: Spark's output mode; steps: stateful steps (aggregations, joins of two streams, duplicates dropped, state
    with timers) that the transform has unless the stream says otherwise; refines: whether a row may come again, later,
    with newer values."""

    mode: ClassVar[Mode] = "append"
    steps: ClassVar[int] = 1
    refines: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for given in fields(self):
            length = getattr(self, given.name)
            if length is not None or given.default is not None:
                check_length(f"{type(self).__name__}({given.name}=...)", length, least=given.metadata.get("least", 0))
        if self.ends and self.ends >= self.length:
            raise DeclarationError(
                f"{type(self).__name__}(phase=...) is no time between one window's end and the next",
                got=repr(self.ends),
                hint="give a phase below window, and none with first=...",
            )

    @property
    def delay(self) -> timedelta:
        """The watermark's delay."""
        return NONE

    @property
    def length(self) -> timedelta:
        """The window that decides which record is late; zero where none does."""
        return NONE

    @property
    def ends(self) -> timedelta:
        """How long after each multiple of `length` a window ends."""
        return NONE

    @property
    def taken_for(self) -> timedelta:
        """How long behind its own time a record is late, where no window decides it."""
        return NONE

    @property
    def drops_late(self) -> bool:
        """Whether a record may come too late: then nothing older than the watermark comes out of the stream."""
        return True

    @property
    def due(self) -> HeartbeatSchedule | None:
        """When time must have moved though nobody sends; None if it need not."""
        return None


@dataclass(frozen=True)
class EmitFinal(OutputMode):
    """Each window is emitted once, when it closes, and never refined.

    window: length of the window (its slide, where windows overlap): gives the moments at which one is due.
    phase: how long after each multiple of `window` a window ends, where that is not zero: five minutes every two end
        one minute after.
    grace: how long after a window's end its records may still arrive; later ones are counted as late.
    first: where another step comes before the windows, or the windows are sessions, for how long that step takes a
        record: the gap of a session, zero where duplicates are dropped. It then decides which record is late.
    """

    window: timedelta = field(metadata=POSITIVE)
    grace: timedelta
    first: timedelta | None = None
    phase: timedelta = NONE

    @property
    def delay(self) -> timedelta:
        return self.grace

    @property
    def length(self) -> timedelta:
        return self.window if self.first is None else NONE

    @property
    def ends(self) -> timedelta:
        return self.phase

    @property
    def taken_for(self) -> timedelta:
        return self.first or NONE

    @property
    def due(self) -> HeartbeatSchedule:
        return HeartbeatSchedule(self.window, self.grace + self.phase)


@dataclass(frozen=True)
class EmitChanges(OutputMode):
    """Every change of a window is upserted as its new absolute value.

    window: length of the window (its slide, where windows overlap), one second at least in practice; decides which
        record is late.
    phase: as with EmitFinal.
    grace: how late a record may be and still update its window; later ones are counted as late.
    """

    window: timedelta = field(metadata=POSITIVE)
    grace: timedelta
    phase: timedelta = NONE

    mode: ClassVar[Mode] = "update"
    refines: ClassVar[bool] = True

    @property
    def delay(self) -> timedelta:
        return self.grace

    @property
    def length(self) -> timedelta:
        return self.window

    @property
    def ends(self) -> timedelta:
        return self.phase


@dataclass(frozen=True)
class Stateless(OutputMode):
    """Every record becomes rows by itself, without a window and without state; tables may be joined to it."""

    steps: ClassVar[int] = 0

    @property
    def drops_late(self) -> bool:
        return False


@dataclass(frozen=True)
class StreamJoin(OutputMode):
    """Rows of two streams that meet in time; each pair is emitted once, an unmatched row of an outer join when no
    partner can come any more.

    within: how far apart in event time two partners may lie; the transform's join condition says the same.
    grace: how long after its time a record may still arrive.
    """

    within: timedelta
    grace: timedelta

    @property
    def delay(self) -> timedelta:
        return self.grace

    @property
    def due(self) -> HeartbeatSchedule:
        # An unmatched row waits for `within` and the grace: half as long again does no harm.
        return HeartbeatSchedule(max(timedelta(seconds=1), (self.within + self.grace) / 2))


@dataclass(frozen=True)
class Timers(OutputMode):
    """State with timers in event time (`transformWithState`): rows when records come and when a timer is due.

    tick: how exact timers are when nobody sends: time moves so often at least.
    grace: how long after its time a record may still arrive before timers pass it.
    """

    tick: timedelta = field(metadata=POSITIVE)
    grace: timedelta

    @property
    def delay(self) -> timedelta:
        return self.grace

    @property
    def due(self) -> HeartbeatSchedule:
        return HeartbeatSchedule(self.tick)


@dataclass(frozen=True)
class KeyedState(OutputMode):
    """State by key, kept in columns (`Fold`): rows when records come and when a key is due; of a key with newer values,
    where that is how the output's key is meant.

    grace: how late a record may be and still be folded in; later ones are counted as late. None takes every one.
    tick: how exact what is due is when nobody sends: time moves so often at least, `grace` behind each multiple of
        it, so that what is due at one is found at once. None if nothing is ever due.
    """

    grace: timedelta | None = None
    tick: timedelta | None = field(default=None, metadata=POSITIVE)

    @property
    def delay(self) -> timedelta:
        return self.grace or NONE

    @property
    def drops_late(self) -> bool:
        return self.grace is not None

    @property
    def due(self) -> HeartbeatSchedule | None:
        return HeartbeatSchedule(self.tick, self.delay) if self.tick else None
