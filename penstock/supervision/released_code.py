"""The code of releases: snapshots in the control database, which every host reaches, and this host's copies of them."""

from __future__ import annotations

from pathlib import Path

from penstock.control import Actor, Control, DriverRow, ReleaseRow
from penstock.errors import ReleaseRefused
from penstock.settings import settings
from penstock.supervision import code_snapshot
from penstock.supervision.code_snapshot import CodeFiles

RELEASES_KEPT = 20
"""Releases of an app that can be returned to."""
MIN_DIGEST = 6
"""Letters of a digest that name a release."""


def take(control: Control) -> str:
    """Take a snapshot of the project as it is on the disk; returns its digest.

    Raises:
        ReleaseRefused: The files cannot be read, or keep changing.
    """
    content = code_snapshot.read_project(settings().project)
    digest = code_snapshot.digest_of(content)
    control.store_snapshot(digest, code_snapshot.pack(content))
    if _stored_files(control, digest) is None:
        control.remove_snapshot(digest)
        control.store_snapshot(digest, code_snapshot.pack(content))
    return digest


def copy_of(control: Control, digest: str) -> Path:
    """The folder of a snapshot on this host: its copy is verified, and made again from the archive if need be.

    Raises:
        ReleaseRefused: The copy and the archive are damaged or missing.
    """
    if not code_snapshot.is_copied(digest):
        code_snapshot.write_copy(digest, files_of(control, digest))
    return code_snapshot.folder_of(digest)


def files_of(control: Control, digest: str) -> CodeFiles:
    """The files of a snapshot.

    Raises:
        ReleaseRefused: It is damaged or missing.
    """
    content = _stored_files(control, digest)
    if content is None:
        raise ReleaseRefused(
            f"the snapshot {digest[:12]} of a release cannot be used",
            got="its archive in the control database is damaged or missing",
            hint="`penstock streams release APP` takes a new one of the disk, with --to it returns to another",
        )
    return content


def _stored_files(control: Control, digest: str) -> CodeFiles | None:
    content = code_snapshot.unpack(control.snapshot_archive(digest))
    return content if content is not None and code_snapshot.digest_of(content) == digest else None


def code_for(control: Control, driver: DriverRow, actor: Actor) -> Path:
    """The folder of the code that a driver is to run. The first launch of an app takes a snapshot.

    Raises:
        ReleaseRefused: There is no such code.
    """
    digest = driver.spec_hash
    if not digest:
        digest = take(control)
        control.record_first_code(driver.app, driver.release_seq, digest, actor)
        control.update_driver(driver.incarnation, spec_hash=digest)
    return copy_of(control, digest)


def find(control: Control, app: str, name: str) -> ReleaseRow:
    """The release of an app that has a number, or a digest that begins so.

    Raises:
        ReleaseRefused: There is none, or more than one.
    """
    rows = control.releases(app)
    by_number = [row for row in rows if row.digest and name == str(row.number)]
    by_digest = {
        row.digest: row
        for row in reversed(rows)
        if row.digest and len(name) >= MIN_DIGEST and row.digest.startswith(name)
    }
    matches = by_number or list(by_digest.values())
    if len(matches) != 1:
        raise ReleaseRefused(
            f"app {app} has {'no' if not matches else 'more than one'} release {name}",
            got=f"releases {', '.join(str(row.number) for row in rows if row.digest) or 'none'}",
            hint=f"`penstock streams releases {app}` lists them; name a number, or {MIN_DIGEST} letters of a digest",
        )
    return matches[0]


def is_up(driver: DriverRow, now: int, stuck_ms: int) -> bool:
    """Whether a driver runs or drains, and has reported lately.

    Args:
        driver: The driver.
        now: The database's clock, in epoch ms.
        stuck_ms: Milliseconds without a report after which it is taken for hung.
    """
    return driver.state in ("running", "draining") and now - driver.alive_at <= stuck_ms


def running_release(control: Control, app: str) -> int | None:
    """The number of the release whose code runs; None if no driver of the app is up."""
    row = control.app(app)
    driver = control.driver(row.incarnation) if row and row.incarnation else None
    stuck_ms = int(settings().stuck_after * 1000)
    return driver.release_seq if driver and is_up(driver, control.now(), stuck_ms) else None


def prune(control: Control, app: str) -> None:
    """Remove releases and snapshots that are not kept, here and in the control database."""
    code_snapshot.prune_copies(control.prune_releases(app, RELEASES_KEPT))


def fetch_own(control: Control) -> None:
    """Copy the code of this process to this host, if its launcher is on another."""
    project = settings().project
    if project == code_snapshot.folder_of(project.name) and not project.is_dir():
        copy_of(control, project.name)
