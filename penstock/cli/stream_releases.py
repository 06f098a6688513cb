"""`penstock streams release` and `releases`: new code for an app, earlier code again, and what there is."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from penstock.cli.arguments import AsJson, Note
from penstock.cli.output import actor, checking_code, clear_errors, console, emit, table
from penstock.cli.stream_names import Name, find, view_of
from penstock.control import connect
from penstock.errors import PenstockError
from penstock.settings import settings
from penstock.supervision import code_snapshot, released_code
from penstock.supervision import release as requests


def release(
    name: Name,
    note: Note = "",
    to: Annotated[
        str, typer.Option(help="Number or digest of an earlier release, whose code runs again; see `releases`.")
    ] = "",
    accept_state: Annotated[
        bool,
        typer.Option(
            "--accept-state",
            help="Keep the state although its plan differs from that of the new code; the audit log records this.",
        ),
    ] = False,
) -> None:
    """Replace the driver of an app, or of a stream's app, by one that runs the code on the disk, or earlier code.

    Refused if the code does not load, or cannot read the state of a stream.
    """
    with clear_errors():
        control = connect()
        app_view, _ = find(view_of(control), name)
        with checking_code(app_view.name):
            number = requests.release(control, app_view.name, actor(), note, accept_state=accept_state, to=to)
    also = ", ".join(stream.name for stream in app_view.streams)
    then = (
        f"it is stopped, and its next driver runs this code: `penstock streams start {app_view.name}`"
        if app_view.desired == "off"
        else f"its driver drains and is replaced ({also})"
    )
    typer.echo(f"release {number} of {app_view.name} is recorded; {then}")


def releases(name: Name, as_json: AsJson = False) -> None:
    """List the releases of an app that can be returned to, newest first."""
    with clear_errors():
        control = connect()
        app_view, _ = find(view_of(control), name)
        rows = control.releases(app_view.name)
        running = released_code.running_release(control, app_view.name)
        if as_json:
            emit([{**asdict(row), "running": row.number == running} for row in rows])
            return
        if not rows:
            raise PenstockError(f"app {app_view.name} has no release yet", hint="its first launch takes a snapshot")
        on_disk = code_snapshot.disk_digest(settings().project)
    listed = table(["release", "time (UTC)", "by", "code", "", "note"], right=["release"])
    for row in rows:
        at = f"{datetime.fromtimestamp(row.at / 1000, UTC):%Y-%m-%d %H:%M:%S}"
        marks = ["runs"] if row.number == running else []
        marks += ["as on disk"] if row.digest == on_disk else []
        listed.add_row(
            str(row.number), at, row.actor, (row.digest or "-")[:12], ", ".join(marks), row.note or "-",
        )  # fmt: skip
    console().print(listed)
