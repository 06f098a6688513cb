"""`penstock streams go-on`: what an operator decides when a stream has stopped by itself."""

from __future__ import annotations

import typer

from penstock.cli.output import actor, clear_errors
from penstock.cli.streams import Name, Note
from penstock.control import connect
from penstock.errors import PenstockError


def register(app: typer.Typer) -> None:
    """Put the commands of this module among those of `penstock streams`."""
    app.command("go-on")(go_on)


def go_on(name: Name, note: Note = "") -> None:
    """Accept exactly the gaps that a blocked stream tells of; it then goes on with what is there."""
    with clear_errors():
        control = connect()
        accepted = control.gaps_accept(name, actor(), note)
        if not accepted:
            raise PenstockError(
                f"there is no gap for {name} to go on behind",
                fix=f"see with `penstock streams show {name}` why it does not run",
            )
    for gap in accepted:
        typer.echo(f"accepted: {gap}")
    typer.echo(f"{name} goes on within half a minute; a gap that is another by then is asked for again")
