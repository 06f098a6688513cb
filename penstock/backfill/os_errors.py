"""Errors of the operating system as errors of a backfill."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path

from penstock.backfill.job import BackfillJob
from penstock.errors import BackfillError, InputNotReady

UNREACHABLE_ERRNOS = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}


def os_error(job: BackfillJob, folder: Path, e: OSError) -> BackfillError:
    """The error for an OSError, which is either of the disk or of a connection."""
    if isinstance(e, ConnectionError | TimeoutError | socket.gaierror | ssl.SSLError) or e.errno in UNREACHABLE_ERRNOS:
        return InputNotReady(
            f"backfill {job.id}: a connection failed",
            got=f"{type(e).__name__}: {e}",
            hint="check the source and the broker with `penstock doctor`, then run it again: it is resumed",
        )
    return BackfillError(
        f"backfill {job.id}: reading or writing a file failed",
        got=e,
        hint=f"free space below {folder.parent}, or use shorter intervals; then run it again: it is resumed",
    )
