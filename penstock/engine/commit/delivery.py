"""Delivers a batch to a stream's stores, each of which may ask to wait or refuse rows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.engine.commit.async_writer import AsyncStoreWriter
from penstock.engine.commit.dead_letters import dead_letters_of_rows
from penstock.engine.commit.reject_budget import RejectBudget
from penstock.errors import Refused, Wait
from penstock.kafka.admin import ensure_topics
from penstock.model.output import CommitMarker, Output, Writer, WriterOwner, open_store
from penstock.model.topic import DEAD_LETTERS

if TYPE_CHECKING:
    from penstock.engine.commit.dead_letter_index import DeadLetterIndex
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

TablesByOutput = dict[str, pa.Table]
# Longest wait, in seconds, before a store is tried again.
MAX_WAIT_S = 30.0
# Seconds between two log lines about the same wait.
LOG_AGAIN_S = 60.0


@dataclass
class OutputStore:
    """The writer of the outputs that share a store.

    Attributes:
        outputs: the outputs.
        writer: writes them.
        marker: of the last batch that the store holds.
    """

    outputs: list[Output]
    writer: Writer
    marker: CommitMarker

    @property
    def keeps_markers(self) -> bool:
        """Whether the store keeps commit markers."""
        return any(output.delivery == "exactly once" for output in self.outputs)

    def write_marker(self, marker: CommitMarker) -> None:
        """Write a marker without rows."""
        self.writer.write({}, marker)
        self.marker = marker


@dataclass
class BatchDelivery:
    """Delivers the batches of one stream to its stores.

    Attributes:
        stream: the stream.
        bootstrap: the brokers.
        stopping: set when the stream is to stop.
        on_stall: called with the reason why the stream is stalled (`Wait` if a store asked to back off), and with None
            when it resumes.
        budget: how many refused rows in a row may become dead letters.
        waits: how often a store has asked to wait.
        answered_at: when a store without markers last took rows, epoch ms.
    """

    stream: Stream
    bootstrap: str
    stopping: threading.Event
    on_stall: Callable[[Exception | None], None]
    budget: RejectBudget
    waits: int = field(default=0, init=False)
    answered_at: int | None = field(default=None, init=False)
    _since: float | None = field(default=None, init=False)

    def write_seconds(self) -> float:
        """Seconds since a store with markers was given the present batch; 0 if none is being written.

        A slow store without markers delays only its own stream.
        """
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def status(self, counts: Mapping[str, int]) -> dict[str, Any] | None:
        """For a sink: its store, and the counts of its writers; None for other streams."""
        outputs = [output for output in self.stream.outputs.values() if output.delivery != "exactly once"]
        if not outputs:
            return None
        return {
            "destination": ", ".join(output.name for output in outputs),
            "dead_letter_topics": [output.dead_letter_topic.name for output in outputs],
            **counts,
            "waits": self.waits,
            "answered_at": self.answered_at,
        }

    def open_writer(self, outputs: list[Output], owner: WriterOwner) -> Writer:
        """Open the writer of outputs that share a store; one without markers is written to in a thread."""
        if outputs[0].delivery == "exactly once":
            return open_store(outputs, owner)
        return AsyncStoreWriter(outputs, owner, self.stopping, self.on_stall)

    def deliver(
        self,
        store: OutputStore,
        rows: TablesByOutput,
        side_rows: TablesByOutput,
        marker: CommitMarker,
        index: DeadLetterIndex,
    ) -> int:
        """Write a store's part of a batch, however often the store asks to wait.

        Args:
            store: the store; it has the marker afterwards.
            rows: rows by output; those that the store refuses are removed.
            side_rows: dead letters and late records by topic; the refused rows are added.
            marker: the commit marker of the batch.
            index: the dead letters that are written already.

        Returns:
            How many rows the store refused.

        Raises:
            Wait: the stream is to stop while the store asks to wait.
            Blocked: too many rows in a row are refused.
        """
        names = {output.name for output in store.outputs}
        waited_for, refused, logged_at = "", 0, 0.0
        while True:
            own_tables = {name: table for name, table in {**rows, **side_rows}.items() if name in names}
            if DEAD_LETTERS.name in own_tables:
                ensure_topics([DEAD_LETTERS], self.bootstrap)
            self._since = time.monotonic() if store.keeps_markers else None
            try:
                # Without rows or a marker there is nothing to write.
                if (
                    store.keeps_markers
                    or any(map(len, own_tables.values()))
                    or any(o.empty_batches for o in store.outputs)
                ):
                    store.writer.write(own_tables, marker)
                    self._answered(store)
            except Refused as e:
                refused += self._refuse(e, rows, side_rows, index)
                if e.written is None:
                    continue
                self._answered(store)
            except Wait as e:
                self._since = None
                self.waits += 1
                self.on_stall(e)
                if e.what != waited_for or time.monotonic() - logged_at > LOG_AGAIN_S:
                    log.warning("stream %s waits: %s", self.stream.name, e)
                    logged_at = time.monotonic()
                waited_for = e.what
                if self.stopping.wait(min(e.seconds, MAX_WAIT_S)):
                    raise
                continue
            finally:
                self._since = None
            if waited_for:
                log.info("stream %s waits no longer", self.stream.name)
                self.on_stall(None)
            store.marker = marker
            return refused

    def _answered(self, store: OutputStore) -> None:
        if not store.keeps_markers:
            self.answered_at = int(time.time() * 1000)

    def _refuse(self, refused: Refused, rows: TablesByOutput, side_rows: TablesByOutput, index: DeadLetterIndex) -> int:
        """Move the rows that a store refuses to the dead letters; how many they are."""
        if refused.written is None:
            # A store that writes what it takes may refuse any number of rows: they can be replayed.
            self.budget.charge(refused)
        count, outputs = 0, {output.name: output for output in self.stream.outputs.values()}
        for name, reasons in refused.rows.items():
            table, target = rows[name], outputs[name].dead_letter_topic.name
            dead = dead_letters_of_rows(
                table, reasons, self.stream.name, name, self.bootstrap, index, target,
                hides_records=bool(outputs[name].mask),
            )  # fmt: skip
            side_rows |= merge_tables(side_rows, {target: dead})
            rows[name] = table.filter(pa.array([number not in reasons for number in range(table.num_rows)]))
            count += len(reasons)
            first = next(iter(reasons.values()))
            log.warning("stream %s: %d rows are dead letters, the first: %s", self.stream.name, len(reasons), first)
        return count


def merge_tables(*parts: TablesByOutput) -> TablesByOutput:
    """The rows of all parts, by the name of their output."""
    tables: dict[str, list[pa.Table]] = {}
    for part in parts:
        for name, table in part.items():
            tables.setdefault(name, []).append(table)
    return {name: pa.concat_tables(parts_of_output) for name, parts_of_output in tables.items()}
