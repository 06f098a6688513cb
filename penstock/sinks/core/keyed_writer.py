"""Writes documents by id: the newest version of each, unless it is older than a delete that the store remembers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

import pyarrow as pa

from penstock.sinks.core.bulk import SinkBatchResult
from penstock.sinks.core.document import OFFSET_BITS
from penstock.sinks.core.latest_per_key import FutureUpsert, Position, VersionedRow, latest_per_key
from penstock.sinks.core.suffixes import suffix_error
from penstock.sinks.core.writer import DocumentWriter, OutputT


class Tombstones(Protocol):
    """Remembers the versions of deleted documents, so that no older upsert that comes later brings one back.

    Also remembers future upserts, with the position of their record: a tombstone behind them has an earlier time.
    """

    def read(self, ids: Sequence[str]) -> Iterator[tuple[str, int, Position | None]]:
        """The ids that are remembered, each with its version, and of a future upsert its position."""
        ...

    def record(self, rows: Sequence[VersionedRow], result: SinkBatchResult) -> None:
        """Remember deletes, before they are made, or future upserts. result: gets `retried` and `bytes`."""
        ...


def tombstone_ms(row: VersionedRow, now_ms: int) -> int:
    """The time from which a tombstone is kept for a while; a future upsert as long as its later time may matter."""
    return now_ms if row.deleted else max(now_ms, row.version >> OFFSET_BITS)


class KeyedWriter(DocumentWriter[OutputT]):
    """Writes the newest version of each document, and remembers deletes. id_bytes: most bytes of an id."""

    id_bytes: ClassVar[int]
    _tombstones: Tombstones

    def __init__(self, url: str, output: OutputT) -> None:
        super().__init__(url, output)
        self._deletes = output.tombstones == "delete"

    def _write_batch(self, table: pa.Table, result: SinkBatchResult) -> None:
        self._prepare(table)
        for chosen in latest_per_key(
            table, result.refused, id_bytes=self.id_bytes, tombstones=self.output.tombstones,
            future_upserts=self._future_upserts,
        ):  # fmt: skip
            deletes = [row for row in chosen if row.deleted and self._deletes]
            upserts = [row for row in chosen if not (row.deleted and self._deletes) and self._has_time(row, result)]
            current = self._newer_than_deletes(upserts)
            result.conflicts += len(upserts) - len(current)
            self._record(deletes, result)
            self._write_rows(table, current, deletes, result)
            if self.output.tombstones != "ignore":
                self._record([row for row in chosen if row.future and not row.deleted], result)

    @abstractmethod
    def _prepare(self, table: pa.Table) -> None:
        """Called before the rows of a batch are written."""

    @abstractmethod
    def _write_rows(
        self, table: pa.Table, upserts: Sequence[VersionedRow], deletes: Sequence[VersionedRow], result: SinkBatchResult
    ) -> None:
        """Write documents and delete others. result: gets the outcome."""

    def _newer_than_deletes(self, rows: Sequence[VersionedRow]) -> list[VersionedRow]:
        """The rows that are not older than the delete of their id."""
        versions = self._deleted_versions(row.id for row in rows)
        return [row for row in rows if versions.get(row.id, row.version) <= row.version]

    def _deleted_versions(self, ids: Iterable[str]) -> dict[str, int]:
        return {key: version for key, version, _ in self._tombstones.read(list(ids))} if self._deletes else {}

    def _future_upserts(self, ids: Sequence[str]) -> Mapping[str, FutureUpsert]:
        found = self._tombstones.read(ids) if self.output.tombstones != "ignore" else ()
        return {key: FutureUpsert(version, position) for key, version, position in found if position}

    def _record(self, rows: Sequence[VersionedRow], result: SinkBatchResult) -> None:
        if rows := [row for row in rows if row.number not in result.refused]:
            self._tombstones.record(rows, result)

    def _has_time(self, row: VersionedRow, result: SinkBatchResult) -> bool:
        """Whether a row has the time that its index, collection or expiry needs; if not, it is refused."""
        error = suffix_error(row.at) if self.output.suffix else ""
        if row.at is None and self.output.expire_seconds:
            error = "its time is NULL"
        if error:
            result.refused[row.number] = error
        return not error
