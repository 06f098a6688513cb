"""Folds without Spark: batches of rows through one part's files, with the watermark that a stream would have."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codec.arrow_types import arrow_type
from penstock.codec.columnar import EVENT_TIME
from penstock.engine.state import fold_query
from penstock.engine.state.state_part import HASH, PartManifest, StatePart
from penstock.model.fold import Fold
from penstock.model.schema import schema

Row = Mapping[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Folding:
    """A fold whose state lies in a folder. ddl: the columns of its rows, `timestamp`, epoch ms, among them.

    grace: ms; None takes every row. hashes: how many there are, so that keys meet.
    """

    def __init__(self, fold: Fold, ddl: str, folder: Path, grace: int | None = None, hashes: int = 2**62) -> None:
        self.fold, self.folder, self.grace, self.batch, self.latest = fold, folder, grace, 0, 0
        self.late, self._hashes = 0, hashes
        self._seen: set[int] = set()
        self.manifest = PartManifest()
        fields = [pa.field(f.name, arrow_type(f.type)) for f in schema(ddl, "a test")]
        self._schema = pa.schema(fields)

    @property
    def watermark(self) -> int:
        return max(0, self.latest - (self.grace or 0))

    def take(self, rows: Sequence[Row], *, again: bool = False, clock: int = 0) -> list[dict[str, Any]]:
        """What a batch gives; again: run it twice, as behind a crash. clock: of a heartbeat in it, epoch ms."""
        watermark = self.watermark
        for _ in range(2 if again else 1):
            found, manifest = self._run(rows, watermark)
        self.manifest = manifest
        self.batch += 1
        self.late += found.late
        self.latest = max([self.latest, clock, *(row["timestamp"] for row in rows)])
        return found.rows.to_pylist()

    def _run(self, rows: Sequence[Row], watermark: int) -> tuple[fold_query.FoldResult, PartManifest]:
        table = self._table(rows)
        layout = fold_query.state_schema(self.fold, table.schema)
        part = StatePart(self.folder, layout, self.manifest)
        due = part.due(self.fold.timer_field, watermark) if self.fold.timer_field else None
        found = fold_query.run_fold(self.fold, table, part.find, watermark, late=self.grace is not None, due=due)
        made = part.change(
            found.state,
            found.deleted,
            found.previous_keys,
            found.late,
            lambda kept: fold_query.drop_expired(self.fold, kept, watermark),
        )
        return found, made

    def _table(self, rows: Sequence[Row]) -> pa.Table:
        made = pa.Table.from_pylist(
            [{name: row.get(name) for name in self._schema.names} for row in rows], self._schema
        )
        times = [EPOCH + timedelta(milliseconds=row["timestamp"]) for row in rows]
        made = made.append_column(EVENT_TIME, pa.array(times, pa.timestamp("us", "UTC")))
        keys = ("\0".join(str(row[name]) for name in self.fold.key) for row in rows)
        hashes = [zlib.crc32(key.encode()) * 7919 % self._hashes for key in keys]
        self._seen.update(hashes)
        return made.append_column(HASH, pa.array(np.array(hashes, np.int64)))

    def state(self) -> list[dict[str, Any]]:
        """What is kept of every key, by key."""
        layout = fold_query.state_schema(self.fold, self._table([]).schema)
        part = StatePart(self.folder, layout, self.manifest)
        return sorted(part.find(np.array(sorted(self._seen), np.int64)).drop_columns([HASH]).to_pylist(), key=str)

    def kept(self) -> int:
        """How many keys its newest manifest counts."""
        return self.manifest.keys


def cut(rows: Iterable[Row], sizes: Sequence[int]) -> list[list[Row]]:
    """Rows in batches of some sizes, again and again."""
    rest = list(rows)
    found: list[list[Row]] = []
    while rest:
        size = sizes[len(found) % len(sizes)]
        found.append(rest[:size])
        rest = rest[size:]
    return found
