"""`penstock streams`: show, start, stop, release, replace, reset, rebuild and remove streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from penstock.cli import replacements, stream_preview, stream_releases
from penstock.cli.arguments import AsJson, DryRun, Follow, Note
from penstock.cli.output import actor, clear_errors, console, count, echo, emit, printable_text, table, unknown
from penstock.cli.stream_names import Name, Names, complete, find, view_of
from penstock.cli.stream_tables import app_facts, expectations_table, facts_table, stream_facts, streams_table
from penstock.control import Control, Desired, connect
from penstock.errors import PenstockError
from penstock.host import log_files
from penstock.monitoring.dashboard.model import StreamView
from penstock.monitoring.dashboard.states import HEALTHY_STATES
from penstock.monitoring.humanize import duration
from penstock.settings import settings
from penstock.supervision.driver_log import driver_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.operations.reset_plan import ResetPlan, ResetTarget
    from penstock.model.stream import Stream

app = typer.Typer(
    no_args_is_help=True, help="Show, start, stop, release and replace streams; reset, rebuild and remove them."
)


Stopped = Annotated[str, typer.Argument(help="A stream that is stopped.", autocompletion=complete)]


@app.command("list")
def list_streams(as_json: AsJson = False) -> None:
    """List streams with desired state, actual state and main metrics."""
    with clear_errors():
        view = view_of(connect())
    if as_json:
        emit([asdict(stream) for app_view in view.apps for stream in app_view.streams])
        return
    out = console()
    if not view.apps:
        out.print("There are no streams in the control database yet.")
        return
    out.print(streams_table([stream for app_view in view.apps for stream in app_view.streams]))
    if view.freshness.message:
        out.print(Text(f"{view.freshness.title}. {view.freshness.message}", style="yellow"))


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show a stream, or an app and its driver, in detail."""
    with clear_errors():
        view = view_of(connect())
    app_view, stream = find(view, name)
    if as_json:
        emit(asdict(stream or app_view))
        return
    out = console()
    if stream is None:
        out.print(facts_table(app_facts(app_view)))
        out.print()
        out.print(streams_table(app_view.streams))
        return
    out.print(facts_table([*stream_facts(stream), *(("app " + key, value) for key, value in app_facts(app_view)[1:])]))
    if stream.expectations:
        out.print()
        out.print(expectations_table(stream))
    if stream.topics:
        out.print()
        topics = table(["topic", "lag", "partitions", "next offsets"], right=["lag", "partitions"])
        for t in stream.topics:
            offsets = "  ".join(f"{partition}:{offset}" for partition, offset in t.in_order)
            topics.add_row(t.name, count(t.lag), str(t.partitions), offsets)
        out.print(topics)
    if stream.gaps:
        out.print()
        gaps = table(["gap", "records", "found", "accepted"], right=["records"])
        for g in stream.gaps:
            by = f"by {g.accepted_by}" if g.accepted_by else f"no: `penstock streams go-on {stream.name}`"
            gaps.add_row(g.text, "unknown" if g.records is None else f"{g.records:,}", f"{duration(g.age_ms)} ago", by)
        out.print(gaps)
    if stream.error:
        since = "" if stream.error_age_ms is None else f", {duration(stream.error_age_ms)} ago"
        out.print()
        out.print(Text(f"{'past' if stream.state in HEALTHY_STATES else 'last'} error{since}", style="bold"))
        out.print(Text(stream.error))


@app.command()
def start(names: Names, note: Note = "") -> None:
    """Set the desired state of streams to on; the supervisor launches their driver."""
    _set(names, "on", note)


@app.command()
def stop(names: Names, note: Note = "") -> None:
    """Set the desired state of streams to off; each finishes its batch and keeps offsets and state."""
    _set(names, "off", note)


app.command()(stream_preview.check)
app.command()(stream_preview.explain)
app.command()(stream_preview.preview)
app.command()(stream_releases.release)
app.command()(stream_releases.releases)
app.command()(replacements.replace)


@app.command()
def logs(
    name: Name,
    follow: Follow = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of last lines.")] = 100,
) -> None:
    """Show the log of the driver of a stream or an app."""
    with clear_errors():
        control = connect()
        app_name = find(view_of(control), name)[0].name
        path = driver_log(control, app_name)
        for line in log_files.tail(path, lines):
            echo(line)
        if not follow:
            return
        try:
            for text in log_files.follow(path, lambda: driver_log(control, app_name)):
                typer.echo(printable_text(text), nl=False)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


