"""Finds the project that a process works on."""

import tomllib
from pathlib import Path

from penstock.errors import SettingError


def find_project(library: Path) -> Path:
    """The project's folder: the current one, or the nearest above it, whose pyproject.toml has a table `tool.penstock`.

    Without one it is the checkout that `penstock` is imported from, or, if it is installed, the current folder.

    Args:
        library: The folder that `penstock` is imported from.
    """
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents, library) if is_project(folder)), here)


def is_project(folder: Path) -> bool:
    """Whether the pyproject.toml of a folder says that it is a project of Penstock.

    Raises:
        SettingError: The file cannot be read.
    """
    path = folder / "pyproject.toml"
    try:
        return "penstock" in tomllib.loads(path.read_text()).get("tool", {})
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as e:
        raise SettingError(f"{path} cannot be read", got=e, hint="correct it, or set PENSTOCK_PROJECT") from e
