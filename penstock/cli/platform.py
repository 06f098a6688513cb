"""`penstock up`, `status`, `logs`, `down`, `clean`, `doctor` and `migrate`: the platform on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from penstock.catalog import partial_catalog
from penstock.cli.arguments import AsJson, Follow
from penstock.cli.output import clear_errors, console, count, echo, emit, state, table
from penstock.cli.report import Steps
from penstock.cli.stream_tables import facts_table
from penstock.control import DriverRow, connect
from penstock.devstack import doctor as checks
from penstock.devstack import resource_usage
from penstock.devstack.platform import Platform, as_running
from penstock.devstack.releases import watch_and_release
from penstock.errors import ControlError, HostError
from penstock.host import log_files
from penstock.monitoring.dashboard.model import Overview
from penstock.monitoring.dashboard.states import HEALTHY_STATES
from penstock.monitoring.health import unhealthy
from penstock.monitoring.humanize import duration
from penstock.settings import settings

MIB = 1024 * 1024


def up(
    watch: Annotated[
        bool, typer.Option("--watch", help="Then release the apps whose files change, until Ctrl-C.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until all streams run, not only those that start first.")
    ] = False,
) -> None:
    """Start the platform on this machine, or adopt the servers that run; show what runs where.

    The first app's driver starts ahead of the others, which still start when its streams have read their first records.

    Apps whose files have changed since their release are released.

    PENSTOCK_STORES names stores that are started too: elasticsearch, mongodb, influxdb. The object store of archives is
    started unless PENSTOCK_S3_URL is set. PENSTOCK_REGISTRY=1 starts a schema registry.
    """
    out = console()
    with clear_errors():
        platform = Platform()
        view = platform.up(Steps(out), wait)
    _welcome(out, platform, view)
    if watch:
        out.print(f"Watching {settings().project}; Ctrl-C ends it, and the platform continues.", style="dim")
        for line in watch_and_release():
            out.print(Text(line, style="red" if line.startswith("error") else ""))


def _archives() -> list[str]:
    """The archives that run."""
    catalog = partial_catalog()[0]
    return [name for name in catalog.archives if name in catalog.streams]


def _welcome(out: Console, platform: Platform, view: Overview) -> None:
    s, airflow = settings(), platform.airflow
    # Without a terminal, the output is probably stored in a log.
    password = airflow.password if out.is_terminal else f"in {airflow.layout.password_file}"
    grid = facts_table(
        [
            ("Airflow", f"{airflow.url}   sign in as {airflow.user} with the password {password}"),
            ("Operator page", f"{airflow.url}/plugin/penstock   (in Airflow's navigation: Penstock)"),
            ("Kafka", s.bootstrap),
            *((p.label.removeprefix("the "), p.url) for p in platform.stores),
            ("Topics", f"{len(partial_catalog()[0].topics)}, listed by `penstock topics`"),
            *(
                ("Archive", f"penstock archives query {name} 'SELECT count(*) FROM records'")
                for name in _archives()[:1]
            ),
            ("Metrics", f"http://127.0.0.1:{s.metrics_port}/metrics"),
            ("Data and logs", str(s.home)),
        ]
    )
    out.print()
    out.print(Panel(grid, title="Penstock is up", title_align="left", border_style="green", expand=False))
    out.print()
    _print_streams(out, view)
    out.print()
    starting = [s for app in view.apps for s in app.streams if s.desired == "on" and s.state not in HEALTHY_STATES]
    if starting:
        apps = ", ".join(sorted({s.app for s in starting}))
        out.print(f"Still starting: {apps}. `penstock up --wait` waits for them.", style="yellow")
    out.print("Next: `penstock status`, `penstock logs`, `penstock streams list`, `penstock down`.", style="dim")


def _print_streams(out: Console, view: Overview) -> None:
    numbers = ["rows in", "rows out", "rows/s", "lag", "last batch"]
    rows = table(["stream", "app", "state", *numbers], right=numbers)
    for stream in (s for app in view.apps for s in app.streams):
        age = "-" if stream.batch_age_ms is None else f"{duration(stream.batch_age_ms)} ago"
        rows.add_row(
            stream.name, stream.app, state(stream.state), count(stream.rows_in), count(stream.rows_out),
            count(stream.rows_per_s), count(stream.lag), age,
        )  # fmt: skip
    out.print(rows)


def status(as_json: AsJson = False) -> None:
    """Show servers with pid, port, age, CPU and memory, and apps and streams. Exit code 1 unless all are healthy."""
    platform = Platform(as_running(settings()))
    view, rows, away = _control(platform)
    used = resource_usage.measure(platform.servers, rows)
    running = all(p.state == "running" for p in used) and not away
    faults = unhealthy(s for app in view.apps for s in app.streams) if view else {}
    healthy = running and not faults
    if as_json:
        apps = [] if view is None else [asdict(app) for app in view.apps]
        emit(
            {
                "ok": healthy,
                "servers": [asdict(p) for p in used],
                "apps": apps,
                "control": away or "ok",
                "unhealthy": faults,
            }
        )
        raise typer.Exit(0 if healthy else 1)
    out = console()
    out.print(_servers_table(used))
    if view:
        out.print()
        _print_streams(out, view)
    elif any(p.state == "running" for p in used):
        out.print(Text(f"The state of the streams is unknown: {away}", style="yellow"))
    if not any(p.state == "running" for p in used):
        out.print("No server runs; `penstock up` starts the platform.")
    elif not running:
        out.print("Not all servers run; `penstock up` starts what is missing.", style="yellow")
    for name, why in faults.items():
        out.print(Text(f"{name}: {why}", style="red"))
    raise typer.Exit(0 if healthy else 1)


def _control(platform: Platform) -> tuple[Overview | None, list[DriverRow], str]:
    try:
        control = connect(platform.settings.control)
        return platform.view(control), control.drivers(), ""
    except ControlError as e:
        return None, [], str(e)


def _servers_table(used: list[resource_usage.ServerUsage]) -> Any:
    numbers = ["pid", "up", "CPU", "memory"]
    rows = table(["server", "state", *numbers, "ports"], right=numbers)
    colours = {"running": "green", "crashed": "red", "stopped": "bright_black"}
    for p in used:
        rows.add_row(
            p.name, Text(p.state, style=colours[p.state]), str(p.pid or "-"),
            "-" if p.up is None else duration(int(p.up) * 1000),
            "-" if p.cpu is None else f"{p.cpu:.1f} %",
            "-" if p.memory is None else f"{p.memory // MIB} MiB", _ports(p.ports),
        )  # fmt: skip
    running = [p for p in used if p.state == "running"]
    if running:
        cpu, memory = sum(p.cpu or 0 for p in running), sum(p.memory or 0 for p in running)
        rows.add_section()
        rows.add_row("together", "", "", "", f"{cpu:.1f} %", f"{memory // MIB} MiB", "")
    return rows


def _ports(ports: Mapping[str, int] | None) -> str:
    return ", ".join(f"{port} ({use})" for use, port in (ports or {}).items())


def logs(
    server: Annotated[
        list[str] | None, typer.Argument(help="Servers as `penstock status` names them; all if none is named.")
    ] = None,
    follow: Follow = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of last lines of each log.")] = 20,
) -> None:
    """Show the logs of the servers and of the drivers."""
    with clear_errors():
        chosen = _logs(server or [])
    at: dict[str, int] = {}
    for name, path in chosen.items():
        at[name] = path.stat().st_size if path.exists() else 0
        for line in log_files.tail(path, lines) if path.exists() else []:
            echo(f"{name} | {line}" if len(chosen) > 1 else line)
    while follow:
        try:
            time.sleep(0.5)
            # A server that was started anew, or a new driver, has a new file.
            for name, path in _logs(server or [], chosen).items():
                start = at.get(name, 0) if chosen.get(name) == path else 0
                at[name] = _emit_new(name if len(chosen) > 1 else "", path, start)
                chosen[name] = path
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _emit_new(name: str, path: Path, start: int) -> int:
    """Print whole lines written since `start`; returns where the next begin."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        size = path.stat().st_size
        file.seek(start if start <= size else 0)
        fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        for line in whole.decode(errors="replace").split("\n")[:-1]:
            echo(f"{name} | {line}" if name else line)
        return file.tell() - len(fresh) + len(whole)
    return 0