@app.command("go-on")
def go_on(
    name: Annotated[str, typer.Argument(help="A stream that is blocked.", autocompletion=complete)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    note: Note = "",
) -> None:
    """Accept the data loss that blocks a stream; it then continues with the records that exist."""
    with clear_errors():
        control = connect()
        shown = [row for row in control.data_losses(name) if not row.accepted_at]
        if shown and not yes:
            for row in shown:
                typer.echo(str(row.gap))
            typer.confirm(f"Let {name} go on without these records?", abort=True)
        accepted = control.accept_data_loss(name, actor(), [row.id for row in shown], note)
        gaps = [row for row in control.data_losses(name) if row.accepted_at and not row.passed_at]
        if not gaps:
            raise PenstockError(
                f"stream {name} is not blocked by a gap",
                hint=f"`penstock streams show {name}` says why it does not run",
            )
    for row in gaps:
        typer.echo(f"accepted{'' if row.gap in accepted else f' by {row.accepted_by}'}: {row.gap}")
    typer.echo(f"{name} continues within half a minute; a gap that differs by then must be accepted again")


@app.command()
def reset(
    name: Stopped,
    to: Annotated[
        str,
        typer.Option(help="earliest, latest, a time such as 2026-01-31T12:00:00 (UTC), or offsets as a:0=120,a:1=80."),
    ],
    dry_run: DryRun = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Reset even if the output becomes incorrect.")] = False,
    note: Note = "",
) -> None:
    """Let a stopped stream start again from other offsets.

    Refused if its output would become incorrect, unless --anyway is given.
    """
    from penstock.engine.operations.reset_plan import parse_target

    with clear_errors():
        control = connect()
        target, stream = parse_target(to), _declared(name)
        if not dry_run:
            # Refused before Spark starts, which takes seconds.
            _check_stopped(control, name)
        plan, request = _plan_reset(stream, target)
        _print_plan(plan)
        if dry_run:
            return
        _check_stopped(control, name)
        if plan.objections and not anyway:
            raise PenstockError(
                f"the output of {name} would not be right after this reset",
                got="; ".join(plan.objections),
                hint="choose another start, or use --anyway",
            )
        request(plan.reset.text())
        control.record(actor(), "reset", name, f"{note}: to {to}" if note else f"to {to}")
    typer.echo(f"{name} starts there: `penstock streams start {name}`")


@app.command()
def rebuild(name: Stopped, note: Note = "") -> None:
    """Compute the state of a stopped stream's fold again from its topics, if its checkpoint is lost or does not fit."""
    from penstock import logs as logging
    from penstock.engine.operations import rebuild as rebuilding

    with clear_errors():
        control = connect()
        _check_stopped(control, name)
        logging.setup("rebuild")
        stream = _declared(name)
        result = rebuilding.rebuild(
            stream, _session("rebuild", stream), settings().bootstrap, settings().checkpoint_root,
            lambda: _check_stopped(control, name),
        )  # fmt: skip
        summary = f"{result.after.keys:,} keys, behind batch {result.batch}"
        control.record(actor(), "rebuild", name, f"{note}: {summary}" if note else summary)
    sizes = table(["state", "keys", "bytes"], right=["keys", "bytes"])
    before = result.before
    sizes.add_row("before", *(("-", "cannot be read") if before is None else (f"{before.keys:,}", f"{before.bytes:,}")))
    sizes.add_row("rebuilt", f"{result.after.keys:,}", f"{result.after.bytes:,}")
    offsets = table(["topic", "partition", "next offset"], right=["partition", "next offset"])
    for topic, parts in sorted(result.ends.items()):
        for partition, at in sorted(parts.items()):
            offsets.add_row(topic, str(partition), f"{at:,}")
    console().print(sizes)
    console().print(offsets)
    typer.echo(f"{result.records:,} records were read in {result.seconds:.1f} s; the state is in {result.folder}")
    if result.left_out:
        typer.echo(f"{result.left_out:,} of them are left out: they are dead letters, or would be")
    typer.echo(f"{name} continues with it: `penstock streams start {name}`")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="A stream that is no longer declared.")],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Remove its checkpoint, commit marker and consumer group.")
    ] = False,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="Remove this topic with all records; may be repeated.")
    ] = None,
    dry_run: DryRun = False,
    note: Note = "",
) -> None:
    """Show what a stream that is no longer declared has left, and remove what the options name.

    Topics that others use are never removed.
    """
    from penstock.catalog import load
    from penstock.engine.operations.removal import Removal
    from penstock.model.topic import TOPIC_NAME

    with clear_errors():
        catalog, control, chosen = load(), connect(), set(topics or ())
        if name in catalog.declared or not TOPIC_NAME.fullmatch(name):
            raise PenstockError(
                f"{name} is not a removed stream",
                got="it is declared" if name in catalog.declared else repr(name),
                hint="take it out of its file, and release its app",
            )
        lease = control.leases().get(name)
        if lease is not None and lease.expires_at > control.now():
            raise PenstockError(
                f"a driver still holds the lease of {name}",
                got=f"driver {lease.holder}",
                hint="release its app, so that a driver without it follows, and try again",
            )
        removal = Removal(name, catalog)
        if not removal.has_remains and not control.is_target(name):
            raise unknown("removed stream", name, removal.others)
        removal.check_unused(chosen)
        rows = table(["what", "", "used by", "is"])
        for what, place in (*(("checkpoint", folder) for folder in removal.folders), ("consumer group", removal.group)):
            rows.add_row(what, place, "", "removed" if checkpoint else "kept")
        for topic in removal.topics:
            what = "topic that it read" if topic.was_read else "unused topic"
            rows.add_row(what, topic.name, ", ".join(topic.users), "removed" if topic.name in chosen else "kept")
        console().print(rows)
        if dry_run or not (checkpoint or chosen):
            return
        if checkpoint:
            control.forget_partitions(name)
            removal.remove_checkpoint()
        removal.remove_topics(chosen)
        summary = ", ".join([*(["checkpoint"] if checkpoint else []), *sorted(chosen)])
        control.record(actor(), "remove", name, f"{note}: {summary}" if note else summary)
    typer.echo(f"removed of {name}: {summary}")


