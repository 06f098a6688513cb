"""Whether an archive holds what it says: every file read again, counted and hashed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from penstock.archive import layout
from penstock.archive.layout import State
from penstock.archive.reader import RESTORE, hour_of, names, table
from penstock.archive.state_log import latest
from penstock.errors import SinkError
from penstock.object_store.bucket import Bucket

HOME_ENTRIES = re.compile(r"\d{8}-[0-9a-f]{8}-\d{9}\.parquet")


@dataclass(frozen=True)
class Finding:
    """wrong: the archive does not hold what it says; note: an object that counts nowhere. hint: what to do."""

    kind: Literal["wrong", "note"]
    hour: str
    what: str
    hint: str


@dataclass(frozen=True)
class Verified:
    """An hour that was read again. files, size and rows: as named."""

    hour: str
    closed: bool
    files: int
    size: int
    rows: int
    findings: tuple[Finding, ...]

    @property
    def right(self) -> bool:
        return not any(one.kind == "wrong" for one in self.findings)


def verify(store: Bucket, start: datetime | None = None, end: datetime | None = None) -> Iterator[Verified]:
    """Each hour of an interval. SinkError if there is no state that can be read."""
    state = latest(store)
    garbage = set(state.garbage)
    for name in names(state, start, end):
        yield _hour(store, state, name, garbage)


def _hour(store: Bucket, state: State, name: str, garbage: set[str]) -> Verified:
    try:
        hour = hour_of(store, state, name)
    except SinkError as e:
        return Verified(name, True, 0, 0, 0, (Finding("wrong", name, f"{e.what}; got: {e.got}", e.hint),))
    said = store.place(state.closed[name].key if hour.manifest else state.name)
    found = [Finding("wrong", name, f"{said}: {lie}", RESTORE) for lie in hour.lies]
    for file in hour.files:
        try:
            table(store, file)
        except SinkError as e:
            found.append(Finding("wrong", name, f"{e.what}; got: {e.got}", e.hint))
    there = {one.key: one.size for one in store.objects(layout.folder(name))}
    for file in hour.files:
        if there.get(file.key, file.size) != file.size:
            what = f"{store.place(file.key)} has {there[file.key]} bytes, and {file.size} were written"
            found.append(Finding("wrong", name, what, RESTORE))
    found += [_stranger(store, name, key) for key in sorted(there.keys() - {file.key for file in hour.files} - garbage)]
    size, rows = sum(file.size for file in hour.files), sum(file.rows for file in hour.files)
    return Verified(name, hour.closed, len(hour.files), size, rows, tuple(found))


def _stranger(store: Bucket, hour: str, key: str) -> Finding:
    """An object that nothing names."""
    if HOME_ENTRIES.fullmatch(key.rpartition("/")[2]):
        what = f"{store.place(key)} counts nowhere: a batch was cut off behind it"
        return Finding(
            "note", hour, what, "remove it if it is older than a day; it harms nobody who reads by the manifests"
        )
    what = f"{store.place(key)} is not of this archive, and who reads the folder takes it for part of it"
    return Finding("wrong", hour, what, "remove it, or move it to another folder")
