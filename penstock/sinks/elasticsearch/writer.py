"""Writes a sink's batches into Elasticsearch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from penstock.errors import PenstockError, Refused, SinkError, Wait
from penstock.model.output import NO_COMMIT, CommitMarker, Output, Writer, WriterOwner
from penstock.sinks.core import connections
from penstock.sinks.core.document import Figures
from penstock.sinks.core.latest_per_key import LAST, Row, newest
from penstock.sinks.elasticsearch.bulk import Bulk, Item, Outcome, item
from penstock.sinks.elasticsearch.client import VARIABLE, connect
from penstock.sinks.elasticsearch.config import LIMITS, Elasticsearch
from penstock.sinks.elasticsearch.indexes import Layout
from penstock.sinks.elasticsearch.tombstones import Graves

log = logging.getLogger(__name__)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Between two looks for what has expired.
HOUSEKEEPING = 3600.0
LONGEST_WAIT = 30.0
MARK = b'{"deleted":true}'


def open_index(owner: WriterOwner, outputs: Sequence[Output]) -> Writer:  # noqa: ARG001
    (output,) = outputs
    assert isinstance(output, Elasticsearch)
    if not (url := connections.url(output.connection)):
        raise SinkError(
            f"no Elasticsearch is known to write {output.name} to",
            got=f"{VARIABLE} is not set",
            hint="set it to http://user:password@host:9200, and start the driver anew (penstock streams release)",
        )
    return IndexWriter(url, output)


@dataclass(frozen=True)
class Work:
    """What a batch does to the store: documents to send, deletes to remember first, rows that are older than theirs."""

    items: list[Item]
    deletes: list[Row]
    older: int


class IndexWriter:
    """Writes documents and deletes them, newest version wins.

    Nothing fences another writer of the index: each write and delete carries its version, so the order in which two
    come does not matter. url: of the server, with user and password where it asks for them.
    """

    def __init__(
        self, url: str, output: Elasticsearch, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.output = output
        self._clock = clock
        self._client = connect(url)
        self._layout = Layout(self._client, output)
        self._bulk = Bulk(self._client, output.parallel, self._restore)
        self._graves = Graves(self._client, self._bulk, output) if output.tombstones != "ignore" else None
        self._buries = output.tombstones == "delete"
        self._conflicts = 0
        self._looked = -HOUSEKEEPING
        self._waits = 0
        self.figures = Figures()

    def committed(self) -> CommitMarker:
        """NO_COMMIT: a batch that is run again is written again, and changes nothing."""
        return NO_COMMIT

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:  # noqa: ARG002
        """Write one batch; the number of documents written or deleted.

        Wait if Elasticsearch is away or busy, Refused, after all others are written, for rows that it never takes,
        SinkError for anything else.
        """
        table = rows.get(self.output.name)
        if table is None:
            return 0
        made = Outcome()
        try:
            self._write(table, made)
        except Wait as e:
            self._waits += 1
            e.seconds = min(LONGEST_WAIT, 2.0 ** min(self._waits - 1, 10))
            made.refused.clear()  # the batch is given again
            raise
        finally:
            self._count(made)
        self._waits = 0
        self._housekeeping()
        if made.refused:
            raise Refused(
                f"{self.output.name}: documents that Elasticsearch never takes",
                rows={self.output.name: dict(sorted(made.refused.items()))},
                written=made.written,
            )
        return made.written

    def _write(self, table: pa.Table, made: Outcome) -> None:
        self._layout.prepare(table.schema.field("shape").type.value_type)
        if self._graves and self._buries:
            self._graves.prepare()
        tombstones, ahead = self.output.tombstones, self._graves.ahead if self._graves else lambda _: {}
        for chosen in newest(table, made.refused, id_bytes=LIMITS.id_bytes, tombstones=tombstones, ahead=ahead):
            work = self._work(chosen, table, made.refused)
            self._remember(work.deletes, made)
            self._conflicts += work.older
            self._bulk.run(work.items, made)
            self._believed(work.items, made)
            self._restored({row.number: row for row in chosen}, made)
            self._remember([row for row in chosen if row.ahead and not row.deleted], made)

    def _believed(self, items: Sequence[Item], made: Outcome) -> None:
        """See that documents are to blame for it that they were refused, and not what stands in the place of the index
        since it was looked at; what was refused for fields that are added now is sent again."""
        refused = [one for one in items if one.row in made.refused]
        if refused and self._layout.look(sorted({one.index for one in refused})):
            for one in refused:
                made.refused.pop(one.row, None)
            self._bulk.run(refused, made)

    def _remember(self, rows: Sequence[Row], made: Outcome) -> None:
        rows = [row for row in rows if row.number not in made.refused]
        if not self._graves or not rows:
            return
        self._graves.prepare()
        dug = self._graves.dig(rows, self._clock())
        made.retried += dug.retried
        made.bytes += dug.bytes

    def _restored(self, rows: Mapping[int, Row], made: Outcome) -> None:
        """Write again what is older than a document that is not there: somebody deleted that by hand, and its index
        remembers the next version for a while. What a sink deletes has a grave."""
        upserts = {one.row: one for one in made.older if one.body is not None}
        self._conflicts += len(made.older) - len(upserts)
        there = self._layout.there([(one.index, rows[number].id) for number, one in upserts.items()])
        gone = [rows[number] for number, one in upserts.items() if (one.index, rows[number].id) not in there]
        buried = self._graves.over(gone) if self._graves and self._buries else set()
        again = {row.number: row for row in gone if row.number not in buried}
        self._conflicts += len(upserts) - len(again)
        made.older = []
        self._bulk.run(
            [
                item("index", number, upserts[number].index, row.id, min(row.version + 1, LAST), upserts[number].body)
                for number, row in again.items()
            ],
            made,
        )
        self._conflicts += len(made.older)
        made.older = []

    def _work(self, chosen: Sequence[Row], table: pa.Table, refused: dict[int, str]) -> Work:
        bodies = table["body"].to_pylist()
        keep = [row for row in chosen if self._fits(row, bodies, refused)]
        deleted = [row for row in keep if row.deleted]
        alive = [row for row in keep if not row.deleted]
        older = self._graves.over(alive) if self._graves and self._buries else set()
        homes = self._layout.homes([row.id for row in deleted]) if deleted and self.output.suffix else {}
        items: list[Item] = []
        for row in keep:
            if row.number in older:
                continue
            if row.deleted and self._buries:
                places = homes.get(row.id, []) if self.output.suffix else [self.output.index]
                items += [item("delete", row.number, place, row.id, row.version, None) for place in places]
            else:
                body = bodies[row.number] or MARK
                items.append(item("index", row.number, self._index(row), row.id, row.version, body))
        self._layout.ensure(sorted({one.index for one in items if one.body}))
        return Work(items, deleted if self._buries else [], len(older))

    def _fits(self, row: Row, bodies: Sequence[bytes | None], refused: dict[int, str]) -> bool:
        """Whether a row is written; one that never can be is refused, one whose time is over is left out."""
        if row.deleted:
            return True
        body = bodies[row.number]
        if body is None:
            refused[row.number] = "it has no document"
        elif len(body) > LIMITS.document_bytes:
            refused[row.number] = f"its document has {len(body)} bytes, {LIMITS.document_bytes} are taken"
        elif self.output.suffix:
            first, last = LIMITS.suffix_years
            if row.at is None:
                refused[row.number] = "its time is NULL, so there is no index for it"
            elif (
                not _micros(datetime(first, 1, 1, tzinfo=UTC)) <= row.at < _micros(datetime(last + 1, 1, 1, tzinfo=UTC))
            ):
                refused[row.number] = f"its time is outside of {first} to {last}"
            elif (oldest := self._layout.oldest(self._clock())) and row.at < _micros(oldest):
                return False
        return row.number not in refused

    def _index(self, row: Row) -> str:
        if not self.output.suffix:
            return self.output.index
        assert row.at is not None
        return self._layout.index_of(EPOCH + timedelta(microseconds=row.at))

    def _restore(self, index: str) -> None:
        if index == self.output.graves and self._graves:
            self._graves.restore()
        else:
            self._layout.restore(index)

    def _count(self, made: Outcome) -> None:
        now = self.figures
        self.figures = replace(
            now,
            written=now.written + made.written,
            conflicts=self._conflicts,
            retried=now.retried + made.retried,
            refused=now.refused + len(made.refused),
            bytes=now.bytes + made.bytes,
        )

    def _housekeeping(self) -> None:
        """Forget what has expired, now and then; that it cannot holds up no document."""
        if time.monotonic() - self._looked < HOUSEKEEPING:
            return
        self._looked = time.monotonic()
        try:
            self._layout.expire(self._clock())
            if self._graves:
                self._graves.expire(self._clock())
        except PenstockError as e:
            log.warning("elasticsearch: %s keeps what has expired for now: %s", self.output.name, e)

    def close(self) -> None:
        self._bulk.close()
        self._client.close()


def _micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)
