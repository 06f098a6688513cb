"""`penstock archives`: list, show and verify archives."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.archive import reader
from penstock.archive.state_log import latest_state
from penstock.archive.verify import verify_archive as verified
from penstock.archive.writer import archive_bucket
from penstock.catalog import partial_catalog
from penstock.cli.output import clear_errors, console, count, emit, table, unknown
from penstock.model.archive import Archive

app = typer.Typer(no_args_is_help=True, help="Show and verify topics archived in an object store by hour.")
TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]


def complete(incomplete: str) -> list[str]:
    return [name for name in sorted(partial_catalog()[0].archives) if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="A declared archive.", autocompletion=complete)]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]
From = Annotated[datetime | None, typer.Option("--from", formats=TIMES, help="Only hours from this time on, UTC.")]
To = Annotated[datetime | None, typer.Option("--to", formats=TIMES, help="Only hours before this time, UTC.")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List declared archives: topic, location, and whether each runs."""
    catalog = partial_catalog()[0]
    found: list[dict[str, Any]] = [
        {
            "name": one.name, "topic": one.reads[0].name, "place": f"s3://{one.bucket}/{one.prefix}".rstrip("/"),
            "runs": one.name in catalog.streams,
        }
        for one in sorted(catalog.archives.values(), key=lambda one: one.name)
    ]  # fmt: skip
    if as_json:
        emit(found)
        return
    rows = table(["archive", "topic", "place", "runs"])
    for one in found:
        runs = "yes" if one["runs"] else "no: set PENSTOCK_S3_URL, or make up"
        rows.add_row(one["name"], one["topic"], one["place"], runs)
    console().print(rows if found else "No archives are declared: see docs/archives.md.")


@app.command()
def show(name: Name, start: From = None, end: To = None, as_json: AsJson = False) -> None:
    """Show the hours of an archive: state, records, bytes and files."""
    with clear_errors():
        archive = _named(name)
        store = archive_bucket(archive.bucket, archive.prefix)
        state = latest_state(store)
        found: list[dict[str, Any]] = []
        for hour in reader.hours_between(state, _utc(start), _utc(end)):
            closed, late = state.closed.get(hour), state.open.get(hour, ())
            found.append(
                {
                    "hour": hour,
                    "state": ("reopened" if late else "closed") if closed else "open",
                    "revision": closed.revision if closed else 0,
                    "rows": (closed.rows if closed else 0) + sum(file.rows for file in late),
                    "size": (closed.size if closed else 0) + sum(file.size for file in late),
                    "files": (closed.files if closed else 0) + len(late),
                }
            )
    if as_json:
        emit({"name": name, "positions": state.positions, "hours": found})
        return
    columns = ["hour", "state", "revision", "rows", "size", "files"]
    rows = table(columns, columns[2:])
    for one in found:
        rows.add_row(*(count(v) if k in ("rows", "size") else str(v) for k, v in one.items()))
    console().print(rows if found else f"Archive {name} is empty.")


@app.command()
def verify(name: Name, start: From = None, end: To = None, as_json: AsJson = False) -> None:
    """Compare every file with the manifest; find missing, truncated, unknown and duplicate files.

    Exit code 1 if there is a difference.
    """
    out, wrong, data = console(), 0, []
    with clear_errors():
        archive = _named(name)
        for one in verified(archive_bucket(archive.bucket, archive.prefix), _utc(start), _utc(end)):
            wrong += not one.ok
            data.append({**vars(one), "right": one.ok, "findings": [vars(f) for f in one.findings]})
            if as_json:
                continue
            said = f"{one.hour}: {one.rows:,} records in {one.files} files, {one.size:,} bytes"
            said += "" if one.closed else ", open"
            out.print(Text(f"{'✓' if one.ok else '✗'} {said}", style="green" if one.ok else "red"))
            for found in one.findings:
                style = "red" if found.kind == "wrong" else "yellow"
                out.print(Text(f"    {found.what}; hint: {found.hint}", style=style))
    if as_json:
        emit(data)
    elif not data:
        out.print(f"Archive {name} has no hour in this interval.")
    raise typer.Exit(1 if wrong else 0)


def _named(name: str) -> Archive:
    known = partial_catalog()[0].archives
    if name not in known:
        raise unknown("archive", name, known)
    return known[name]


def _utc(given: datetime | None) -> datetime | None:
    return given.replace(tzinfo=UTC) if given else None
