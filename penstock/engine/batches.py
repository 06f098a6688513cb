"""A stream's batches on their way out: rows to the outputs, dead letters and late records beside them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from penstock.control.gaps import Gap
from penstock.declare.outputs import NOTHING, Beside, Mark, Output, Owner, Writer, open_store
from penstock.declare.stream import TAG
from penstock.declare.topic import ASIDE, COMMITS
from penstock.engine.gaps import Inputs
from penstock.engine.jvm import Execution, turn
from penstock.engine.offsetlog import Plan
from penstock.engine.quarantine import Quarantine
from penstock.engine.recovery import Unmarked
from penstock.engine.rejects import Rejects, letters
from penstock.engine.reset import Reset, take_up
from penstock.engine.watermark import Watermark
from penstock.errors import Blocked, DeclarationError, LeaseLost, PenstockError, Refused, Wait
from penstock.kafka.admin import admin, ensure_topics, partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.control.gaps import Book
    from penstock.declare.stream import Stream
    from penstock.engine.checkpoint import Batch, Checkpoint
    from penstock.engine.source import Place
    from penstock.engine.tables import Tables

log = logging.getLogger(__name__)

# A store that asks for more is asked again after this.
LONGEST_WAIT = 30.0


@dataclass
class Store:
    """The writer of outputs that share a store. mark: of the last batch that is in it."""

    outputs: list[Output]
    writer: Writer
    mark: Mark


@dataclass(frozen=True)
class Written:
    """What a batch came to. dead and late: records, kept or counted; offsets: the next ones of its inputs."""

    rows: int
    dead: int
    late: int
    offsets: dict[str, dict[int, int]]


class Batches:
    """Writes the batches of one stream, each to every store once or over itself.

    Stores without marks come first: so once a store with marks has a batch, all before it have it too. done: is told
    of each batch written; waits: what a store says that asks to wait, and None once it has taken the batch.
    """

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        bootstrap: str,
        checkpoint: Checkpoint,
        tables: Tables,
        book: Book,
        done: Callable[[Written], None],
        waits: Callable[[str | None], None],
    ) -> None:
        self._stream, self._spark, self._bootstrap = stream, spark, bootstrap
        self._checkpoint, self._tables, self._done, self._waits = checkpoint, tables, done, waits
        self._stores: list[Store] = []
        self._rejects: Rejects
        self._book, self._inputs = book, Inputs(stream, bootstrap, checkpoint, book)
        self._watermark: Watermark
        self._quarantine = Quarantine(stream, spark, bootstrap, self._made, checkpoint.path, waits)
        # Held while a batch is written: a stop waits for it, so that no transaction is cut.
        self._writing = threading.Lock()
        self._stopping = threading.Event()
        self._since: float | None = None
        self._begun: float | None = None
        self.given: int | None = None
        """The number of the batch that Spark gave last since it was opened."""
        self.reset: Reset | None = None
        """What it began anew with."""
        self.blocked: Blocked | None = None
        """Why the present query may not go on: Spark hands on no more than the error's text."""

    @property
    def committed(self) -> Mark:
        """The mark of the last batch that is written."""
        return max((store.mark for store in self._stores), key=lambda mark: mark.batch, default=NOTHING)

    @property
    def left_out(self) -> Collection[Place]:
        """Places of records that make their batch fail: the query is not to read them."""
        return self._quarantine.left_out

    def writing_for(self) -> float:
        """Seconds since a store was given the present batch; 0 if none is being written."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def busy_for(self) -> float:
        """Seconds since Spark gave the present batch; 0 if there is none."""
        begun = self._begun
        return 0.0 if begun is None else time.monotonic() - begun

    def open(self) -> None:
        """Open the stores, which fences earlier writers of the same stream, and find what is written."""
        self._stopping.clear()
        self.given = None
        self.blocked = None
        by_store: dict[Hashable, list[Output]] = {}
        outputs = [*self._stream.outputs.values(), *self._stream.beside.values()]
        # Where there is no other topic, this one's writer keeps the mark: it tells a topic deleted and made again.
        outputs.append(Beside(ASIDE))
        for output in sorted(outputs, key=lambda o: o.delivery == "exactly once"):
            by_store.setdefault(output.store, []).append(output)
        owner = Owner(self._stream.name, self._stream.group, self._bootstrap)
        for shared in by_store.values():
            self._stores.append(Store(shared, open_store(shared, owner), NOTHING))
        self._topics_exist()
        for store in self._stores:
            store.mark = store.writer.committed()
            if any(output.name in self._stream.beside for output in store.outputs):
                self._tables.settle(store.mark)
        self.reset = take_up(self._checkpoint, self.committed)
        self._fits()
        self._mend()
        self._rejects = Rejects(self._stream, self._spark, self._bootstrap, self.left_out, self.reset)
        self._quarantine.reset = self.reset
        self._watermark = Watermark(self._stream)

    def settle(self, timeout: float) -> None:
        """Let no further batch begin, and wait for the present one."""
        # Spark's stop waits for the callback: that must find the flag, not a lock held here.
        self._stopping.set()
        if self._writing.acquire(timeout=timeout):
            self._writing.release()

    def close(self) -> None:
        for store in self._stores:
            store.writer.close()
        self._stores = []

    def encode(self, rows: DataFrame) -> DataFrame:
        """The transform's rows as the outputs take them: of several outputs a struct each, NULL but for the row's."""
        outputs = self._stream.outputs
        if "" in outputs:
            return rows.select(*outputs[""].columns())
        if TAG not in (name.lower() for name in rows.columns):
            raise DeclarationError(
                f"stream {self._stream.name}: the transform's rows do not say which output they are for",
                got=f"columns {', '.join(rows.columns)}",
                fix=f"give each a column {TAG} with one of: {', '.join(outputs)}",
            )
        structs = [
            F.when(F.col(TAG) == tag, F.struct(*output.columns())).alias(f"_{number}")
            for number, (tag, output) in enumerate(outputs.items())
        ]
        return rows.select(F.col(TAG).alias("_tag"), *structs)

    def _made(self, frames: dict[str, DataFrame]) -> DataFrame:
        """The encoded rows of some frames of the inputs: a batch, run apart from its query."""
        if self._stream.tables:
            frames = {name: frame.hint("shuffle_hash") for name, frame in frames.items()}
        return self.encode(self._stream.transform(**frames, **self._tables.frames(self._spark)))

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch of the encoded rows; Spark calls it."""
        self._begun = time.monotonic()
        try:
            self._write(frame, batch_id)
        except Blocked as e:
            self.blocked = e
            raise
        finally:
            self._begun = None

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        with self._writing, turn(self._spark):
            if not self._stores or self._stopping.is_set():
                raise LeaseLost(f"stream {self._stream.name} is being stopped")
            self.given = batch_id
            query = self._query()
            self._tables.advance(str(query.id), batch_id, self._stopping.is_set)
            batch, stopping = self._checkpoint.batch(batch_id), self._stopping.is_set
            todo = self._todo(str(query.id), batch)
            if not todo:
                # Its output is out already; the rows are consumed all the same, so that the state is committed.
                self._quarantine.watch(batch, frame.write.format("noop").mode("append").save, stopping)
                self._watermark.settle(batch, Execution.last(query))
                log.info("stream %s: batch %d was written before the restart", self._stream.name, batch_id)
                return
            ids = self._inputs.before(batch, self.committed, str(query.id))
            rows = self._split(self._quarantine.watch(batch, frame.toArrow, stopping))
            self._watermark.settle(batch, Execution.last(query))
            rejects = self._rejects.of(batch, Execution.last(query))
            rejects += self._quarantine.letters(batch, self._rejects.kept)
            self._inputs.after(batch)
            # Nobody takes them where the store that does has this batch already.
            takes = any(output.name in self._stream.beside for store in todo for output in store.outputs)
            of_tables, dead, first = self._tables.dead() if takes else ({}, 0, "")
            known = self.committed.offsets
            of_marks = self._tables.offsets if takes else {t: known[t] for t in self._tables.ids if t in known}
            mark = Mark(
                str(query.id),
                batch_id,
                {**batch.ends, **of_marks},
                {**ids, **self._tables.ids},
                batch.plans,
                self._checkpoint.copy,
            )
            self._checkpoint.sync()
            beside = _joined(rejects.rows, of_tables)
            refused = 0
            for store in todo:
                refused += self._give(store, rows, beside, mark)
                store.mark = mark
            if takes:
                self._tables.written()
            made = sum(table.num_rows for table in rows.values())
            self._done(Written(made, rejects.dead + dead + refused, rejects.late, batch.ends))
            if rejects.dead or dead:
                log.warning(
                    "stream %s: %d records of batch %d are put aside, the first: %s",
                    self._stream.name, rejects.dead + dead, batch_id, rejects.first or first,
                )  # fmt: skip

    def _todo(self, query: str, batch: Batch) -> list[Store]:
        """The stores that may not have the batch yet."""
        for place, store in reversed(list(enumerate(self._stores))):
            if store.mark.query == query and self._has(store.mark, batch):
                return self._stores[place + 1 :]
        return self._stores

    def _has(self, mark: Mark, batch: Batch) -> bool:
        """Whether a batch is written. PenstockError if it neither is the one behind the mark nor one that is written.

        The number alone does not tell: a log that lost its end plans other records under the same one.
        """
        plan = Plan.read(mark.plans.get(batch.batch_id, ""))
        if plan and plan.sources == batch.plan.sources:
            return True
        before = Plan.read(mark.plans.get(mark.batch, ""))
        if mark.batch == batch.batch_id - 1 and (
            before is None or (batch.before and before.sources == batch.before.sources)
        ):
            return False
        # Versions before 0.3 kept no plans.
        bare = not mark.plans and mark.batch == batch.batch_id
        if bare and all(mark.offsets.get(topic) == parts for topic, parts in batch.ends.items()):
            return True
        raise PenstockError(
            f"stream {self._stream.name}: batch {batch.batch_id} was planned with other offsets than are written",
            got=f"the mark is of batch {mark.batch}",
            fix="nothing: the query starts again from what its mark says",
        )

    def _give(self, store: Store, rows: dict[str, pa.Table], beside: dict[str, pa.Table], mark: Mark) -> int:
        """Give a store its part of a batch; how many rows it can never take, which are moved beside the others."""
        names = {output.name for output in store.outputs}
        waited, refused = False, 0
        while True:
            own = {name: table for name, table in {**rows, **beside}.items() if name in names}
            if ASIDE.name in own:
                ensure_topics([ASIDE], self._bootstrap)
            self._since = time.monotonic()
            try:
                store.writer.write(own, mark)
            except Refused as e:
                refused += self._put_aside(e, rows, beside)
            except Wait as e:
                self._since = None
                log.warning("stream %s waits: %s", self._stream.name, e)
                self._waits(str(e))
                waited = True
                if self._stopping.wait(min(e.seconds, LONGEST_WAIT)):
                    raise
            else:
                if waited:
                    self._waits(None)
                return refused
            finally:
                self._since = None

    def _put_aside(self, refused: Refused, rows: dict[str, pa.Table], beside: dict[str, pa.Table]) -> int:
        count = 0
        for name, why in refused.rows.items():
            table = rows[name]
            made = letters(table.take(list(why)), self._stream.name, name, list(why.values()))
            beside |= _joined(beside, {ASIDE.name: made})
            rows[name] = table.filter(pa.array([at not in why for at in range(table.num_rows)]))
            count += len(why)
            first = next(iter(why.values()))
            log.warning("stream %s: %d rows are put aside, the first: %s", self._stream.name, len(why), first)
        return count

    def _split(self, rows: pa.Table) -> dict[str, pa.Table]:
        """Rows by the name of the output they are for."""
        outputs = self._stream.outputs
        if "" in outputs:
            return {outputs[""].name: rows}
        tags = rows["_tag"]
        if stray := set(tags.unique().to_pylist()) - outputs.keys():
            raise DeclarationError(
                f"stream {self._stream.name}: rows for an output that is not declared",
                got=f"{TAG} = {', '.join(map(repr, stray))}",
                fix=f"let the transform give one of: {', '.join(outputs)}",
            )
        found = {}
        for number, (tag, output) in enumerate(outputs.items()):
            mine = rows.filter(pc.equal(tags, pa.scalar(tag))).select([f"_{number}"]).flatten()
            found[output.name] = mine.rename_columns([name.removeprefix(f"_{number}.") for name in mine.column_names])
        return found

    def _topics_exist(self) -> None:
        """Say which topic is missing, instead of a source that waits for it or an output that is made by chance."""
        there = partitions(admin(self._bootstrap), self._bootstrap)
        wanted = {topic.name for topic in self._stream.topics()}
        if missing := sorted(wanted - there.keys()):
            if deleted := self._inputs.deleted(missing):
                raise deleted
            raise DeclarationError(
                f"stream {self._stream.name} needs topics the broker does not have",
                got=", ".join(missing),
                fix="create them with `penstock topics --apply`",
            )

    def _fits(self) -> None:
        """See that the checkpoint is that of the mark; one without a mark is marked once somebody has accepted it."""
        stateful, name = self._stream.stateful_steps > 0, self._stream.name
        try:
            self._checkpoint.fits(self.committed, stateful=stateful)
        except Unmarked as e:
            query = self._checkpoint.query
            gap = Gap(COMMITS.name, "unmarked", start=self.committed.batch + 1, end=e.ended + 1, topic_id=query)
            if gap not in self._book.gaps_found(name, [gap]):
                raise
            ends, _ = self._checkpoint.waiting()
            mark = Mark(query, e.ended, ends, {}, self._checkpoint.batch(e.ended).plans, self._checkpoint.copy)
            for store in self._stores:
                if any(output.delivery == "exactly once" for output in store.outputs):
                    store.writer.write({}, mark)
                    store.mark = mark
            self._book.gaps_passed(name, [gap])
            self._checkpoint.fits(mark, stateful=stateful)

    def _mend(self) -> None:
        """Let reading go on behind gaps that may be passed: the marks and the checkpoint then say the same of it.

        Offsets go into the marks first, and what a mark says of another topic goes last: to die in between leaves what
        shows the gap once more.
        """
        mended = self._inputs.at_start(self.committed)
        if mended.gone or mended.logs:
            self._quarantine.forget(mended)
            # Meanwhile the mark holds no plans: it would say that the log is another's.
            self._remark(lambda mark: replace(mended.within(mark), plans={}))
            self._checkpoint.rebase(
                lambda topic, partition, at: None if topic in mended.gone else mended.offset(topic, partition, at)
            )
            self._checkpoint.sync()
            self._remark(lambda mark: replace(mark, plans=self._checkpoint.batch(mark.batch).plans))
        self._remark(mended.without)

    def _remark(self, change: Callable[[Mark], Mark]) -> None:
        query = self._checkpoint.query
        for store in self._stores:
            if query and store.mark.query == query and (fresh := change(store.mark)) != store.mark:
                store.writer.write({}, fresh)
                store.mark = fresh

    def _query(self) -> StreamingQuery:
        # The callback may run before the query's start() has returned.
        return next(query for query in self._spark.streams.active if query.name == self._stream.name)


def _joined(*parts: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The rows of all parts, by the name of their output."""
    tables: dict[str, list[pa.Table]] = {}
    for part in parts:
        for name, table in part.items():
            tables.setdefault(name, []).append(table)
    return {name: pa.concat_tables(found) for name, found in tables.items()}
