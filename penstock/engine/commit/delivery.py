"""A batch given to a stream's stores, each of which may ask to wait, or never take some rows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.engine.commit.async_writer import Patient
from penstock.engine.commit.dead_letters import letters
from penstock.engine.commit.reject_budget import Untaken
from penstock.errors import Refused, Wait
from penstock.kafka.admin import ensure_topics
from penstock.model.output import CommitMarker, Output, Writer, WriterOwner, open_store
from penstock.model.topic import DEAD_LETTERS

if TYPE_CHECKING:
    from penstock.engine.commit.dead_letter_index import Kept
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

Tables = dict[str, pa.Table]
# A store that asks for more is asked again after this.
LONGEST_WAIT = 30.0
# Seconds between two lines of the log about one and the same wait.
REMIND = 60.0


@dataclass
class Store:
    """The writer of outputs that share a store. mark: of the last batch that is in it."""

    outputs: list[Output]
    writer: Writer
    mark: CommitMarker

    @property
    def marked(self) -> bool:
        """Whether it keeps marks."""
        return any(output.delivery == "exactly once" for output in self.outputs)


@dataclass
class Giving:
    """stopping: set when the stream is to stop; stands: told why it stands still, a Wait where it is a store that asks
    for it, and None once it goes on."""

    stream: Stream
    bootstrap: str
    stopping: threading.Event
    stands: Callable[[Exception | None], None]
    untaken: Untaken
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

    def opened(self, outputs: list[Output], owner: WriterOwner) -> Writer:
        if outputs[0].delivery == "exactly once":
            return open_store(outputs, owner)
        return Patient(outputs, owner, self.stopping, self.stands)

    def give(self, store: Store, rows: Tables, beside: Tables, mark: CommitMarker, kept: Kept) -> int:
        """Give a store its part of a batch; how many rows it can never take, which are moved beside the others.

        kept: what lies beside already.
        """
        names = {output.name for output in store.outputs}
        waited, refused, said_at = "", 0, 0.0
        while True:
            own = {name: table for name, table in {**rows, **beside}.items() if name in names}
            if DEAD_LETTERS.name in own:
                ensure_topics([DEAD_LETTERS], self.bootstrap)
            self._since = time.monotonic() if store.marked else None
            try:
                # Without rows or a mark there is nothing to wait for.
                if store.marked or any(map(len, own.values())) or any(o.empty_batches for o in store.outputs):
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
                self.stands(e)
                if e.what != waited or time.monotonic() - said_at > REMIND:
                    log.warning("stream %s waits: %s", self.stream.name, e)
                    said_at = time.monotonic()
                waited = e.what
                if self.stopping.wait(min(e.seconds, LONGEST_WAIT)):
                    raise
                continue
            finally:
                self._since = None
            if waited:
                log.info("stream %s waits no longer", self.stream.name)
                self.stands(None)
            return refused

    def _answered(self, store: Store) -> None:
        if not store.marked:
            self.answered_at = int(time.time() * 1000)

    def _put_aside(self, refused: Refused, rows: Tables, beside: Tables, kept: Kept) -> int:
        if refused.written is None:
            # Of stores that take what they can, any number is put aside: it is what the data is, and can be replayed.
            self.untaken.count(refused)
        count, outputs = 0, {output.name: output for output in self.stream.outputs.values()}
        for name, why in refused.rows.items():
            table, target = rows[name], outputs[name].dead_letter_topic.name
            made = letters(table, why, self.stream.name, name, self.bootstrap, kept, target)
            beside |= joined(beside, {target: made})
            rows[name] = table.filter(pa.array([at not in why for at in range(table.num_rows)]))
            count += len(why)
            first = next(iter(why.values()))
            log.warning("stream %s: %d rows are put aside, the first: %s", self.stream.name, len(why), first)
        return count


def joined(*parts: Tables) -> Tables:
    """The rows of all parts, by the name of their output."""
    tables: dict[str, list[pa.Table]] = {}
    for part in parts:
        for name, table in part.items():
            tables.setdefault(name, []).append(table)
    return {name: pa.concat_tables(found) for name, found in tables.items()}
