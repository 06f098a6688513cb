"""A secret of this platform, in a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from penstock.errors import HostError

BYTES = 32


def load_or_create(path: Path) -> bytes:
    """The secret of a file; one is made where there is none. HostError if what is there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(BYTES))
                file.flush()
                os.fsync(handle)
            # Of several processes that start at once, one makes the secret of all.
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            Path(fresh).unlink()
    try:
        found = bytes.fromhex(path.read_text())
    except ValueError:
        found = b""
    if len(found) != BYTES:
        raise HostError(
            f"{path} holds no secret", hint="remove it and release all apps: another is made, and all take it up"
        )
    return found
