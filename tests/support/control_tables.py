"""Control databases for tests, which are migrated once."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from penstock.control import Control


def create_tables(control: Control) -> None:
    """What `Control.migrate` does, for a SQLite file that does not exist yet."""
    path = Path(control.engine.url.database or "")
    assert not path.exists()
    path.write_bytes(_migrated())


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "control.db"
        control = Control(f"sqlite:///{path}")
        control.migrate()
        control.engine.dispose()
        return path.read_bytes()
