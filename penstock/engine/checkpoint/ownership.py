"""Which of several copies of a checkpoint goes on.

A folder that was moved, or copied to be carried on elsewhere, is taken over by whoever starts from it in its new place.
The one that was left behind finds the other's name in the mark, and stops instead of fencing it again and again.
"""

from __future__ import annotations

import json
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from penstock.errors import Blocked

if TYPE_CHECKING:
    from penstock.engine.jvm.hadoop_fs import HadoopFolder
    from penstock.model.output import CommitMarker

FILE = "penstock.json"


def claim(stream: str, folder: HadoopFolder, mark: CommitMarker) -> str:
    """The name of the copy in this folder, for its marks. Blocked if another copy has written behind it."""
    here = location(folder.path)
    try:
        kept = json.loads(folder.read_verified(FILE) or "{}")
    except ValueError:
        kept = {}
    if kept.get("place") != here:
        # The last mark may be that of the one this was copied from, until this one writes; or that of the one before.
        known = (kept.get("copy", ""), kept.get("from", ""))
        # Where that was lost, the mark says whether it was written from this place.
        own = not kept and mark.checkpoint.rpartition(" ")[0] == here
        wrote = mark.checkpoint if own or mark.checkpoint in known else known[0]
        kept = _put(folder, here, wrote)
    if mark.checkpoint and mark.checkpoint not in (kept["copy"], kept["from"]) and _same_query(folder, mark):
        raise Blocked(
            f"stream {stream} goes on from a copy of this checkpoint",
            got=f"this is {kept['copy']}, and {mark.checkpoint} wrote last",
            hint="stop it here; or stop it there, and put its folder in the place of this one",
        )
    return str(kept["copy"])


def inherit(folder: HadoopFolder, path: str, mark: CommitMarker) -> None:
    """Let a folder, which is to lie at a path, go on behind what another copy has written."""
    _put(folder, location(path), mark.checkpoint)


def _put(folder: HadoopFolder, here: str, wrote: str) -> dict[str, str]:
    kept = {"place": here, "copy": f"{here} {uuid.uuid4().hex[:8]}", "from": wrote}
    folder.replace(FILE, json.dumps(kept))
    return kept


def _same_query(folder: HadoopFolder, mark: CommitMarker) -> bool:
    return mark.query in (folder.read_verified("metadata") or "")


def location(path: str) -> str:
    """A folder's name wherever it is looked at from."""
    given = urlparse(path)
    return f"{socket.gethostname()}:{Path(given.path).resolve()}" if given.scheme in ("", "file") else path
