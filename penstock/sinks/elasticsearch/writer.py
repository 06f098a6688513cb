"""Writes a sink's batches into Elasticsearch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.model.output import Output, Writer, WriterOwner
from penstock.sinks.core.bulk import BulkOutcome
from penstock.sinks.core.connections import required_url
from penstock.sinks.core.latest_per_key import LAST_VERSION, VersionedRow, latest_per_key
from penstock.sinks.core.suffixes import micros, suffix_error
from penstock.sinks.core.writer import DocumentWriter, SinkBatchResult
from penstock.sinks.elasticsearch.bulk import ElasticsearchBulk, IndexAction, action
from penstock.sinks.elasticsearch.client import connect
from penstock.sinks.elasticsearch.config import LIMITS, Elasticsearch
from penstock.sinks.elasticsearch.indexes import IndexManager
from penstock.sinks.elasticsearch.tombstones import TombstoneIndex

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 3600.0
# The document of a tombstone, where documents are marked.
DELETED_DOCUMENT = b'{"deleted":true}'


def open_index(owner: WriterOwner, outputs: Sequence[Output]) -> Writer:  # noqa: ARG001
    (output,) = outputs
    assert isinstance(output, Elasticsearch)
    return IndexWriter(required_url(output.connection, output.name), output)


@dataclass(frozen=True)
class WritePlan:
    """What rows do to the store. deletes: rows to remember as deleted first; stale: rows older than their delete."""

    actions: list[IndexAction]
    deletes: list[VersionedRow]
    stale: int


class IndexWriter(DocumentWriter):
    """Writes documents and deletes them; the newest version wins.

    Nothing fences another writer of the index: each write and delete carries its version, so the order in which two
    arrive does not matter.

    Args:
        url: of the server, with user and password if it asks for them.
        output: what is written.
        clock: the time, for what expires.
    """

    product = "Elasticsearch"

    def __init__(
        self, url: str, output: Elasticsearch, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        super().__init__(output)
        self.output = output
        self._clock = clock
        self._client = connect(url)
        self._indexes = IndexManager(self._client, output)
        self._bulk = ElasticsearchBulk(self._client, output.parallel, self._restore_index)
        self._tombstones = TombstoneIndex(self._client, self._bulk, output) if output.tombstones != "ignore" else None
        # What remembers deletes; where tombstones only mark documents, nothing is deleted.
        self._deletes = self._tombstones if output.tombstones == "delete" else None
        self._housekept = -HOUSEKEEPING_S

    def _write_batch(self, table: pa.Table, result: SinkBatchResult) -> None:
        self._indexes.prepare(table.schema.field("shape").type.value_type)
        if self._deletes:
            self._deletes.ensure()
        for chosen in latest_per_key(
            table,
            result.refused,
            id_bytes=LIMITS.id_bytes,
            tombstones=self.output.tombstones,
            future_upserts=self._tombstones.future_upserts if self._tombstones else lambda _: {},
        ):
            plan = self._plan(chosen, table, result.refused)
            result.conflicts += plan.stale
            self._record(plan.deletes, result)
            conflicts = self._send(plan.actions, result)
            conflicts += self._recheck_refused(plan.actions, result)
            self._rewrite_missing({row.number: row for row in chosen}, conflicts, result)
            self._record([row for row in chosen if row.future and not row.deleted], result)

    def _send(self, actions: Sequence[IndexAction], result: SinkBatchResult) -> list[IndexAction]:
        """Send documents; those of which the store has newer versions."""
        outcome = BulkOutcome[IndexAction]()
        try:
            self._bulk.write(actions, outcome)
        finally:
            result.written += outcome.written
            result.retried += outcome.retried
            result.bytes += outcome.bytes
            result.refused |= outcome.refused
        return outcome.conflicts

    def _recheck_refused(self, actions: Sequence[IndexAction], result: SinkBatchResult) -> list[IndexAction]:
        """Check that the documents are to blame for their refusal, not what somebody put in the place of the index.

        Documents that were refused for fields that are added now are sent again; those that conflict are returned.
        """
        refused = [one for one in actions if one.row in result.refused]
        if not refused or not self._indexes.recheck(sorted({one.index for one in refused})):
            return []
        for one in refused:
            result.refused.pop(one.row, None)
        return self._send(refused, result)

    def _record(self, rows: Sequence[VersionedRow], result: SinkBatchResult) -> None:
        rows = [row for row in rows if row.number not in result.refused]
        if self._tombstones and rows:
            outcome = self._tombstones.record(rows, self._clock())
            result.retried += outcome.retried
            result.bytes += outcome.bytes

    def _rewrite_missing(
        self, rows: Mapping[int, VersionedRow], conflicts: Sequence[IndexAction], result: SinkBatchResult
    ) -> None:
        """Write documents again that conflict with a document that does not exist.

        Somebody deleted that by hand, and its index remembers the next version for a while. What the sink itself
        deleted has a tombstone.
        """
        upserts = {one.row: one for one in conflicts if one.document is not None}
        existing = self._indexes.existing([(one.index, rows[number].id) for number, one in upserts.items()])
        missing = [rows[number] for number, one in upserts.items() if (one.index, rows[number].id) not in existing]
        stale = self._deletes.stale_rows(missing) if self._deletes else set()
        rewritten = [row for row in missing if row.number not in stale]
        result.conflicts += len(conflicts) - len(rewritten)
        actions = [
            action(
                "index", row.number, upserts[row.number].index, row.id, min(row.version + 1, LAST_VERSION),
                upserts[row.number].document,
            )
            for row in rewritten
        ]  # fmt: skip
        result.conflicts += len(self._send(actions, result))

    def _plan(self, chosen: Sequence[VersionedRow], table: pa.Table, refused: dict[int, str]) -> WritePlan:
        bodies = table["body"].to_pylist()
        rows = [row for row in chosen if self._is_writable(row, bodies, refused)]
        deleted = [row for row in rows if row.deleted]
        stale = self._deletes.stale_rows([row for row in rows if not row.deleted]) if self._deletes else set()
        holders = self._indexes.holders([row.id for row in deleted]) if deleted and self.output.suffix else {}
        actions: list[IndexAction] = []
        for row in rows:
            if row.number in stale:
                continue
            if row.deleted and self._deletes:
                indexes = holders.get(row.id, []) if self.output.suffix else [self.output.index]
                actions += [action("delete", row.number, index, row.id, row.version, None) for index in indexes]
            else:
                document = bodies[row.number] or DELETED_DOCUMENT
                actions.append(
                    action("index", row.number, self._indexes.name_at(row.at), row.id, row.version, document)
                )
        self._indexes.ensure(sorted({one.index for one in actions if one.document}))
        return WritePlan(actions, deleted if self._deletes else [], len(stale))

    def _is_writable(self, row: VersionedRow, bodies: Sequence[bytes | None], refused: dict[int, str]) -> bool:
        """Whether a row is written. One that never can be is refused, one that has expired is left out."""
        if row.deleted:
            return True
        body = bodies[row.number]
        if body is None:
            refused[row.number] = "it has no document"
        elif len(body) > LIMITS.document_bytes:
            refused[row.number] = f"its document has {len(body)} bytes, {LIMITS.document_bytes} are taken"
        elif self.output.suffix:
            if error := suffix_error(row.at):
                refused[row.number] = error
            elif row.at is not None and (oldest := self._indexes.oldest(self._clock())) and row.at < micros(oldest):
                return False
        return row.number not in refused

    def _restore_index(self, index: str) -> None:
        if index == self.output.tombstone_index and self._tombstones:
            self._tombstones.create()
        else:
            self._indexes.restore(index)

    def _housekeeping(self) -> None:
        """Delete what has expired, once an hour; a failure holds up no document."""
        if time.monotonic() - self._housekept < HOUSEKEEPING_S:
            return
        self._housekept = time.monotonic()
        try:
            self._indexes.expire(self._clock())
            if self._tombstones:
                self._tombstones.expire(self._clock())
        except PenstockError as e:
            log.warning("elasticsearch: %s keeps what has expired for now: %s", self.output.name, e)

    def close(self) -> None:
        self._bulk.close()
        self._client.close()
