"""Reads an archive: the records of some hours as Arrow tables, each file held against what the archive says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from penstock.archive import layout, records
from penstock.archive.keeper import manifest_of
from penstock.archive.layout import File, Manifest, Span, Spans, State, added
from penstock.archive.states import latest
from penstock.archive.store import Gone, Store
from penstock.errors import SinkError

RESTORE = "bring the object back from a version or backup of the bucket"


@dataclass(frozen=True)
class Hour:
    """An hour as the archive names it. manifest: None while no hour is closed; late: files that it has not."""

    name: str
    manifest: Manifest | None
    late: tuple[File, ...]

    @property
    def files(self) -> tuple[File, ...]:
        return (*(self.manifest.files if self.manifest else ()), *self.late)

    @property
    def closed(self) -> bool:
        return self.manifest is not None and not self.late

    @property
    def spans(self) -> Spans:
        return added([*([self.manifest.spans] if self.manifest else []), *(file.spans for file in self.late)])


def names(state: State, start: datetime | None = None, end: datetime | None = None) -> list[str]:
    """The hours of a state that lie, in part at least, in an interval."""
    return [
        hour
        for hour in state.hours
        if (end is None or layout.begins(hour) < end) and (start is None or start < layout.begins(hour) + layout.HOUR)
    ]


def hour_of(store: Store, state: State, name: str) -> Hour:
    """SinkError if the hour's manifest is none, or says other than the state."""
    closed = state.closed.get(name)
    manifest = manifest_of(store, closed) if closed else None
    if (
        closed
        and manifest
        and (manifest.hour, manifest.revision, manifest.rows) != (name, closed.revision, closed.rows)
    ):
        raise SinkError(
            f"the manifest {store.place(closed.key)} is not that of hour {name}",
            got=f"hour {manifest.hour}, revision {manifest.revision}, {manifest.rows} rows; named are revision "
            f"{closed.revision}, {closed.rows} rows",
            fix=RESTORE,
        )
    return Hour(name, manifest, tuple(state.open.get(name, ())))


def read(store: Store, start: datetime, end: datetime) -> Iterator[tuple[str, pa.Table]]:
    """The hours of an interval with the records of each of their files, `records.SCHEMA`, as of now.

    Each record once. A file is given only when all of it is as the archive says; SinkError if it is not, with the
    object's name, and where one is gone: begin again at that hour, if the archive was joined meanwhile.
    """
    state = latest(store)
    for name in names(state, start, end):
        for file in hour_of(store, state, name).files:
            yield name, table(store, file)


def table(store: Store, file: File) -> pa.Table:
    """The records of a file. SinkError if they are not what the archive says of them."""
    place = store.place(file.key)
    try:
        with store.opened(file.key) as source:
            found = pa.concat_tables([records.SCHEMA.empty_table(), *records.read(source)])
    except Gone as e:
        e.put(f"a file of the archive is gone: {place}")
        raise
    except (pa.ArrowException, OSError) as e:
        raise SinkError(f"a file of the archive cannot be read: {place}", got=str(e)[:300], fix=RESTORE) from e
    if why := differs(file.spans, records.spans_of(found)):
        raise SinkError(f"a file of the archive holds other records than were written: {place}", got=why, fix=RESTORE)
    return found


def differs(said: Spans, found: Spans) -> str:
    """How what was found differs from what was said; empty if it does not."""
    for place in sorted({*said, *found}):
        one, other = said.get(place), found.get(place)
        if one != other:
            return f"{place}: {_shown(other)}; said are {_shown(one)}"
    return ""


def _shown(span: Span | None) -> str:
    if span is None:
        return "none"
    return f"{span.rows} records, offsets {span.first} to {span.last}, sum {span.sum:016x}"
