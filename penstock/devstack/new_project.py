"""Lays out a project: `penstock init`."""

from __future__ import annotations

import re
from importlib.resources import as_file, files
from pathlib import Path

from penstock import __version__
from penstock.devstack import folders
from penstock.errors import HostError
from penstock.settings.project import enclosing_project

NAME = re.compile(r"[a-z][a-z0-9_-]{0,49}")
# Files that git and GitHub would take for their own in the library's repository.
HIDDEN = {"gitignore": ".gitignore", "github": ".github"}


def create(folder: Path) -> list[Path]:
    """Write the files of a new project with one stream, one capture, one sink and their tests.

    Args:
        folder: Where; it is created. Its name is the project's.

    Returns:
        The files, relative to the folder.

    Raises:
        HostError: The name is invalid, or the folder is not empty, is in another project, cannot be written or cannot
            hold a platform.
    """
    folder = folder.absolute()
    folders.check("the project", folder)
    if not NAME.fullmatch(folder.name):
        hint = "begin with a letter; use lowercase letters, digits, - and _, 50 at most"
        raise HostError("this is no name of a project", got=folder.name, hint=hint)
    if outer := enclosing_project(folder.parent):
        hint = "name a folder outside it: releases of that project would include the new one"
        raise HostError("the folder is in another project", got=outer, hint=hint)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise HostError("the folder of a new project must be empty", got=folder, hint="name another one")
        return sorted(_write(folder))
    except OSError as e:
        raise HostError(f"{folder} cannot be written", got=e.strerror or e, hint="name a folder of yours") from e


def _write(folder: Path) -> list[Path]:
    values = {"PROJECT_NAME": folder.name, "PENSTOCK_VERSION": __version__}
    written = []
    with as_file(files("penstock") / "templates" / "project") as template:
        for source in template.rglob("*"):
            if source.is_dir() or "__pycache__" in source.parts:
                continue
            path = Path(*(HIDDEN.get(part, part) for part in source.relative_to(template).parts))
            text = source.read_text()
            for word, value in values.items():
                text = text.replace(word, value)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
            written.append(path)
    return written
