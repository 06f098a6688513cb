"""Partitions that are closed, and the asset events that Airflow gets for them.

A row is `due` until a run of Airflow takes it. Then it is `sent`: whether Airflow has recorded the event is known when
that run has ended, and makes the row `emitted` or `due` again. A `known` row was there before events were declared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, select, update

from penstock.control import tables as s
from penstock.control.database import ControlDatabase, insert_if_new, rows
from penstock.model.partition import partition_key

PartitionState = Literal["known", "due", "sent", "emitted"]
KEEP_MS = 90 * 24 * 3600 * 1000
RETRY_MS = 30_000
"""How long an event that Airflow did not record waits until it is sent again."""
RECONCILES = "capture:"


@dataclass(frozen=True)
class PartitionEvent:
    """The event of a partition.

    Attributes:
        name: Of the stream or archive.
        partition_key: Start of the partition.
        revision: 1 when it is closed first, and greater each time that its content changed.
        changed_at: When it got its state, epoch ms by the database's clock.
        run: The run of Airflow that it was given to last, as `dag_id/run_id`.
        reset_id: The stream's reset that its content changed by; empty for none.
        assets: Name and URI of each asset that the run emits it for, and without a URI those that have it by an earlier
            run. None if no run has it, and no asset.
    """

    name: str
    partition_key: str
    revision: int
    state: PartitionState
    changed_at: int
    attempts: int
    run: str | None
    reset_id: str
    assets: list[tuple[str, str | None]] | None

    @property
    def lacking(self) -> list[tuple[str, str]]:
        """Name and URI of each asset that the run emits it for."""
        return [(name, uri) for name, uri in self.assets or () if uri is not None]


class PartitionRepository(ControlDatabase):
    """Each partition has one event for each time that it is closed, whoever asks and however often."""

    def last_partition(self, name: str) -> str | None:
        """The key of the last partition that is recorded; None if none is."""
        t = s.partition_event.c
        with self.begin() as c:
            last: str | None = c.execute(select(func.max(t.partition_key)).where(t.name == name)).scalar_one()
            return last

    def last_partitions(self, names: Collection[str]) -> dict[str, str]:
        """The key of the last partition of each stream or archive that has one recorded."""
        t = s.partition_event.c
        query = select(t.name, func.max(t.partition_key).label("key")).where(t.name.in_(names)).group_by(t.name)
        with self.begin() as c:
            return {row.name: row.key for row in c.execute(query)}

    def partition_revisions(self, name: str, after: str | None = None, upto: str | None = None) -> dict[str, int]:
        """The greatest revision of each partition.

        Args:
            name: The stream or archive.
            after: Key behind which they are; None for no limit.
            upto: Key of the last one; None for no limit.
        """
        t = s.partition_event.c
        within = [] if after is None else [t.partition_key > after]
        within += [] if upto is None else [t.partition_key <= upto]
        query = (
            select(t.partition_key, func.max(t.revision).label("revision"))
            .where(t.name == name, *within)
            .group_by(t.partition_key)
        )
        with self.begin() as c:
            return {row.partition_key: row.revision for row in c.execute(query)}

    def record_partitions(
        self, name: str, revisions: Iterable[tuple[str, int]], state: PartitionState = "due", reset_id: str = ""
    ) -> int:
        """Record closed partitions, by key and revision; what is recorded already is left as it is.

        Args:
            name: The stream or archive.
            revisions: Key and revision of each.
            state: Their state.
            reset_id: The reset since which the stream has computed them.

        Returns:
            How many were new.
        """
        with self.begin() as c:
            return sum(_add(c, name, key, revision, state, reset_id) for key, revision in revisions)

    def renew_partitions(self, name: str, keys: Iterable[str], reset_id: str = "") -> int:
        """Record that the content of partitions has changed: each that is closed gets another event, and its first one
        if it was closed before events began.

        Args:
            name: The stream.
            keys: The partitions.
            reset_id: The reset by which they changed; what is recorded of it already is left as it is.

        Returns:
            How many events are due by this. One that is due already serves for this change too.
        """
        table = s.partition_event
        t = table.c
        last = self.last_partition(name) or ""
        closed = [key for key in keys if key <= last]
        with self.begin() as c:
            recorded: set[str] = set()
            if reset_id and closed:
                range_of_keys = t.partition_key.between(min(closed), max(closed))
                of_reset = select(t.partition_key).where(t.name == name, t.reset_id == reset_id, range_of_keys)
                recorded = set(c.execute(of_reset).scalars())
            count = 0
            for key in (key for key in closed if key not in recorded):
                of_key = (t.name == name) & (t.partition_key == key)
                query = select(t.revision, t.state).where(of_key).order_by(t.revision.desc()).limit(1)
                newest = c.execute(query).first()
                if newest and newest.state == "due":
                    due = of_key & (t.revision == newest.revision) & (t.state == "due") & t.assets.is_(None)
                    # What a reset has recorded stays recorded, whatever else changes the partition.
                    serves = update(table).where(due).values(reset_id=reset_id or t.reset_id)
                    # A run may take it at this moment, and then another event must follow.
                    if c.execute(serves).rowcount:
                        continue
                count += _add(c, name, key, newest.revision + 1 if newest else 1, "due", reset_id)
            return count

    def recorded_resets(self, name: str, reset_ids: Collection[str]) -> set[str]:
        """Those of some resets of a stream by which a partition is recorded as changed."""
        t = s.partition_event.c
        with self.begin() as c:
            return set(c.execute(select(t.reset_id).where(t.name == name, t.reset_id.in_(reset_ids))).scalars())

    def partition_event_due(self, names: Collection[str]) -> bool:
        """Whether an event of some streams and archives can be sent now."""
        t = s.partition_event.c
        with self.begin() as c:
            return c.execute(select(t.name).where(_is_due() & t.name.in_(names)).limit(1)).first() is not None

    def take_due_partitions(
        self, run: str, assets: Mapping[str, Collection[tuple[str, str]]], limit: int = 100
    ) -> list[PartitionEvent]:
        """Give due events to a run of Airflow: those with the fewest attempts, and the oldest partitions, first.

        Each event is given to one run. Of two revisions of a partition one waits for another run, also if the run of
        the first is cleared: Airflow tells the events of a partition apart by their run alone. So does one of two
        reconciles of a capture: Airflow has one extra for all events of an asset in a run.

        Args:
            run: The run, as `dag_id/run_id`.
            assets: The streams and archives, and name and URI of each asset that their events are emitted for. They are
                kept: Airflow knows the event under these, and the declarations may be others when it is asked.
            limit: The most events.
        """
        t, other = s.partition_event, s.partition_event.alias()
        of_key = (other.c.name == t.c.name) & (other.c.partition_key == t.c.partition_key)
        has_emitted = exists().where(of_key, other.c.state == "emitted", other.c.run == run)
        # Those that Airflow does not take, however many, hold up no others.
        order = (t.c.attempts, t.c.partition_key, t.c.revision)
        query = select(t).where(_is_due(), t.c.name.in_(assets), ~has_emitted).order_by(*order).limit(limit)
        with self.begin() as c:
            taken: dict[tuple[str, str], PartitionEvent] = {}
            for event in rows(PartitionEvent, c.execute(query).mappings()):
                alone = event.name, "" if event.name.startswith(RECONCILES) else event.partition_key
                if alone in taken:
                    continue
                chosen: list[tuple[str, str | None]] = [(name, None) for name, _ in event.assets or ()]
                chosen += [(name, uri) for name, uri in assets[event.name] if (name, None) not in chosen]
                values = {
                    "state": "sent", "changed_at": s.now_ms(), "run": run, "attempts": t.c.attempts + 1,
                    "assets": chosen,
                }  # fmt: skip
                if c.execute(update(t).where(_is(event, "due")).values(**values)).rowcount:
                    taken[alone] = replace(event, assets=chosen)
            return list(taken.values())

    def sent_partitions(self) -> list[PartitionEvent]:
        """Events that were given to a run of Airflow, and are not known to be recorded there."""
        with self.begin() as c:
            return rows(
                PartitionEvent,
                c.execute(select(s.partition_event).where(s.partition_event.c.state == "sent")).mappings(),
            )

    def settle_partitions(self, events: Iterable[PartitionEvent], *, lacking: Collection[tuple[str, str]] = ()) -> int:
        """Record of sent events what Airflow has recorded.

        Args:
            events: The events.
            lacking: Name and URI of the assets that lack them, for which they are due again; if none does, they are
                emitted.

        Returns:
            How many. An event that another run has taken since is left alone.
        """
        t = s.partition_event
        count = 0
        with self.begin() as c:
            for event in events:
                have = [(name, None) for name, uri in event.assets or () if (name, uri) not in lacking]
                values: dict[str, object] = (
                    {"state": "due", "assets": have or None} if lacking else {"state": "emitted"}
                )
                of_run = update(t).where(_is(event, "sent"), t.c.run == event.run)
                count += c.execute(of_run.values(**values, changed_at=s.now_ms())).rowcount
        return count

    def forget_partitions(self, name: str) -> None:
        """Delete all events of a stream: one that is declared under this name later begins anew."""
        with self.begin() as c:
            c.execute(delete(s.partition_event).where(s.partition_event.c.name == name))

    def prune_partitions(self, name: str) -> None:
        """Delete the emitted events of a stream that are older than KEEP_MS, but for the last partition."""
        last = self.last_partition(name)
        with self.begin() as c:
            _prune(c, name, last or "")


def reconcile_events(capture: str) -> str:
    """The name under which the reconciles of a capture are recorded: each is a partition, by the time of its end."""
    return f"{RECONCILES}{capture}"


def add_reconciles(c: Connection, capture: str, ended: Collection[float]) -> None:
    """Record, in a transaction, that reconciles have changed the topic of a capture; each once, however often it is
    called.

    Emitted events of those before them that are older than KEEP_MS are deleted.

    Args:
        c: The transaction.
        capture: The capture.
        ended: When they ended, epoch seconds; at least one.
    """
    name = reconcile_events(capture)
    keys = [partition_key(datetime.fromtimestamp(at, UTC)) for at in ended]
    _prune(c, name, min(keys))
    for key in keys:
        _add(c, name, key, 1, "due")


def _prune(c: Connection, name: str, last: str) -> None:
    t = s.partition_event
    old = and_(t.c.name == name, t.c.partition_key < last, t.c.changed_at < s.now_ms() - KEEP_MS)
    c.execute(delete(t).where(old, t.c.state.in_(("known", "emitted"))))


def _add(c: Connection, name: str, key: str, revision: int, state: PartitionState, reset_id: str = "") -> int:
    values = {"state": state, "changed_at": s.now_ms(), "attempts": 0, "reset_id": reset_id}
    return insert_if_new(c, s.partition_event, name=name, partition_key=key, revision=revision, **values)


def _is(event: PartitionEvent, state: PartitionState) -> ColumnElement[bool]:
    t = s.partition_event.c
    key = (t.name == event.name) & (t.partition_key == event.partition_key) & (t.revision == event.revision)
    return key & (t.state == state)


def _is_due() -> ColumnElement[bool]:
    t = s.partition_event.c
    return (t.state == "due") & ((t.attempts == 0) | (t.changed_at < s.now_ms() - RETRY_MS))
