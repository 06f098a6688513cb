"""Caches of a process that hold what an environment or another project has set."""

from __future__ import annotations

import sys

from penstock import catalog
from penstock.control import connect
from penstock.settings import settings


def clear_caches() -> None:
    """Let this process read its settings, its declarations and the control database's place again."""
    for cached in (settings, connect, catalog.load, catalog.partial_catalog):
        cached.cache_clear()


def unload_jobs() -> None:
    """Let the package `jobs`, as every project calls its own, be imported from another project."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "jobs"]:
        del sys.modules[name]
