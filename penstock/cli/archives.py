"""`penstock archives`: list, show and verify archives."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.archive import reader
from penstock.archive.state_log import latest_state
from penstock.archive.verify import verify_archive
from penstock.archive.writer import archive_bucket
from penstock.catalog import partial_catalog
from penstock.cli.arguments import AsJson, as_utc, completion, look_up, time_option
from penstock.cli.output import clear_errors, console, count, emit, print_check, table

app = typer.Typer(no_args_is_help=True, help="Show and verify topics that are archived in an object store.")
Name = Annotated[str, typer.Argument(help="A declared archive.", autocompletion=completion("archives"))]
From = Annotated[datetime | None, time_option("--from", "Only hours from this time on")]
To = Annotated[datetime | None, time_option("--to", "Only hours before this time")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List declared archives: topic, location, and whether each runs."""
    catalog = partial_catalog()[0]
    archives: list[dict[str, Any]] = [
        {
            "name": one.name, "topic": one.reads[0].name, "place": f"s3://{one.bucket}/{one.prefix}".rstrip("/"),
            "masks": [mask.text for mask in one.mask], "runs": one.name in catalog.streams,
        }
        for one in sorted(catalog.archives.values(), key=lambda one: one.name)
    ]  # fmt: skip
    if as_json:
        emit(archives)
        return
    rows = table(["archive", "topic", "place", "masks", "runs"])
    for one in archives:
        runs = "yes" if one["runs"] else "no: set PENSTOCK_S3_URL, or penstock up"
        rows.add_row(one["name"], one["topic"], one["place"], "\n".join(one["masks"]) or "-", runs)
    console().print(rows if archives else "No archives are declared: see docs/archives.md.")


@app.command()
def show(name: Name, start: From = None, end: To = None, as_json: AsJson = False) -> None:
    """Show the hours of an archive: state, records, bytes and files."""
    with clear_errors():
        archive = look_up("archive", name, partial_catalog()[0].archives)
        store = archive_bucket(archive.bucket, archive.prefix)
        state = latest_state(store)
        hours: list[dict[str, Any]] = []
        for hour in reader.hours_between(state, as_utc(start), as_utc(end)):
            closed, late = state.closed.get(hour), state.open.get(hour, ())
            hours.append(
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
        emit({"name": name, "positions": state.positions, "hours": hours})
        return
    columns = ["hour", "state", "revision", "rows", "size", "files"]
    rows = table(columns, columns[2:])
    for one in hours:
        rows.add_row(*(count(v) if k in ("rows", "size") else str(v) for k, v in one.items()))
    console().print(rows if hours else f"Archive {name} is empty.")


@app.command()
def verify(name: Name, start: From = None, end: To = None, as_json: AsJson = False) -> None:
    """Compare every file with the manifest; find missing, truncated, unknown and duplicate files.

    Exit code 1 if there is a difference.
    """
    out, wrong, data = console(), 0, []
    with clear_errors():
        archive = look_up("archive", name, partial_catalog()[0].archives)
        for one in verify_archive(archive_bucket(archive.bucket, archive.prefix), as_utc(start), as_utc(end)):
            wrong += not one.ok
            data.append({**vars(one), "right": one.ok, "findings": [vars(f) for f in one.findings]})
            if as_json:
                continue
            result = f"{one.rows:,} records in {one.files} files, {one.size:,} bytes{'' if one.closed else ', open'}"
            print_check(one.hour, result, "green" if one.ok else "red")
            for finding in one.findings:
                style = "red" if finding.kind == "wrong" else "yellow"
                out.print(Text(f"    {finding.what}; hint: {finding.hint}", style=style))
    if as_json:
        emit(data)
    elif not data:
        out.print(f"Archive {name} has no hour in this interval.")
    raise typer.Exit(1 if wrong else 0)
