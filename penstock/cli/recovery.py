"""`penstock streams go-on`, `reset`, `rebuild` and `remove`: what is decided when a stream cannot simply go on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from penstock import logs
from penstock.catalog import partial_catalog
from penstock.cli.output import actor, clear_errors, console, table
from penstock.cli.removal import remove
from penstock.cli.streams import Name, Note
from penstock.control import Control, connect
from penstock.errors import PenstockError
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock.engine.operations.rebuild import RebuildResult
    from penstock.engine.operations.reset_plan import ResetPlan, ResetTarget
    from penstock.model.stream import Stream


def register(app: typer.Typer) -> None:
    """Put the commands of this module among those of `penstock streams`."""
    app.command("go-on")(go_on)
    app.command("reset")(reset)
    app.command("rebuild")(rebuild)
    app.command("remove")(remove)


def go_on(name: Name, note: Note = "") -> None:
    """Accept exactly the gaps that a blocked stream tells of; it then goes on with what is there."""
    with clear_errors():
        control = connect()
        accepted = control.accept_data_loss(name, actor(), note)
        before = [row for row in control.data_losses(name) if row.accepted_at and not row.passed_at]
        if not before:
            raise PenstockError(
                f"there is no gap for {name} to go on behind",
                hint=f"see with `penstock streams show {name}` why it does not run",
            )
    for row in before:
        typer.echo(f"accepted{'' if row.gap in accepted else f' by {row.accepted_by}'}: {row.gap}")
    typer.echo(f"{name} goes on within half a minute; a gap that is another by then is asked for again")


def reset(
    name: Annotated[str, typer.Argument(help="A stream that is stopped.")],
    to: Annotated[
        str,
        typer.Option(help="earliest, latest, a time as 2026-01-31T12:00:00 (UTC), or offsets as a:0=120,a:1=80."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also where the output would not be right.")] = False,
    note: Note = "",
) -> None:
    """Let a stopped stream begin anew from other offsets; its output stays right, or it is refused."""
    with clear_errors():
        control = connect()
        where, stream = destination(to), partial_catalog()[0].stream(name)
        if not dry_run:
            # Spark takes seconds to start: what is refused in any case is refused before.
            _is_stopped(control, name)
        plan, ask = _planned(stream, where)
        _tell(plan)
        if dry_run:
            return
        _is_stopped(control, name)
        if plan.objections and not anyway:
            raise PenstockError(
                f"the output of {name} would not be right after this reset",
                got="; ".join(plan.objections),
                hint="choose another start, or say --anyway",
            )
        ask(plan.reset.text())
        control.record(actor(), "reset", name, f"{note}: to {to}" if note else f"to {to}")
    typer.echo(f"{name} begins there once it is started: `penstock streams start {name}`")


def rebuild(name: Annotated[str, typer.Argument(help="A stream that is stopped.")], note: Note = "") -> None:
    """Make the state of a stopped stream's fold anew of what its topics hold, where its checkpoint is lost or unfit."""
    with clear_errors():
        control = connect()
        _is_stopped(control, name)
        logs.setup("rebuild")
        made = _rebuilt(name, lambda: _is_stopped(control, name))
        said = f"{made.after.keys:,} keys, behind batch {made.batch}"
        control.record(actor(), "rebuild", name, f"{note}: {said}" if note else said)
    sizes = table(["state", "keys", "bytes"], right=["keys", "bytes"])
    was = ("-", "cannot be read") if made.before is None else (f"{made.before.keys:,}", f"{made.before.bytes:,}")
    sizes.add_row("before", *was)
    sizes.add_row("rebuilt", f"{made.after.keys:,}", f"{made.after.bytes:,}")
    offsets = table(["topic", "partition", "goes on from"], right=["partition", "goes on from"])
    for topic, parts in sorted(made.ends.items()):
        for partition, at in sorted(parts.items()):
            offsets.add_row(topic, str(partition), f"{at:,}")
    out = console()
    out.print(sizes)
    out.print(offsets)
    typer.echo(f"{made.records:,} records were looked at, in {made.seconds:.1f} s; it waits in {made.folder}")
    typer.echo(f"{name} goes on with it once it is started: `penstock streams start {name}`")


def destination(text: str) -> ResetTarget:
    """What --to says; PenstockError if it is nothing of the kind."""
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        if "=" in text:
            found = {}
            for one in text.split(","):
                place, offset = one.split("=")
                topic, partition = place.rsplit(":", 1)
                found[topic.strip(), int(partition)] = int(offset)
            return found
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except ValueError as e:
        raise PenstockError(
            "this is no place to begin at",
            got=repr(text),
            hint="earliest, latest, a time as 2026-01-31T12:00:00, or offsets as topic:0=120,topic:1=80",
        ) from e


def _planned(stream: Stream, to: ResetTarget) -> tuple[ResetPlan, Callable[[str], None]]:
    """What a reset would do, and what asks for it."""
    # Spark takes seconds to start, and no other command needs it.
    from penstock.engine.checkpoint.layout import Checkpoint
    from penstock.engine.operations.reset_plan import plan_reset
    from penstock.engine.session import open_session, session_for

    spark = session_for(open_session("reset"), stream)
    checkpoint = Checkpoint(spark, settings().checkpoint_root, stream.name)
    return plan_reset(stream, spark, settings().bootstrap, checkpoint, to), checkpoint.request_reset


def _rebuilt(name: str, stopped: Callable[[], None]) -> RebuildResult:
    from penstock.engine.operations import rebuild
    from penstock.engine.session import open_session, session_for

    stream = partial_catalog()[0].stream(name)
    spark = session_for(open_session("rebuild"), stream)
    return rebuild.rebuild(stream, spark, settings().bootstrap, settings().checkpoint_root, stopped)


def _is_stopped(control: Control, name: str) -> None:
    wanted, progress = control.desired().get(name), control.progress().get(name)
    lease = control.leases().get(name)
    held = lease is not None and lease.expires_at > control.now()
    if wanted != "on" and not (held and progress is not None and progress.state != "stopped"):
        return
    raise PenstockError(
        f"stream {name} is not stopped",
        got="it is wanted on" if wanted == "on" else "its driver still runs it",
        hint=f"`penstock streams stop {name}`, and wait until `penstock streams show {name}` says stopped",
    )


def _tell(plan: ResetPlan) -> None:
    numbers = ["partition", "reads from", "stood at", "end"]
    made = table(["topic", *numbers, "that is"], right=numbers)
    for p in plan.parts:
        by = p.next - p.start
        that = f"{by:,} records again" if by > 0 else f"{-by:,} records never" if by else "where it was"
        made.add_row(p.topic, str(p.partition), f"{p.start:,}", f"{p.next:,}", f"{p.end:,}", that)
    out = console()
    out.print(made)
    for note in plan.notes:
        out.print(Text(note))
    for why in plan.objections:
        out.print(Text(why, style="red"))
