"""What the output of a replaced stream must hold, in plain Python: nothing here imports Penstock or Spark.

An oracle gets the records, and the plans of the batches of both versions: which offsets a batch ends at, and its
watermark. It says which rows each batch makes, and so which rows the output topic holds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Place = tuple[str, int]
Row = tuple[str, str]
Kind = Literal["final", "changes", "inner", "outer", "fold"]
UPDATING = ("changes", "fold")


@dataclass(frozen=True)
class Event:
    """A record: `topic`, `partition` and `offset` say where it is, `at` is its event time, epoch ms."""

    topic: str
    partition: int
    offset: int
    k: str
    n: int
    at: int


@dataclass(frozen=True)
class Version:
    """A version of a stream.

    Attributes:
        kind: What it does.
        columns: Of its values, `k` first: `n` is a sum, `c` a count.
        by_parity: Whether the parity of `n` is part of the key.
        length: Of a window, ms; of a join, how much later than the left record the right one may be.
        slide: Of a window, ms.
        grace: Ms.
        partitions: Shuffle partitions of its query.
        sql: Whether it is written in SQL.
    """

    kind: Kind
    columns: tuple[str, ...] = ("k", "n")
    by_parity: bool = False
    length: int = 60_000
    slide: int = 60_000
    grace: int = 0
    partitions: int = 1
    sql: bool = False

    def key(self, event: Event) -> str:
        return f"{event.k}{event.n % 2}" if self.by_parity else event.k


@dataclass(frozen=True)
class Batch:
    """A batch as it was planned: the next offsets behind it, and its watermark, epoch ms."""

    number: int
    ends: Mapping[Place, int]
    watermark: int


def batches(checkpoint: Path) -> list[Batch]:
    """The batches that Spark's offset log has, in order."""
    found = []
    for path in sorted((p for p in (checkpoint / "offsets").iterdir() if p.name.isdigit()), key=lambda p: int(p.name)):
        _, metadata, *sources = path.read_text().split("\n")
        ends = {
            (topic, int(partition)): end
            for source in sources
            if source.startswith("{")
            for topic, parts in json.loads(source).items()
            for partition, end in parts.items()
        }
        found.append(Batch(int(path.name), ends, json.loads(metadata)["batchWatermarkMs"]))
    return found


