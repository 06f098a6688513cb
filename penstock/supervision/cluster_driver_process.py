"""A driver's own part in being run by a cluster: it ends with its JVM, writes one log, and says where it is."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.host import session
from penstock.settings import settings

PR_SET_PDEATHSIG = 1
# Of the folder that a worker makes for a driver and starts it in; what its JVM says goes there.
OUTPUT = "stderr"


def begin(log: Path) -> None:
    """Make this process what a cluster's driver is to be. log: where its launcher would have its log."""
    # Whoever kills the JVM, by the master or by hand, kills this too, also while it is stopped.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        sys.exit("its JVM is gone")
    # Apart from the worker's: a signal to the driver's session is for no executor.
    os.setsid()
    file = Path.cwd() / OUTPUT
    sys.stdout.flush()
    with file.open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    # Where the launcher's folder is here, by another name; elsewhere it stays with the worker.
    with suppress(OSError):
        os.link(file, log)


def whereabouts(log: str) -> dict[str, Any]:
    """What the driver's row is to say, the launcher's part too, as it may have died in between."""
    folder = Path.cwd()
    return {
        "master": settings().spark_master,
        "submission": folder.name,
        "host": session.host(),
        "log": log if Path(log).exists() else str(folder / OUTPUT),
        "state": "launching",
        "reason": None,
    }
