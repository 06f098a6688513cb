"""Which of several copies of a checkpoint may go on.

A checkpoint that was moved, or copied to be continued elsewhere, is claimed by whoever starts from it in its new
location. The copy that was left behind finds the other's id in the commit marker, and stops instead of fencing it again
and again.
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
    """Claim the checkpoint in this folder; the id of this copy, for its commit markers.

    Raises:
        Blocked: Another copy has written since.
    """
    here = location(folder.path)
    try:
        kept = json.loads(folder.read_verified(FILE) or "{}")
    except ValueError:
        kept = {}
    if kept.get("place") != here:
        # The last marker may be of the copy this one was made from, until this one writes; or of that one's origin.
        known = (kept.get("copy", ""), kept.get("from", ""))
        # Where the file was lost, the marker says whether it was written from this location.
        own = not kept and mark.checkpoint.rpartition(" ")[0] == here
        wrote = mark.checkpoint if own or mark.checkpoint in known else known[0]
        kept = _put(folder, here, wrote)
    if mark.checkpoint and mark.checkpoint not in (kept["copy"], kept["from"]) and _same_query(folder, mark):
        raise Blocked(
            f"stream {stream} goes on from a copy of this checkpoint",
            got=f"this is {kept['copy']}, and {mark.checkpoint} wrote last",
            hint="stop it here; or stop it there, and replace this folder by its folder",
        )
    return str(kept["copy"])


def inherit(folder: HadoopFolder, path: str, mark: CommitMarker) -> None:
    """Let a folder, which will be moved to a path, go on behind the batches that another copy has written."""
    _put(folder, location(path), mark.checkpoint)


def _put(folder: HadoopFolder, here: str, wrote: str) -> dict[str, str]:
    kept = {"place": here, "copy": f"{here} {uuid.uuid4().hex[:8]}", "from": wrote}
    folder.replace(FILE, json.dumps(kept))
    return kept


def _same_query(folder: HadoopFolder, mark: CommitMarker) -> bool:
    return mark.query in (folder.read_verified("metadata") or "")


def location(path: str) -> str:
    """A name of a path that is unique over hosts."""
    given = urlparse(path)
    return f"{socket.gethostname()}:{Path(given.path).resolve()}" if given.scheme in ("", "file") else path
