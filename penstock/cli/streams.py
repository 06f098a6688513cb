"""`penstock streams`: show, start, stop and release streams."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.cli.output import actor, clear_errors, console, count, echo, emit, printable_text, state, table, unknown
from penstock.control import Control, Desired, connect
from penstock.errors import PenstockError
from penstock.host import session
from penstock.monitoring.dashboard.model import AppView, Overview, StreamView
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.snapshot import read
from penstock.monitoring.dashboard.states import HEALTHY_STATES, StateLimits
from penstock.monitoring.humanize import duration, first_line
from penstock.settings import settings
from penstock.supervision import release as releases

app = typer.Typer(no_args_is_help=True, help="Show, start, stop and release streams.")

BLOCK = 64 * 1024


def complete(incomplete: str) -> list[tuple[str, str]]:
    """Names of streams and apps that begin as typed, for shell completion."""
    from penstock.catalog import partial_catalog

    catalog, _ = partial_catalog()
    names = dict.fromkeys(catalog.apps, "app") | {s.name: f"stream of {s.app}" for s in catalog.supervised.values()}
    return sorted((name, about) for name, about in names.items() if name.startswith(incomplete))


Name = Annotated[str, typer.Argument(help="A stream, or an app.", autocompletion=complete)]
Names = Annotated[
    list[str],
    typer.Argument(help="Streams, or apps for all their streams.", autocompletion=complete, metavar="NAME..."),
]
Note = Annotated[str, typer.Option("--note", "-m", help="The reason; it is kept in the audit log.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]


@app.command("list")
def list_streams(as_json: AsJson = False) -> None:
    """List streams with desired state, actual state and main metrics."""
    with clear_errors():
        view = _view()
    if as_json:
        emit([asdict(stream) for app_view in view.apps for stream in app_view.streams])
        return
    out = console()
    if not view.apps:
        out.print("There are no streams in the control database yet.")
        return
    out.print(_table([stream for app_view in view.apps for stream in app_view.streams]))
    if view.freshness.message:
        out.print(Text(f"{view.freshness.title}. {view.freshness.message}", style="yellow"))


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show a stream, or an app and its driver, in detail."""
    with clear_errors():
        view = _view()
    app_view, stream = _find(view, name)
    if as_json:
        emit(asdict(stream or app_view))
        return
    out = console()
    if stream is None:
        _print(_app_facts(app_view))
        out.print()
        out.print(_table(app_view.streams))
        return
    _print([*_stream_facts(stream), *(("app " + key, value) for key, value in _app_facts(app_view)[1:])])
    if stream.topics:
        out.print()
        topics = table(["topic", "lag", "partitions", "next offsets"], right=["lag", "partitions"])
        for t in stream.topics:
            offsets = "  ".join(f"{partition}:{offset}" for partition, offset in t.offsets.items())
            topics.add_row(t.name, count(t.lag), str(t.partitions), offsets)
        out.print(topics)
    if stream.gaps:
        out.print()
        gaps = table(["gap", "records", "found", "goes on"], right=["records"])
        for g in stream.gaps:
            by = f"accepted by {g.accepted_by}" if g.accepted_by else f"no: `penstock streams go-on {stream.name}`"
            gaps.add_row(g.said, "unknown" if g.records is None else f"{g.records:,}", f"{duration(g.age_ms)} ago", by)
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


@app.command()
def release(
    name: Name,
    note: Note = "",
    accept_state: Annotated[
        bool, typer.Option("--accept-state", help="Keep state that other code wrote; the audit log records this.")
    ] = False,
) -> None:
    """Replace the driver of an app, or of a stream's app, by one that runs the present code.

    Refused if the code does not load, or cannot read the state of a stream.
    """
    with clear_errors():
        control = connect()
        app_view, _ = _find(_view(control), name)
        typer.echo(f"checking the code of {app_view.name} first; this takes some seconds", err=True)
        number = releases.release(control, app_view.name, actor(), note, accept_state=accept_state)
    also = ", ".join(stream.name for stream in app_view.streams)
    typer.echo(f"release {number} of {app_view.name} is recorded; its driver drains and is replaced ({also})")


