"""Decides which of several copies of a checkpoint may continue.

A checkpoint that was moved, or copied to be continued elsewhere, is claimed by the driver that starts from it in its
new location. The copy that was left behind finds the other's id in the commit marker, and stops instead of fencing it
again and again.
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
    own_location = location(folder.path)
    try:
        claimed = json.loads(folder.read_verified(FILE) or "{}")
    except ValueError:
        claimed = {}
    if claimed.get("place") != own_location:
        # The last marker may be of the copy this one was made from, until this one writes; or of that one's origin.
        predecessors = (claimed.get("copy", ""), claimed.get("from", ""))
        # Where the file was lost, the marker says whether it was written from this location.
        is_own_marker = not claimed and mark.checkpoint.rpartition(" ")[0] == own_location
        origin = mark.checkpoint if is_own_marker or mark.checkpoint in predecessors else predecessors[0]
        claimed = _write_claim(folder, own_location, origin)
    if mark.checkpoint and mark.checkpoint not in (claimed["copy"], claimed["from"]) and _same_query(folder, mark):
        raise Blocked(
            f"stream {stream} goes on from a copy of this checkpoint",
            got=f"this is {claimed['copy']}, and {mark.checkpoint} wrote last",
            hint="stop it here; or stop it there, and replace this folder by its folder",
        )
    return str(claimed["copy"])


def inherit(folder: HadoopFolder, path: str, mark: CommitMarker) -> None:
    """Let a folder, which will be moved to a path, continue after the batches that another copy has written."""
    _write_claim(folder, location(path), mark.checkpoint)


def _write_claim(folder: HadoopFolder, own_location: str, origin: str) -> dict[str, str]:
    claimed = {"place": own_location, "copy": f"{own_location} {uuid.uuid4().hex[:8]}", "from": origin}
    folder.replace(FILE, json.dumps(claimed))
    return claimed


def _same_query(folder: HadoopFolder, mark: CommitMarker) -> bool:
    return mark.query in (folder.read_verified("metadata") or "")


def location(path: str) -> str:
    """A name of a path that is unique over hosts."""
    url = urlparse(path)
    return f"{socket.gethostname()}:{Path(url.path).resolve()}" if url.scheme in ("", "file") else path
