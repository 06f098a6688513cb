"""How far heartbeats may advance the event time of a topic, by the progress of the streams that feed it.

A heartbeat says that no records before its time follow. For a topic that streams write it must not be sent before they
have passed that time: their later rows would be late for the topic's readers. A stream counts as having reached the
clock while it is *healthy*; otherwise it has reached what its last report says, and so have the streams that it feeds.
After it is healthy again, those streams reach the clock once they have read what it had written by then. The same holds
for streams whose windows stayed open because no heartbeats were sent: their rows are as old as the last heartbeats.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from penstock.catalog import HeartbeatReader, HeartbeatTopics, UpstreamWriter
from penstock.control import Control, StreamProgress
from penstock.errors import ControlError

log = logging.getLogger(__name__)

# How long an answer of the control database is used, so that many topics cost one query.
LOOK_EVERY = 1.0
# A database that hangs takes seconds to fail, and heartbeats of other topics would wait.
RETRY_EVERY = 10.0
# Drivers report every two seconds: one that misses a report is well, one that misses two is not.
SILENT = 5.0
# How far behind the reports of a stream that keeps up may be, in seconds: five until its inputs are measured, two until
# it is reported, and some batches. Its `every` comes on top, for a batch to read and one to close windows.
BEHIND = 15.0
TRIGGERS = 3
# A reader whose grace is shorter would lose what such a stream has not read yet. A quarter of its grace is left for the
# rows to come to it; what a stream that keeps up needs until it is reported is always granted.
SHARE_OF_GRACE = 0.75
REPORTED = 7.5
# Changes that are remembered of a stream.
MAX_CHANGES = 1000
AT_THE_CLOCK = 1 << 62
NONE: Mapping[str, int] = MappingProxyType({})
DATABASE_AWAY = "the control database is down"


class EventTimeBound(NamedTuple):
    """Epoch ms up to which heartbeats may move a topic's event time, None if not at all; why, if that is not the
    clock."""

    at: int | None
    why: str = ""


class HeartbeatGate:
    """How far the streams are that feed topics. Not thread-safe.

    Args:
        windowed: What `Catalog.heartbeat_topics` returns.
        control: None if the progress of streams cannot be read; then nothing is held.
        progress_every: Seconds between two reports of a driver.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        windowed: HeartbeatTopics,
        control: Control | None,
        progress_every: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control, self._clock, self._windowed = control, clock, windowed
        self._named = any(reader.name for topic in windowed.values() for reader in topic.readers)
        self._writers = {name: writer for topic in windowed.values() for name, writer in topic.writers.items()}
        # Streams that feed each other would wait for themselves, so among them each is considered alone.
        self._feeds = {
            name: [f for f in writer.feeds if name not in self._all_feeds(f)] for name, writer in self._writers.items()
        }
        self._silent = max(SILENT, 2.5 * progress_every)
        self.rows: Mapping[str, StreamProgress] = {}
        """The progress of streams, by the last look."""
        # The database's clock when it last answered, and when that was.
        self._now, self._heard_at = 0, float("-inf")
        self._look_at = float("-inf")
        self._outage = ""
        # By stream, and how far behind it may be.
        self._reached: dict[tuple[str, float], tuple[int, str]] = {}
        self._history: dict[tuple[str, float], tuple[list[int], list[int]]] = {}
        # By topic: its event time while no heartbeats were sent, and when they resumed.
        self._missed: dict[str, tuple[int, int]] = {}

    @property
    def watches(self) -> bool:
        """Whether there is anything to look at."""
        return self._control is not None and (bool(self._writers) or self._named)

    def bound(self, name: str, now_ms: int) -> EventTimeBound:
        """The bound of a topic, by the last look. now_ms: the caller's clock, in which the bound is given."""
        beaten = self._windowed[name]
        if not self.watches or not beaten.writers:
            return EventTimeBound(now_ms)
        if not self._now:
            return EventTimeBound(None, DATABASE_AWAY)
        at, why = min(self._reached[writer, _granted(beaten.grace)] for writer in beaten.writers)
        age = self._database_now() - at
        # The other half of the grace is for what its records took before they came to the streams.
        if at == AT_THE_CLOCK or age <= beaten.grace * 500:
            return EventTimeBound(now_ms)
        return EventTimeBound(now_ms - age if at else None, why)

    def running(self, name: str) -> list[HeartbeatReader]:
        """A topic's readers that are not stopped, by the last look."""
        return [
            r for r in self._windowed[name].readers if (row := self.rows.get(r.name)) is None or row.desired != "off"
        ]

    def now(self) -> int | None:
        """The control database's clock, epoch ms; None before it has answered."""
        return self._database_now() if self._now else None

    def sent(self, topic: str) -> None:
        """Note that heartbeats of a topic are sent again."""
        if self._missing(topic):
            self._missed[topic] = (self._missed[topic][0], self._database_now())

    def look(self, overdue: Mapping[str, int] = NONE) -> None:
        """See how far the streams are, every second at most; without the database, what was known last counts.

        overdue: topics whose heartbeats were not sent when they were due, with the age of the last one in ms.
        """
        new = [topic for topic in overdue if not self._missing(topic)]
        if self._control is None or not self.watches or (self._clock() < self._look_at and not (new and self._now)):
            return
        self._look_at = self._clock() + LOOK_EVERY
        try:
            now, self.rows = self._control.stream_progress()
            # Where nothing is declared there is no row to tell it.
            self._now, self._heard_at, self._outage = now or self._control.now(), self._clock(), ""
        except ControlError as e:
            if not self._outage:
                log.warning("how far streams are is not known, what was known last counts: %s", e)
            self._outage, self._look_at = DATABASE_AWAY, self._clock() + RETRY_EVERY
        if self._now:
            self._missed |= {topic: (self._database_now() - overdue[topic], AT_THE_CLOCK) for topic in new}
            self._reached = {}
            for topic in self._windowed.values():
                for name in topic.writers:
                    self._reach(name, self._database_now(), _granted(topic.grace))

    def _missing(self, topic: str) -> bool:
        return topic in self._missed and self._missed[topic][1] == AT_THE_CLOCK

    def _all_feeds(self, name: str) -> set[str]:
        """The streams that feed one, in any number of steps."""
        feeds: set[str] = set()
        waiting = [name]
        while waiting:
            new = set(self._writers[waiting.pop()].feeds) - feeds
            feeds |= new
            waiting += new
        return feeds

    def _database_now(self) -> int:
        return self._now + int((self._clock() - self._heard_at) * 1000)

    def _reach(self, name: str, now: int, granted: float) -> int:
        """Where a stream is with all that feed it, and why it is not at the clock."""
        if (name, granted) in self._reached:
            return self._reached[name, granted][0]
        writer, row = self._writers[name], self.rows.get(name)
        reached = self._alone(name, writer, row, now, granted)
        for feed in self._feeds[name]:
            feed_at = self._reach(feed, now, granted)
            reached = min(reached, (feed_at, self._reached[feed, granted][1]))
            if row and row.caught_up_at is not None:
                feed_then = self._as_of(feed, row.caught_up_at, granted)
                reached = min(reached, (feed_then, f"{name} has not read yet what {feed} caught up with"))
        for topic in writer.clocks:
            at, until = self._missed.get(topic, (AT_THE_CLOCK, 0))
            if row and row.caught_up_at is not None and row.caught_up_at < until:
                reached = min(reached, (at, f"{name} has windows open that were due while no beats were sent"))
        self._reached[name, granted] = reached
        self._note(name, reached[0], now, granted)
        return reached[0]

    def _alone(
        self, name: str, of: UpstreamWriter, row: StreamProgress | None, now: int, granted: float
    ) -> tuple[int, str]:
        if row is None or (row.desired == "off" and row.caught_up_at is None):
            return AT_THE_CLOCK, ""
        if row.caught_up_at is None:
            return 0, f"{name} was not through its inputs yet"
        if row.desired == "off":
            return row.caught_up_at, f"{name} is stopped"
        if now - row.reported_at > self._silent * 1000:
            return row.caught_up_at, self._outage or f"{name} is down"
        if row.state not in ("running", "idle"):
            return row.caught_up_at, f"{name} is {'starting' if row.state == 'stopped' else row.state}"
        if now - row.caught_up_at > min(BEHIND + TRIGGERS * of.every, granted) * 1000:
            return row.caught_up_at, f"{name} is behind"
        return AT_THE_CLOCK, ""

    def _as_of(self, name: str, when: int, granted: float) -> int:
        """Where a stream was known to be at a time; before anything was known of it, where it was first."""
        times, values = self._history[name, granted]
        return values[max(0, bisect_right(times, when) - 1)]

    def _note(self, name: str, at: int, now: int, granted: float) -> None:
        times, values = self._history.setdefault((name, granted), ([], []))
        if not values or values[-1] != at:
            times.append(now)
            values.append(at)
            del times[:-MAX_CHANGES], values[:-MAX_CHANGES]


def _granted(grace: float) -> float:
    """Seconds that a stream which runs may be behind before the heartbeats of a reader with this grace are held."""
    return max(REPORTED, grace * SHARE_OF_GRACE)
