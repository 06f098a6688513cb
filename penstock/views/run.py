"""One view in one instance: a thread that brings its store up to what its topic holds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.control import ProgressRow
from penstock.control.views import Holds
from penstock.declare.inputs import Table
from penstock.declare.topic import Topic
from penstock.declare.view import Served, View
from penstock.engine.tablefeed import TableFeed, Taken
from penstock.engine.tabletopic import Now, look, made_again, missed, same_count
from penstock.errors import DeclarationError, LeaseLost, PenstockError
from penstock.kafka.admin import Ends
from penstock.settings import settings
from penstock.views.layout import Layout
from penstock.views.plan import kept_by, partitions_of
from penstock.views.store import Damaged, Store

log = logging.getLogger(__name__)

# Seconds between two looks at the topic, when the last found something and when it did not.
EVERY, IDLE = 0.5, 1.0
# Seconds after which the store notes again that it is up to the end, and its rows are counted again.
NOTE_EVERY, COUNT_EVERY = 60.0, 10.0
# Who was away for longer may have missed what the topic does not show any more.
CHECK_EVERY = 60.0
BACKOFF = (1.0, 2.0, 5.0, 10.0, 30.0)
STOP = 20.0


class Held(NamedTuple):
    """One partition. next, end: offsets, the end as it was when it was asked for last; at: monotonic, before an end was
    asked for that is reached since; made: which of its files the store has it in."""

    next: int
    end: int
    at: float
    made: int


@dataclass
class Figures:
    """What a view says of itself beside its row of progress."""

    keys: int = 0
    bytes: int = 0
    dead: int = 0
    reason: str = ""
    rebuilt: str = ""
    """Why the store was made anew, the last time it was in this process."""


class ViewRun:
    """A view as one instance keeps it, in a thread of its own. figures: its row of progress.

    In that row, rows in are records, rows out changes of keys, the dead ones no record of the schema, the batch is a
    transaction of the store, and the state what the store holds.
    """

    def __init__(self, served: Served, topic: Topic, root: Path, bootstrap: str, figures: ProgressRow) -> None:
        self.view: View = served.view
        self.figures = figures
        self.seen = Figures()
        self.offsets: dict[str, dict[int, int]] = {}
        self.count = 0
        """Partitions of the topic; 0 until they are known."""
        self.held: dict[int, Held] = {}
        """Those of this instance that can be answered for."""
        self._mine: list[int] = []
        self.layout = Layout(served.view)
        self.store = Store(self.layout, root / f"{served.view.name}.db")
        self._instance, self._topic, self._bootstrap = served.instance, topic, bootstrap
        self._table = Table(topic, served.view.schema)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failures = 0
        self._rate = (time.monotonic(), figures.rows_in)
        self._noted = self._counted = 0.0
        # Epoch ms of the last end that was asked for and is reached; 0 if the store was opened since.
        self._read_at = 0

    # Life, as the driver sees it

    @property
    def running(self) -> bool:
        return self._thread is not None

    @property
    def active(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def tend(self) -> None:
        if not self.active:
            self._stopping = threading.Event()
            self.figures.state = "starting"
            self._thread = threading.Thread(
                target=self._work, args=(self._stopping,), name=f"view-{self.view.name}", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP)
            self._thread = None
        self.figures.state, self.figures.rows_per_s = "stopped", 0.0

    def writing_for(self) -> float:
        """A write that hangs shows as a view that grows old."""
        return 0.0

    def lag(self, offsets: dict[str, dict[int, int]], stable: Ends, ends: Ends, at: float) -> None:
        """It measures its own, more often."""

    def report(self) -> ProgressRow:
        then, rows = self._rate
        now = time.monotonic()
        if now - then > 1:
            self.figures.rows_per_s = (self.figures.rows_in - rows) / (now - then)
            self._rate = (now, self.figures.rows_in)
        if self.figures.state in ("running", "idle"):
            self.figures.state = "running" if self.figures.rows_per_s or self.figures.lag else "idle"
        held = self.held
        self.figures.behind_ms = int((now - min(h.at for h in held.values())) * 1000) if held else None
        return replace(self.figures)

    @property
    def ready(self) -> bool:
        """Whether all that this instance keeps of it is loaded, which may be nothing."""
        return self.count > 0 and self.held.keys() >= set(self._mine)

    @property
    def holds(self) -> Holds:
        return {"count": self.count, "loaded": sorted(self.held)}

    # The thread

    def _work(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                self._keep(stopping)
            except LeaseLost:
                break  # it is stopped
            except Damaged as e:
                # It is found to be so again when it is opened, and made anew.
                self._failed(e)
                self.store.path.unlink(missing_ok=True)
                self.seen.rebuilt = str(e)
            except PenstockError as e:
                self._failed(e)
                stopping.wait(BACKOFF[min(self._failures, len(BACKOFF)) - 1])
            except Exception as e:
                # What nobody thought of must show as a view that fails, not as a thread that is gone.
                log.exception("view %s", self.view.name)
                self._failed(e)
                stopping.wait(BACKOFF[-1])
        self.held = {}
        self.store.close()

    def _keep(self, stopping: threading.Event) -> None:
        asked, now = time.monotonic(), look(self._topic.name, self._bootstrap, "view")
        mine = self._open(now)
        feed = TableFeed(self._table, self._bootstrap, {p: self.store.next[p] for p in mine})
        with closing(feed):
            while not stopping.is_set():
                if why := self._why_anew(now):
                    self._anew(now, mine, why)
                    return
                busy = self._up_to(feed, {p: now.ends[p] for p in mine}, (asked, now.at), stopping.is_set)
                stopping.wait(EVERY if busy else IDLE)
                if not stopping.is_set():
                    asked, now = time.monotonic(), look(self._topic.name, self._bootstrap, "view")

    def _open(self, now: Now) -> list[int]:
        """Take up the store, or make it anew; the partitions that are this instance's."""
        s = settings()
        mine = kept_by(self._instance, len(now.ends), s.views_instances, s.views_standby)
        self.held, self._mine, self.count = {}, mine, len(now.ends)
        try:
            self.store.open()
        except Damaged as e:
            self._anew(now, mine, str(e) if self.store.path.exists() else self.seen.rebuilt or "there was none")
        others = self.store.next.keys() - set(mine)
        self.store.without(others)
        if lacking := set(mine) - self.store.next.keys():
            self.store.apply({}, {p: now.starts[p] for p in lacking})
        self.figures.state = "loading"
        self._counted = self._noted = 0.0
        self._read_at = 0
        return mine

    def _why_anew(self, now: Now) -> str:
        following, meta, name = self.store.next, self.store.meta, self._topic.name
        if made_again(meta.topic, following, now):
            return "its topic was deleted and made again"
        same_count(name, dict.fromkeys(range(meta.count), 0), now, "view")
        if now.at - self._read_at < CHECK_EVERY * 1000:
            return ""
        return missed(name, following, meta.at, now, self._bootstrap)

    def _anew(self, now: Now, mine: list[int], why: str) -> None:
        log.warning("view %s is read from its topic's beginning: %s", self.view.name, why)
        self.held, self.seen.rebuilt = {}, why
        self.store.begin(now.id, len(now.ends), now.at, {p: now.starts[p] for p in mine})

    def _up_to(self, feed: TableFeed, ends: dict[int, int], at: tuple[float, int], stopped: Callable[[], bool]) -> bool:
        """Read to some ends; whether there was anything new. at: before they were asked for, monotonic and ms."""
        (asked, wall), began, changed = at, time.monotonic(), False
        self._note(ends)
        for taken in feed.to(ends, stopped):
            if taken.next != self.store.next:
                self._apply(taken)
                changed = True
            self._note(ends)
        if changed:
            self.figures.batch_at = int(time.time() * 1000)
            self.figures.batch_ms = int((time.monotonic() - began) * 1000)
            self.figures.batch_id = (self.figures.batch_id or 0) + 1
        if not self.store.meta.loaded or asked - self._noted > NOTE_EVERY:
            self.store.reached(wall)
            self._noted = asked
        self._read_at = wall
        self.held = {p: Held(self.store.next[p], end, asked, self.store.generation) for p, end in ends.items()}
        if not self._counted or (changed and asked - self._counted > COUNT_EVERY):
            ((self.seen.keys,),) = self.store.read("SELECT count(*) FROM rows")
            self._counted = asked
        self._failures = 0
        self.figures.state, self.figures.error = "running", None
        self.figures.watermark = wall
        self._note(ends)
        return changed

    def _apply(self, taken: Taken) -> None:
        for partition, rows in taken.rows.items():
            found = partitions_of(rows["key"], self.count)
            if len(astray := np.flatnonzero(found != partition)):
                row = int(astray[0])
                raise DeclarationError(
                    f"the records of topic {self._topic.name} do not lie where their keys say, so no instance knows "
                    "where to look for one",
                    got=f"key {str(rows['key'][row])[:80]!r} in partition {partition}, not in {found[row]}",
                    fix="write the topic with the partitioner of Kafka's Java clients (librdkafka's murmur2_random)",
                )
        dead = len(taken.dead)
        before = sum(self.store.next.values())
        self.store.apply(taken.rows, taken.next, dead, str(taken.dead["reason"][-1]) if dead else "")
        self.figures.rows_in += sum(taken.next.values()) - before
        self.figures.rows_out += sum(len(rows) for rows in taken.rows.values())
        self.figures.dead += dead

    def _note(self, ends: dict[int, int]) -> None:
        following, topic = self.store.next, self._topic.name
        # What a partition that is answered for has become is told at once; the others are not answered for.
        self.held = {p: h._replace(next=following[p], end=max(ends[p], following[p])) for p, h in self.held.items()}
        lag = sum(max(0, end - following[p]) for p, end in ends.items())
        self.seen.dead, self.seen.reason = self.store.meta.dead, self.store.meta.reason
        self.seen.bytes = self.store.bytes
        self.figures.lag, self.figures.state_rows, self.figures.state_bytes = lag, self.seen.keys, self.seen.bytes
        self.figures.topics = {topic: {"lag": lag, "offsets": {str(p): following[p] for p in ends}}}

    def _failed(self, e: Exception) -> None:
        self._failures += 1
        self.figures.state, self.figures.rows_per_s = "failing", 0.0
        self.figures.error, self.figures.error_at = str(e), int(time.time() * 1000)
        self.figures.restarts += 1
        log.error("view %s failed: %s", self.view.name, e)