@app.command()
def logs(
    name: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new lines, also of the next driver.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of last lines.")] = 100,
) -> None:
    """Show the log of the driver of a stream or an app."""
    with clear_errors():
        control = connect()
        app_name = _find(_view(control), name)[0].name
        path = _log(control, app_name)
        for line in tail(path, lines):
            echo(line)
        if not follow:
            return
        try:
            for text in followed(path, lambda: _log(control, app_name)):
                typer.echo(printable_text(text), nl=False)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file, read from its end."""
    if lines == 0:
        return []
    with path.open("rb") as file:
        at = file.seek(0, 2)
        found = b""
        while at > 0 and found.count(b"\n") <= lines:
            size = min(BLOCK, at)
            at = file.seek(at - size)
            found = file.read(size) + found
    # Not splitlines: a log record may hold other line separators.
    return list(deque(found.decode(errors="replace").removesuffix("\n").split("\n"), maxlen=lines)) if found else []


def followed(path: Path, current: Callable[[], Path], every: float = 0.5) -> Iterator[str]:
    """What is written to a file from now on, and to the file that `current` names after it; never ends."""
    at = path.stat().st_size
    while True:
        with path.open("rb") as file:
            file.seek(at)
            if fresh := file.read():
                at = file.tell()
                yield fresh.decode(errors="replace")
                continue
        time.sleep(every)
        latest = _unless_away(current, path)
        if latest != path:
            yield f"--- {latest} ---\n"
            path, at = latest, 0


def _unless_away(current: Callable[[], Path], path: Path) -> Path:
    """The file to follow; the one at hand while nothing better can be known."""
    try:
        return current()
    except PenstockError:
        return path


def _log(control: Control, app_name: str) -> Path:
    row = control.app(app_name)
    driver = control.driver(row.incarnation) if row and row.incarnation else None
    if driver is None:
        raise PenstockError(f"app {app_name} has no log yet", hint="wait until its first driver is launched")
    path = Path(driver.log)
    if not path.is_file():
        if driver.submission and driver.pid is None and driver.state != "ended":
            why = driver.reason or f"{driver.master} starts it"
            raise PenstockError(f"app {app_name} has no log yet", got=why, hint="wait until a worker runs its driver")
        elsewhere = driver.host != session.host()
        hint = (
            f"look on host {driver.host.partition('/')[0]}" if elsewhere else "see that nothing clears the log folder"
        )
        raise PenstockError(f"the log of app {app_name} is not here", got=path, hint=hint)
    return path


def _view(control: Control | None = None) -> Overview:
    return overview(read(control or connect()), StateLimits.of(settings()))


def _find(view: Overview, name: str) -> tuple[AppView, StreamView | None]:
    """The stream of that name and its app, or the app of that name."""
    for app_view in view.apps:
        for stream in app_view.streams:
            if stream.name == name:
                return app_view, stream
    for app_view in view.apps:
        if app_view.name == name:
            return app_view, None
    raise unknown("stream or app", name, {a.name for a in view.apps} | {s.name for a in view.apps for s in a.streams})


def _set(names: list[str], want: Desired, note: str) -> None:
    with clear_errors():
        control = connect()
        view = _view(control)
        chosen: dict[str, StreamView] = {}
        for name in names:
            app_view, stream = _find(view, name)  # every name is looked up before anything is changed
            chosen |= {s.name: s for s in ([stream] if stream else app_view.streams)}
        control.set_desired(chosen, want, actor(), note)
    for name, was in chosen.items():
        already = " (unchanged)" if was.desired == want else ""
        typer.echo(f"{name}: desired state {want}{already}")


def _age(ms: int | None) -> str:
    return "-" if ms is None else duration(max(0, ms) // 1000 * 1000 if ms >= 1000 else max(0, ms))


def _table(streams: list[StreamView]) -> Any:
    numbers = ["last batch", "rows/s", "lag", "watermark", "late", "dead", "restarts"]
    made = table(["stream", "app", "desired", "state", *numbers, "reason"], right=numbers)
    for s in streams:
        made.add_row(
            s.name, s.app, s.desired, state(s.state), _age(s.batch_age_ms), count(s.rows_per_s), count(s.lag),
            _age(s.watermark_age_ms), count(s.late), count(s.dead), count(s.restarts), Text(first_line(s.why, 80)),
        )  # fmt: skip
    return made


Facts = list[tuple[str, str | Text]]


def _print(facts: Facts) -> None:
    grid = table(["", ""])
    grid.show_header = False
    for key, value in facts:
        grid.add_row(Text(key, style="bold"), value)
    console().print(grid)


def _stream_facts(s: StreamView) -> Facts:
    return [
        ("stream", s.name),
        ("app", s.app),
        ("desired", s.desired),
        ("state", state(s.state)),
        ("why", s.why or "-"),
        ("last report", "never" if s.reported_age_ms is None else f"{duration(s.reported_age_ms)} ago"),
        (
            "last batch",
            f"{_age(s.batch_age_ms)} ago, number {s.batch_id}, took {_age(s.batch_ms)}" if s.batch_id else "-",
        ),
        ("rows/s", count(s.rows_per_s)),
        ("rows in, out", f"{s.rows_in:,}, {s.rows_out:,}"),
        ("late, dead", f"{s.late:,}, {s.dead:,}"),
        ("lost", f"{s.lost:,}" + (", and an unknown number" if s.lost_unknown else "")),
        ("lag", "-" if s.lag is None else f"{s.lag:,}"),
        ("watermark", "none yet" if s.watermark_age_ms is None else f"{_age(s.watermark_age_ms)} ago"),
        ("state size", "-" if s.state_rows is None else f"{s.state_rows:,} rows, {s.state_bytes or 0:,} bytes"),
        ("restarts", f"{s.restarts:,}"),
    ]


def _app_facts(a: AppView) -> Facts:
    facts: Facts = [("app", a.name), ("state", state(a.state)), ("why", a.why or "-")]
    facts += [("release", str(a.release_seq)), ("driver restarts", f"{a.restarts:,}")]
    if d := a.driver:
        pid = "-" if d.pid is None else str(d.pid)
        within = f", {d.submission} of the cluster" if d.submission else ""
        facts += [
            ("driver", f"{d.incarnation}, {d.state}, pid {pid} on {d.host}{within}"),
            ("driver alive", f"{duration(d.alive_age_ms)} ago"),
            ("log", d.log),
        ]
        if d.reason:
            facts.append(("driver ended", first_line(d.reason)))
    return facts