def _logs(names: list[str], earlier: Mapping[str, Path] | None = None) -> dict[str, Path]:
    """Log files by server; of each app the newest driver's."""
    logs = {server.name: server.log for server in Platform().servers}
    for path in sorted(settings().logs.glob("driver-*-2*.log")):
        logs["driver-" + path.stem.removeprefix("driver-").rsplit("-", 1)[0]] = path
    if missing := [name for name in names if name not in logs and name not in (earlier or {})]:
        raise HostError("there is no such server", got=", ".join(missing), hint=f"take one of: {', '.join(logs)}")
    return {name: path for name, path in logs.items() if not names or name in names}


def down() -> None:
    """Stop the platform, drivers included; its data stays."""
    with clear_errors():
        Platform(as_running(settings())).down(Steps(console()))


def clean(yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False) -> None:
    """Stop the platform and remove all its data. Downloads stay in the cache."""
    with clear_errors():
        platform = Platform(as_running(settings()))
    if not yes:
        elsewhere = platform.checkpoints_elsewhere
        data = "records and logs" if elsewhere else "records, checkpoints and logs"
        stays = f" The checkpoints in {elsewhere} stay." if elsewhere else ""
        typer.confirm(f"Remove {platform.settings.home} with all {data}?{stays}", abort=True)
    with clear_errors():
        platform.clean(Steps(console()))


def doctor(as_json: AsJson = False) -> None:
    """Check Java, ports, versions, jars, broker, database, disk and memory, with a hint for each failure."""
    results = checks.examine(Platform())
    failed = [check for check in results if check.state == "fail"]
    if as_json:
        emit({"ok": not failed, "checks": [asdict(check) for check in results]})
        raise typer.Exit(1 if failed else 0)
    out = console()
    marks = {"ok": ("✓", "green"), "note": ("•", "yellow"), "fail": ("✗", "red")}
    for check in results:
        mark, colour = marks[check.state]
        out.print(Text.assemble((f"{mark} ", colour), (f"{check.name}: ", "bold"), check.found))
        if check.hint:
            out.print(Text(f"    hint: {check.hint}", style=colour))
    raise typer.Exit(1 if failed else 0)


def migrate() -> None:
    """Migrate the control database, and register the declarations."""
    with clear_errors():
        control = connect(settings().control)
        control.migrate()
        catalog, wrong = partial_catalog()
        control.sync(catalog, forget=not wrong)
    typer.echo("The control database has its tables and the declarations.")
    for mistake in wrong:
        typer.echo(f"error: {mistake}", err=True)
    if wrong:
        raise typer.Exit(1)
