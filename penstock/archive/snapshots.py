"""Which snapshots of an archive's table are kept, and which one was there at a time."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyiceberg.table.refs import MAIN_BRANCH

from penstock.archive.register import STATE
from penstock.archive.state import EPOCH
from penstock.errors import SinkError

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

MILLISECOND = timedelta(milliseconds=1)


def superseded_snapshot(table: Table, interval: timedelta) -> int | None:
    """The newest snapshot, if the one before it was made less than an interval ago. The next one takes its place, so
    that few are kept however many batches there are. One that somebody has tagged, or has made, stays."""
    newest, metadata = table.current_snapshot(), table.metadata
    if newest is None or not _is_own(newest):
        return None
    if any(ref.snapshot_id == newest.snapshot_id for name, ref in metadata.refs.items() if name != MAIN_BRANCH):
        return None
    others = [one.timestamp_ms for one in metadata.snapshots if one.snapshot_id != newest.snapshot_id]
    is_soon = others and time.time() * 1000 - max(others) < interval / MILLISECOND
    return newest.snapshot_id if is_soon else None


def snapshot_as_of(table: Table, at: datetime, name: str) -> int:
    """The snapshot that a table had at a time.

    Raises:
        SinkError: None of that time is kept.
    """
    # Iceberg's own servers forget the history before a snapshot that is removed.
    history = {entry.snapshot_id for entry in table.history()}
    snapshots = [one for one in table.snapshots() if one.snapshot_id in history or _is_own(one)]
    before = [one for one in snapshots if one.timestamp_ms <= (at - EPOCH) // MILLISECOND]
    if before:
        return max(before, key=lambda one: (one.timestamp_ms, one.sequence_number or 0)).snapshot_id
    hint = "nothing has been archived yet"
    if kept := [one.timestamp_ms for one in snapshots]:
        first = first_whole_second(min(kept))
        hint = f"take a time from {first:%Y-%m-%dT%H:%M:%S} on; an archive declares `keep_snapshots`"
    raise SinkError(f"table {name} keeps no snapshot of that time", got=at.isoformat(), hint=hint)


def first_whole_second(epoch_ms: int) -> datetime:
    """The first time from this one on that commands take."""
    return EPOCH + timedelta(seconds=-(-epoch_ms // 1000))


def _is_own(snapshot: Snapshot) -> bool:
    """Whether Penstock has made a snapshot."""
    return snapshot.summary is not None and STATE in snapshot.summary.additional_properties
