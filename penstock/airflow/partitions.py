"""Emits one asset event for each closed partition of the streams and archives that declare them.

An event is recorded by Airflow in the transaction that makes its task's success known, and a task that has ended
otherwise can no longer succeed. So a run takes due events from the control database, and ends; the next run asks
Airflow which of them it has recorded for that run. Those are emitted, and the others are due again.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.triggers.base import BaseTrigger, TriggerEvent

from penstock.airflow.assets import DeclaresLineage, assets, output_assets
from penstock.airflow.triggers import RELEASES_EVERY, RETRY, ReleaseWatch, end_of_epoch, trigger_event
from penstock.catalog import (
    Catalog,
    Partitioned,
    PartitionedArchive,
    PartitionedStream,
    partial_catalog,
    partitioned,
)
from penstock.control.repositories.partitions import reconcile_events
from penstock.model.partition import Partitions, partition_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from penstock.control import Control
    from penstock.control.repositories.partitions import PartitionEvent
    from penstock.supervision.event_clock.partitions import PartitionWatch

# How far the clocks of the control database and of Airflow may differ.
CLOCK_SKEW = timedelta(hours=1)

RecordedPartitions = Callable[[str, str, datetime], Collection[tuple[str, str]]]
"""The partitions for which Airflow has events of an asset, by name and URI, since a time: key and run, as
`dag_id/run_id`."""


class EmitPartitions(DeclaresLineage):
    """Waits in a trigger until partitions are closed, and emits their events."""

    ui_color = "#d9e6d2"

    def execute(self, context: Context) -> None:  # noqa: ARG002
        from penstock.control import connect
        from penstock.errors import ControlError
        from penstock.settings import settings

        try:
            settle(connect(), recorded_by_airflow)
        except ControlError as e:
            # They stay as they are until a run has asked.
            self.log.warning("what Airflow has recorded is asked later: %s", e)
        trigger = PartitionsTrigger(declared_partitions(), time.time() + settings().supervise_epoch)
        self.defer(trigger=trigger, method_name="resume")

    def resume(self, context: Context, event: dict[str, Any]) -> None:
        """Emit the events that are due; at the end of an epoch there are none."""
        from penstock.control import connect

        if event["action"] != "emit":
            return
        control, by_name, run = connect(), assets_by_name(partial_catalog()[0]), context["dag_run"]
        keys = {name: [(asset.name, asset.uri) for asset in its_assets] for name, its_assets in by_name.items()}
        taken = control.take_due_partitions(f"{self.dag_id}/{run.run_id}", keys)
        outlets: dict[str, Asset] = {}
        reconciles = _last_reconciles(control)
        for one in taken:
            self.log.info("%s: partition %s, revision %d", one.name, one.partition_key, one.revision)
            chosen = {name for name, _ in one.lacking}
            for asset in (asset for asset in by_name[one.name] if asset.name in chosen):
                outlets[asset.name] = asset
                context["outlet_events"][asset].add_partitions(one.partition_key)
                if changes := reconciles.get((one.name, one.partition_key)):
                    context["outlet_events"][asset].extra["reconcile"] = changes
        # Without an event of its own, Airflow would record one without a partition for each outlet.
        self.outlets = list(outlets.values())


class PartitionsTrigger(BaseTrigger):
    """Fires when events of partitions are due: `{"action": "emit"}`; at `until`, or after a release, `epoch`.

    Args:
        declared: The result of `declared_partitions`.
        until: Epoch seconds at which the run ends.
    """

    def __init__(self, declared: dict[str, list[Any]], until: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.declared, self.until = declared, until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "penstock.airflow.partitions.PartitionsTrigger", {"declared": self.declared, "until": self.until}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from penstock.control import connect
        from penstock.settings import settings
        from penstock.supervision.event_clock.partitions import PartitionWatch

        control = await asyncio.to_thread(connect)
        declared = list(_partitioned(self.declared))
        names = [*(one.name for one in declared), *self.declared["reconciles"]]
        watch = PartitionWatch(declared, control, await asyncio.to_thread(lambda: settings().bootstrap))
        releases, trouble = await asyncio.to_thread(ReleaseWatch, control), ""
        ends_at = end_of_epoch(self.until)
        try:
            while time.monotonic() < ends_at:
                due, text = await asyncio.to_thread(_look, watch, control, names)
                if due:
                    yield trigger_event({"action": "emit"})
                    return
                if text != trouble:
                    self.log.info("partitions: %s", text or "watching again")
                trouble = text
                if await asyncio.to_thread(releases.changed):
                    self.log.info("partitions: a release may have changed what has partitions")
                    break
                await asyncio.sleep(RETRY if trouble else RELEASES_EVERY)
        finally:
            await asyncio.to_thread(watch.close)
        yield trigger_event({"action": "epoch"})


def _look(watch: PartitionWatch, control: Control, names: Collection[str]) -> tuple[bool, str]:
    """Whether events are due, and what is wrong with the broker or the control database. What is due already is emitted
    also while the broker is down."""
    from penstock.errors import PenstockError

    trouble = ""
    try:
        watch.look()
    except PenstockError as e:
        trouble = e.what
    try:
        return control.partition_event_due(names), trouble
    except PenstockError as e:
        return False, e.what


def settle(control: Control, recorded: RecordedPartitions) -> None:
    """Find out which events of earlier runs Airflow has recorded. Those runs have ended.

    Args:
        control: The control database.
        recorded: Asks Airflow.
    """
    sent: dict[tuple[tuple[str, str], ...], list[PartitionEvent]] = defaultdict(list)
    for event in control.sent_partitions():
        sent[tuple(event.lacking)].append(event)
    for keys, events in sent.items():
        since = datetime.fromtimestamp(min(e.changed_at for e in events) / 1000, UTC) - CLOCK_SKEW
        recorded_of = {key: recorded(*key, since) for key in keys}
        # Airflow records nothing for an asset that is not active, as one that no DAG that it has read names.
        by_lacking: dict[tuple[tuple[str, str], ...], list[PartitionEvent]] = defaultdict(list)
        for event in events:
            lacking = tuple(key for key in keys if (event.partition_key, event.run) not in recorded_of[key])
            by_lacking[lacking].append(event)
        for lacking, of in by_lacking.items():
            control.settle_partitions(of, lacking=lacking)


def recorded_by_airflow(name: str, uri: str, since: datetime) -> Collection[tuple[str, str]]:
    """Asks Airflow's API; only in a task."""
    from airflow.sdk.execution_time.context import InletEventsAccessor

    events = InletEventsAccessor(asset_name=name, asset_uri=uri).after(since.isoformat())
    return {(e.partition_key, f"{e.source_dag_id}/{e.source_run_id}") for e in events if e.partition_key}


