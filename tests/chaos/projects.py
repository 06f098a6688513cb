"""Another project's declarations in this process, for a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import catalog
from penstock.control import connect
from penstock.settings import settings


@contextmanager
def other_project(folder: Path, variables: Mapping[str, object]) -> Iterator[None]:
    """Set the project and further PENSTOCK_* variables; what was declared and read before is forgotten meanwhile."""
    with pytest.MonkeyPatch.context() as m:
        m.setenv("PENSTOCK_PROJECT", str(folder))
        for key, value in variables.items():
            m.setenv(key, str(value))
        # Both projects call their package `jobs`.
        before = {name: found for name, found in sys.modules.items() if name.partition(".")[0] == "jobs"}
        m.setattr(sys, "path", [*sys.path])
        _forget()
        try:
            yield
        finally:
            _forget()
            sys.modules.update(before)
    for cached in (settings, connect, catalog.load):
        cached.cache_clear()


def _forget() -> None:
    for cached in (settings, connect, catalog.load):
        cached.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "jobs"]:
        del sys.modules[name]
