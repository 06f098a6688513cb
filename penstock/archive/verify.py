"""Whether an archive holds what it says: every file read again, counted and hashed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from penstock.archive import layout
from penstock.archive.layout import ArchiveState
from penstock.archive.reader import RESTORE_HINT, hours_between, read_file, read_hour
from penstock.archive.state_log import latest_state
from penstock.errors import SinkError
from penstock.object_store.bucket import Bucket

HOME_ENTRIES = re.compile(r"\d{8}-[0-9a-f]{8}-\d{9}\.parquet")


@dataclass(frozen=True)
class VerifyFinding:
    """kind `wrong`: the archive does not hold what it states; `note`: an unreferenced object."""

    kind: Literal["wrong", "note"]
    hour: str
    what: str
    hint: str


@dataclass(frozen=True)
class HourVerification:
    """The result for one hour. files, size and rows: as the manifest states."""

    hour: str
    closed: bool
    files: int
    size: int
    rows: int
    findings: tuple[VerifyFinding, ...]

    @property
    def ok(self) -> bool:
        return not any(one.kind == "wrong" for one in self.findings)


def verify_archive(
    store: Bucket, start: datetime | None = None, end: datetime | None = None
) -> Iterator[HourVerification]:
    """Each hour of an interval. SinkError if there is no state that can be read."""
    state = latest_state(store)
    garbage = set(state.garbage)
    for name in hours_between(state, start, end):
        yield _verify_hour(store, state, name, garbage)


def _verify_hour(store: Bucket, state: ArchiveState, name: str, garbage: set[str]) -> HourVerification:
    try:
        hour = read_hour(store, state, name)
    except SinkError as e:
        return HourVerification(name, True, 0, 0, 0, (VerifyFinding("wrong", name, f"{e.what}; got: {e.got}", e.hint),))
    said = store.url(state.closed[name].key if hour.manifest else state.name)
    found = [VerifyFinding("wrong", name, f"{said}: {lie}", RESTORE_HINT) for lie in hour.inconsistencies]
    for file in hour.files:
        try:
            read_file(store, file)
        except SinkError as e:
            found.append(VerifyFinding("wrong", name, f"{e.what}; got: {e.got}", e.hint))
    there = {one.key: one.size for one in store.list_objects(layout.hour_folder(name))}
    for file in hour.files:
        if there.get(file.key, file.size) != file.size:
            what = f"{store.url(file.key)} has {there[file.key]} bytes, and {file.size} were written"
            found.append(VerifyFinding("wrong", name, what, RESTORE_HINT))
    found += [
        _unreferenced_object(store, name, key)
        for key in sorted(there.keys() - {file.key for file in hour.files} - garbage)
    ]
    size, rows = sum(file.size for file in hour.files), sum(file.rows for file in hour.files)
    return HourVerification(name, hour.closed, len(hour.files), size, rows, tuple(found))


def _unreferenced_object(store: Bucket, hour: str, key: str) -> VerifyFinding:
    """An object that nothing names."""
    if HOME_ENTRIES.fullmatch(key.rpartition("/")[2]):
        what = f"{store.url(key)} counts nowhere: a batch was cut off behind it"
        return VerifyFinding(
            "note", hour, what, "remove it if it is older than a day; it harms nobody who reads by the manifests"
        )
    what = f"{store.url(key)} is not of this archive, and who reads the folder takes it for part of it"
    return VerifyFinding("wrong", hour, what, "remove it, or move it to another folder")
