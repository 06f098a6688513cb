"""Finds the project that a process works on."""

import tomllib
from pathlib import Path
from typing import Any

from penstock.errors import SettingError


def find_project(library: Path) -> Path:
    """The project's folder: the current one, or the nearest above it, whose pyproject.toml has a table `tool.penstock`.

    Without one it is the checkout that `penstock` is imported from, or, if it is installed, the current folder.

    Args:
        library: The folder that `penstock` is imported from.
    """
    here = Path.cwd()
    return enclosing_project(here) or (library if table_of(library) is not None else here)


def enclosing_project(folder: Path) -> Path | None:
    """The nearest project that a folder is in, or is; None if it is in none."""
    return next((one for one in (folder, *folder.parents) if table_of(one) is not None), None)


def table_of(folder: Path) -> dict[str, Any] | None:
    """The table `tool.penstock` of the pyproject.toml of a folder; None if there is none.

    Raises:
        SettingError: The file cannot be read, or has something else by this name.
    """
    path = folder / "pyproject.toml"
    try:
        table: Any = tomllib.loads(path.read_bytes().decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as e:
        raise SettingError(f"{path} cannot be read", got=e, hint="correct it, or set PENSTOCK_PROJECT") from e
    for name, place in (("tool", "tool"), ("penstock", "tool.penstock")):
        if name not in table:
            return None
        table = table[name]
        if not isinstance(table, dict):
            hint = "write the settings below [tool.penstock]"
            raise SettingError(f"{path}: `{place}` is no table", got=repr(table), hint=hint)
    return dict(table)
