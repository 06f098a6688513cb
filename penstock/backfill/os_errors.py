"""Errors of the operating system, and of DuckDB where memory or disk is short, as errors of a backfill."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path

import duckdb

from penstock.backfill.job import BackfillJob
from penstock.errors import BackfillError, InputNotReady

UNREACHABLE_ERRNOS = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}
NO_ROOM = (duckdb.OutOfMemoryException, duckdb.IOException)
"""What DuckDB raises if rows fit neither into its memory nor on the disk."""


def os_error(job: BackfillJob, folder: Path, e: OSError | duckdb.Error) -> BackfillError:
    """The error for an OSError, which is either of the disk or of a connection, or for one of `NO_ROOM`."""
    hint = f"free space below {folder.parent}, or use shorter intervals; then run it again: it is resumed"
    if isinstance(e, duckdb.Error):
        what = f"backfill {job.id}: the rows fit neither into memory nor on the disk"
        return BackfillError(what, got=str(e).splitlines()[0], hint=hint)
    if isinstance(e, ConnectionError | TimeoutError | socket.gaierror | ssl.SSLError) or e.errno in UNREACHABLE_ERRNOS:
        return InputNotReady(
            f"backfill {job.id}: a connection failed",
            got=f"{type(e).__name__}: {e}",
            hint="check the source and the broker with `penstock doctor`, then run it again: it is resumed",
        )
    return BackfillError(
        f"backfill {job.id}: reading or writing a file failed",
        got=e,
        hint=hint,
    )