def assets_by_name(catalog: Catalog) -> dict[str, list[Asset]]:
    """The assets of each stream and archive with partitions, and of each capture's reconciles."""
    of_captures = {reconcile_events(c.name): list(assets(catalog, c.writes)) for c in catalog.captures.values()}
    return of_captures | {one.name: output_assets(catalog.streams[one.name], catalog) for one in partitioned(catalog)}


def _last_reconciles(control: Control) -> dict[tuple[str, str], dict[str, Any]]:
    """What the last reconciles of each capture have changed, by the name and key of their events: numbers of rows."""
    from penstock.control.repositories.captures import Captures

    return {
        (reconcile_events(row.name), partition_key(datetime.fromtimestamp(ended, UTC))): changes
        for row in Captures(control).rows().values()
        for ended, changes in row.repairs.items()
    }


def declared_partitions() -> dict[str, list[Any]]:
    """The streams and archives with partitions, and the captures, as JSON: the triggerer must not import declarations
    itself."""
    catalog = partial_catalog()[0]
    streams: list[dict[str, Any]] = []
    archives: list[dict[str, Any]] = []
    for one in partitioned(catalog):
        if isinstance(one, PartitionedStream):
            seconds = [d.total_seconds() for d in (one.partitions.length, one.partitions.phase, one.delay)]
            streams.append({"name": one.name, "seconds": seconds})
        else:
            archives.append(asdict(one))
    return {"streams": streams, "archives": archives, "reconciles": [*map(reconcile_events, catalog.captures)]}


def _partitioned(declared: dict[str, list[Any]]) -> Iterator[Partitioned]:
    for stream in declared["streams"]:
        length, phase, delay = (timedelta(seconds=s) for s in stream["seconds"])
        yield PartitionedStream(stream["name"], Partitions(length, phase), delay)
    for archive in declared["archives"]:
        yield PartitionedArchive(**archive)