def _set(names: list[str], want: Desired, note: str) -> None:
    with clear_errors():
        control = connect()
        view = view_of(control)
        chosen: dict[str, StreamView] = {}
        for name in names:
            app_view, stream = find(view, name)  # every name is looked up before anything is changed
            chosen |= {s.name: s for s in ([stream] if stream else app_view.streams)}
        control.set_desired(chosen, want, actor(), note)
    for name, was in chosen.items():
        already = " (unchanged)" if was.desired == want else ""
        typer.echo(f"{name}: desired state {want}{already}")


def _declared(name: str) -> Stream:
    from penstock.catalog import partial_catalog

    return partial_catalog()[0].stream(name)


def _session(command: str, stream: Stream) -> SparkSession:
    # Spark takes seconds to start, and no other command needs it.
    from penstock.engine.session import open_session, session_for

    return session_for(open_session(command), stream)


def _plan_reset(stream: Stream, target: ResetTarget) -> tuple[ResetPlan, Callable[[str], None]]:
    """The plan of a reset, and the function that requests it."""
    from penstock.engine.checkpoint.layout import Checkpoint
    from penstock.engine.operations.reset_plan import plan_reset

    spark = _session("reset", stream)
    checkpoint = Checkpoint(spark, settings().checkpoint_root, stream.name)
    return plan_reset(stream, spark, settings().bootstrap, checkpoint, target), checkpoint.request_reset


def _check_stopped(control: Control, name: str) -> None:
    wanted, progress = control.desired().get(name), control.progress_of(name)
    lease = control.leases().get(name)
    held = lease is not None and lease.expires_at > control.now()
    if wanted == "on" or (held and progress is not None and progress.state != "stopped"):
        raise PenstockError(
            f"stream {name} is not stopped",
            got="its desired state is on" if wanted == "on" else "its driver still runs it",
            hint=f"`penstock streams stop {name}`, and wait until `penstock streams show {name}` says stopped",
        )
    if (replacement := control.replacement_of(name)) and replacement.is_open:
        raise PenstockError(
            f"stream {name} is being replaced, which needs its checkpoint as it is",
            got=f"its replacement is {replacement.state}",
            hint=f"end it first: `penstock replacements cancel {name}`",
        )


def _print_plan(plan: ResetPlan) -> None:
    numbers = ["partition", "reads from", "next without reset", "end"]
    rows = table(["topic", *numbers, "effect"], right=numbers)
    for p in plan.parts:
        by = p.next - p.start
        effect = f"{by:,} records again" if by > 0 else f"{-by:,} records never" if by else "unchanged"
        rows.add_row(p.topic, str(p.partition), f"{p.start:,}", f"{p.next:,}", f"{p.end:,}", effect)
    out = console()
    out.print(rows)
    for note in plan.notes:
        out.print(Text(note))
    for objection in plan.objections:
        out.print(Text(objection, style="red"))
