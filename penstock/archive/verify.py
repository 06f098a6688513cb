"""Verifies an archive: reads every file again, and compares counts and hashes."""

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

ARCHIVE_FILE = re.compile(r"\d{8}-[0-9a-f]{8}-\d{9}\.parquet")


@dataclass(frozen=True)
class VerifyFinding:
    """A result of a verification. Kind `wrong`: a contradiction; `note`: an unreferenced object of a crashed batch."""

    kind: Literal["wrong", "note"]
    hour: str
    what: str
    hint: str


@dataclass(frozen=True)
class HourVerification:
    """The result for one hour. `files`, `size` and `rows` are those of the manifest."""

    hour: str
    closed: bool
    files: int
    size: int
    rows: int
    findings: tuple[VerifyFinding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.kind == "wrong" for finding in self.findings)


def verify_archive(
    store: Bucket, start: datetime | None = None, end: datetime | None = None
) -> Iterator[HourVerification]:
    """Verify each hour of an interval.

    Raises:
        SinkError: The state of the archive cannot be read.
    """
    state = latest_state(store)
    garbage = set(state.garbage)
    for name in hours_between(state, start, end):
        yield _verify_hour(store, state, name, garbage)


def _verify_hour(store: Bucket, state: ArchiveState, name: str, garbage: set[str]) -> HourVerification:
    try:
        hour = read_hour(store, state, name)
    except SinkError as e:
        return HourVerification(name, True, 0, 0, 0, (VerifyFinding("wrong", name, f"{e.what}; got: {e.got}", e.hint),))
    url = store.url(state.closed[name].key if hour.manifest else state.name)
    findings = [
        VerifyFinding("wrong", name, f"{url}: {inconsistency}", RESTORE_HINT) for inconsistency in hour.inconsistencies
    ]
    for file in hour.files:
        try:
            read_file(store, file)
        except SinkError as e:
            findings.append(VerifyFinding("wrong", name, f"{e.what}; got: {e.got}", e.hint))
    sizes = {entry.key: entry.size for entry in store.list_objects(layout.hour_folder(name))}
    for file in hour.files:
        if sizes.get(file.key, file.size) != file.size:
            what = f"{store.url(file.key)} has {sizes[file.key]} bytes, and {file.size} were written"
            findings.append(VerifyFinding("wrong", name, what, RESTORE_HINT))
    findings += [
        _unreferenced_object(store, name, key)
        for key in sorted(sizes.keys() - {file.key for file in hour.files} - garbage)
    ]
    size, rows = sum(file.size for file in hour.files), sum(file.rows for file in hour.files)
    return HourVerification(name, hour.closed, len(hour.files), size, rows, tuple(findings))


def _unreferenced_object(store: Bucket, hour: str, key: str) -> VerifyFinding:
    if ARCHIVE_FILE.fullmatch(key.rpartition("/")[2]):
        what = f"{store.url(key)} is not referenced: it was written by a batch that failed"
        return VerifyFinding(
            "note", hour, what, "delete it if it is older than a day; readers that use the manifests ignore it"
        )
    what = f"{store.url(key)} is no file of this archive, and readers of the folder would read it"
    return VerifyFinding("wrong", hour, what, "delete it, or move it to another folder")
