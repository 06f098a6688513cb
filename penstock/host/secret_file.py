"""A secret of this platform, in a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from penstock.errors import HostError

BYTES = 32


def load_or_create(path: Path) -> bytes:
    """The secret of a file, which is created if it does not exist. HostError if the file has no secret."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, new_file = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(BYTES))
                file.flush()
                os.fsync(handle)
            # If several processes start at once, one of them creates the secret.
            os.link(new_file, path)
        except FileExistsError:
            pass
        finally:
            Path(new_file).unlink()
    try:
        secret = bytes.fromhex(path.read_text())
    except ValueError:
        secret = b""
    if len(secret) != BYTES:
        raise HostError(f"{path} has no valid secret", hint="remove it and release all apps: they use a new one")
    return secret
