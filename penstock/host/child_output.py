"""The result of a process that imports a project's code, protected from what that code prints and does."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson


def redirect_stdout() -> int:
    """Redirect what is printed to standard error; the descriptor of the real output, for `write_result`.

    Call it before a project's code is read.
    """
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    return output


def write_result(descriptor: int, result: Mapping[str, Any]) -> NoReturn:
    """Write data as JSON in a line of its own and end the process, with threads and exit functions that code has left:
    who waits for the answer waits for nothing else."""
    remaining = b"\n" + orjson.dumps(result)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]
    if sys.stderr is not None:
        sys.stderr.flush()
    os._exit(0)
