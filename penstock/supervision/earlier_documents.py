"""Removes the documents that a sink had before its replacement, once that is confirmed.

`python -m penstock.supervision.earlier_documents APP SINK` does it, in a process that may run a project's code.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

from penstock.control import Control, ReplacementRow
from penstock.errors import PenstockError, ReplacementRefused
from penstock.host.child_output import redirect_stdout, write_result
from penstock.model.target_versions import open_versions, versioned_output
from penstock.supervision import launch, released_code

TIMEOUT = 60.0
"""Seconds that the store may take."""


def forget_earlier_documents(control: Control, row: ReplacementRow) -> None:
    """Remove the documents before a replacement that is confirmed; nothing if it is not of a sink.

    Args:
        control: The control database.
        row: The replacement.

    Raises:
        ReplacementRefused: The store did not do it.
    """
    progress = control.progress(row.app).get(row.name)
    if progress is None or progress.store is None:
        return
    what = f"the replacement of {row.name} is confirmed, and its documents before are still in the store"
    hint = "remove them there: the names are in docs/sinks.md; the next replacement of the sink does it, too"
    try:
        command = ("penstock.supervision.earlier_documents", row.app, row.name)
        launch.run_json_module(command, TIMEOUT, released_code.copy_of(control, row.digest))
    except subprocess.TimeoutExpired as e:
        raise ReplacementRefused(what, got=f"no answer within {TIMEOUT:g} s", hint=hint) from e
    except subprocess.CalledProcessError as e:
        error = e.stderr.decode(errors="replace").strip()[-1000:]
        raise ReplacementRefused(what, got=error, hint=hint) from e


def main(app: str, sink: str) -> None:
    """Remove them, by the code of the project."""
    from penstock.catalog.partial import load_partial

    out = redirect_stdout()
    try:
        catalog, _ = load_partial(first=app)
        if (stream := catalog.streams.get(sink)) and (output := versioned_output(stream)):
            with closing(open_versions(output, "")) as versions:
                versions.forget()
    except PenstockError as e:
        sys.exit(f"error: {e}")
    write_result(out, {})


if __name__ == "__main__":
    main(*sys.argv[1:])
