"""What this host keeps in its home for checkpoints that are not on its disk: tables, and files of folds' state."""

from __future__ import annotations

import hashlib
import shutil
from typing import Literal

from penstock.settings import settings


def local_folder(kind: Literal["tables", "folds"], root: str) -> str:
    """The folder for the streams of a root of checkpoints, relative to the home."""
    return f"{kind}/{hashlib.sha256(root.encode()).hexdigest()[:12]}"


def remove_local_folders(root: str) -> None:
    """Remove what this host keeps for a root of checkpoints that is removed."""
    for folder in (local_folder("tables", root), local_folder("folds", root)):
        shutil.rmtree(settings().home / folder, ignore_errors=True)
