"""A batch given to a stream's stores, each of which may ask to wait, or never take some rows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
# A store that asks for more is asked again after this.
MAX_WAIT_S = 30.0
# Seconds between two lines of the log about one and the same wait.
LOG_AGAIN_S = 60.0


@dataclass
class OutputStore:
    """The writer of outputs that share a store. mark: of the last batch that is in it."""

    outputs: list[Output]
    writer: Writer
    marker: CommitMarker

    @property
    def keeps_markers(self) -> bool:
        """Whether it keeps marks."""
        return any(output.delivery == "exactly once" for output in self.outputs)


@dataclass
class BatchDelivery:
    """stopping: set when the stream is to stop; stands: told why it stands still, a Wait where it is a store that asks
    for it, and None once it goes on."""

    stream: Stream
    bootstrap: str
    stopping: threading.Event
    on_stall: Callable[[Exception | None], None]
    budget: RejectBudget
    waits: int = field(default=0, init=False)
    """How often a store has asked to wait."""
    answered_at: int | None = field(default=None, init=False)
    """When a store without marks last took rows, epoch ms."""
    _since: float | None = field(default=None, init=False)

    def write_seconds(self) -> float:
        """Seconds since a store with marks was given the present batch; 0 if none is being written.

        Of others nothing hangs but their own stream.
        """
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def open_writer(self, outputs: list[Output], owner: WriterOwner) -> Writer:
        if outputs[0].delivery == "exactly once":
            return open_store(outputs, owner)
        return AsyncStoreWriter(outputs, owner, self.stopping, self.on_stall)

    def deliver(
        self,
        store: OutputStore,
        rows: TablesByOutput,
        beside: TablesByOutput,
        mark: CommitMarker,
        kept: DeadLetterIndex,
    ) -> int:
        """Give a store its part of a batch; how many rows it can never take, which are moved beside the others.

        kept: what lies beside already.
        """
        names = {output.name for output in store.outputs}
        waited, refused, said_at = "", 0, 0.0
        while True:
            own = {name: table for name, table in {**rows, **beside}.items() if name in names}
            if DEAD_LETTERS.name in own:
                ensure_topics([DEAD_LETTERS], self.bootstrap)
            self._since = time.monotonic() if store.keeps_markers else None
            try:
                # Without rows or a mark there is nothing to wait for.
                if store.keeps_markers or any(map(len, own.values())) or any(o.empty_batches for o in store.outputs):
                    store.writer.write(own, mark)
                    self._answered(store)
            except Refused as e:
                refused += self._put_aside(e, rows, beside, kept)
                if e.written is None:
                    continue
                self._answered(store)
            except Wait as e:
                self._since = None
                self.waits += 1
                self.on_stall(e)
                if e.what != waited or time.monotonic() - said_at > LOG_AGAIN_S:
                    log.warning("stream %s waits: %s", self.stream.name, e)
                    said_at = time.monotonic()
                waited = e.what
                if self.stopping.wait(min(e.seconds, MAX_WAIT_S)):
                    raise
                continue
            finally:
                self._since = None
            if waited:
                log.info("stream %s waits no longer", self.stream.name)
                self.on_stall(None)
            return refused

    def _answered(self, store: OutputStore) -> None:
        if not store.keeps_markers:
            self.answered_at = int(time.time() * 1000)

    def _put_aside(self, refused: Refused, rows: TablesByOutput, beside: TablesByOutput, kept: DeadLetterIndex) -> int:
        if refused.written is None:
            # Of stores that take what they can, any number is put aside: it is what the data is, and can be replayed.
            self.budget.charge(refused)
        count, outputs = 0, {output.name: output for output in self.stream.outputs.values()}
        for name, why in refused.rows.items():
            table, target = rows[name], outputs[name].dead_letter_topic.name
            made = dead_letters_of_rows(table, why, self.stream.name, name, self.bootstrap, kept, target)
            beside |= merge_tables(beside, {target: made})
            rows[name] = table.filter(pa.array([at not in why for at in range(table.num_rows)]))
            count += len(why)
            first = next(iter(why.values()))
            log.warning("stream %s: %d rows are put aside, the first: %s", self.stream.name, len(why), first)
        return count


def merge_tables(*parts: TablesByOutput) -> TablesByOutput:
    """The rows of all parts, by the name of their output."""
    tables: dict[str, list[pa.Table]] = {}
    for part in parts:
        for name, table in part.items():
            tables.setdefault(name, []).append(table)
    return {name: pa.concat_tables(found) for name, found in tables.items()}
