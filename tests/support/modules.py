"""Modules that are read from a file, outside of any package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