@dataclass
class VersionModel:
    """Computes the rows of a version's batches, one after the other.

    Args:
        version: The version.
        events: All records of its inputs.
        starts: The first offsets that it reads; 0 if a partition is not named.
        floor: Epoch ms; records of windows that begin before are not read.
        origin: Epoch ms, from which on keys name times.
    """

    version: Version
    events: Sequence[Event]
    starts: Mapping[Place, int]
    floor: int = 0
    origin: int = 0
    _read: dict[Place, int] = field(default_factory=dict)
    _late_by: int = 0
    _windows: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    _joined: dict[str, list[Event]] = field(default_factory=lambda: {"left": [], "right": []})
    _matched: set[Event] = field(default_factory=set)

    def rows(self, batch: Batch) -> list[Row]:
        """The rows that the next batch makes. Records are late by the watermark of the batch before."""
        fresh = [
            event
            for event in self.events
            if self._next(event) <= event.offset < batch.ends.get((event.topic, event.partition), 0)
        ]
        self._read.update(batch.ends)
        made = {"final": self._final, "changes": self._changes, "fold": self._fold}.get(self.version.kind, self._pairs)(
            fresh, batch.watermark
        )
        self._late_by = batch.watermark
        return made

    def _next(self, event: Event) -> int:
        place = event.topic, event.partition
        return self._read.get(place, self.starts.get(place, 0))

    def _add(self, fresh: Iterable[Event]) -> set[tuple[str, int]]:
        """Add records to their windows; which of them they change."""
        v, changed = self.version, set()
        for event in fresh:
            begin = event.at - event.at % v.slide
            while begin + v.length > event.at:
                if begin + v.length > self._late_by and begin >= self.floor:
                    one = self._windows.setdefault((v.key(event), begin), [0, 0])
                    one[0] += event.n
                    one[1] += 1
                    changed.add((v.key(event), begin))
                begin -= v.slide
        return changed

    def _final(self, fresh: Iterable[Event], watermark: int) -> list[Row]:
        self._add(fresh)
        closed = [window for window in self._windows if window[1] + self.version.length <= watermark]
        rows = [self._window_row(window) for window in closed]
        for window in closed:
            del self._windows[window]
        return rows

    def _changes(self, fresh: Iterable[Event], watermark: int) -> list[Row]:
        rows = [self._window_row(window) for window in self._add(fresh)]
        for window in [w for w in self._windows if w[1] + self.version.length <= watermark]:
            del self._windows[window]
        return rows

    def _window_row(self, window: tuple[str, int]) -> Row:
        key, begin = window
        n, c = self._windows[window]
        return self._row(f"{key}/{begin - self.origin}", n, c)

    def _fold(self, fresh: Iterable[Event], watermark: int) -> list[Row]:  # noqa: ARG002
        changed = set()
        for event in fresh:
            one = self._windows.setdefault((self.version.key(event), 0), [0, 0])
            one[0] += event.n
            one[1] += 1
            changed.add((self.version.key(event), 0))
        return [self._row(key, *self._windows[key, begin]) for key, begin in changed]

    def _pairs(self, fresh: Iterable[Event], watermark: int) -> list[Row]:
        v, rows = self.version, []
        good = [event for event in fresh if event.at > self._late_by]
        fresh_of = {side: [event for event in good if event.topic.startswith(side)] for side in ("left", "right")}
        for side, events in fresh_of.items():
            self._joined[side] += events
        new = set(good)
        for left in self._joined["left"]:
            for right in self._joined["right"]:
                is_pair = v.key(left) == v.key(right) and left.at <= right.at <= left.at + v.length
                if is_pair and (left in new or right in new):
                    rows.append(self._row(f"{v.key(left)}/{left.at - self.origin}", right.n, 1))
                    self._matched.add(left)
        gone = [left for left in self._joined["left"] if left.at + v.length < watermark]
        if v.kind == "outer":
            rows += [
                self._row(f"{v.key(left)}/{left.at - self.origin}", -1, 1) for left in gone if left not in self._matched
            ]
        self._joined["left"] = [left for left in self._joined["left"] if left.at + v.length >= watermark]
        self._joined["right"] = [right for right in self._joined["right"] if right.at >= watermark]
        return rows

    def _row(self, key: str, n: int, c: int) -> Row:
        values: dict[str, Any] = {"k": key, "n": n, "c": c}
        text = json.dumps({name: values[name] for name in self.version.columns}, separators=(",", ":"))
        return key, text


def newest(rows: Iterable[Row]) -> dict[str, str]:
    """The newest row of each key."""
    return dict(rows)


def expected_output(
    running: VersionModel,
    new: VersionModel,
    running_batches: Sequence[Batch],
    new_batches: Sequence[Batch],
    last_running: int,
    cut: int,
) -> list[Counter[Row]]:
    """The rows that the topic must hold, in the order of their transactions.

    Args:
        running: The running version.
        new: The new version.
        running_batches: All batches of the running version.
        new_batches: All batches of the new version.
        last_running: The running version's last batch that is written.
        cut: The new version's first batch that is written.

    Returns:
        The rows of each batch: those of the running version up to its last, then those of the new version from the cut
        on. A version that updates rows also writes, with the cut, its newest row of each key that has another one, or
        none, in the topic.
    """
    written = [Counter(running.rows(batch)) for batch in running_batches if batch.number <= last_running]
    built: dict[str, str] = {}
    for batch in new_batches:
        rows = new.rows(batch)
        if batch.number < cut:
            built.update(newest(rows))
            continue
        made = Counter(rows)
        if batch.number == cut and new.version.kind in UPDATING:
            before = newest(row for one in written for row in one)
            made += Counter((key, value) for key, value in built.items() if before.get(key) != value)
        written.append(made)
    return written
