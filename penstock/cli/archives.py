"""`penstock archives`: list, show and verify archives."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import duckdb
import typer
from rich.text import Text

from penstock.archive import catalog, maintenance, reader, takeover
from penstock.archive import register as registration
from penstock.archive.closed_hours import ClosedHours
from penstock.archive.records import SCHEMA
from penstock.archive.stream import output_of
from penstock.archive.table import ArchiveTable
from penstock.archive.verify import verify_archive
from penstock.cli.arguments import AsJson, as_utc, completion, look_up, time_option, valid_catalog
from penstock.cli.output import clear_errors, console, count, emit, print_check
from penstock.cli.output import table as grid
from penstock.errors import PenstockError

app = typer.Typer(no_args_is_help=True, help="Show, verify and maintain topics that are archived as Iceberg tables.")
Name = Annotated[str, typer.Argument(help="A declared archive.", autocompletion=completion("archives"))]
From = Annotated[datetime | None, time_option("--from", "Only hours from this time on")]
To = Annotated[datetime | None, time_option("--to", "Only hours before this time")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List declared archives: topic, location, and whether each runs."""
    catalog = valid_catalog()
    archives: list[dict[str, Any]] = [
        {
            "name": one.name, "topic": one.reads[0].name, "table": one.table_name, "place": f"s3://{one.bucket}/{one.prefix}".rstrip("/"),
            "masks": [mask.text for mask in one.mask], "runs": one.name in catalog.streams,
        }
        for one in sorted(catalog.archives.values(), key=lambda one: one.name)
    ]  # fmt: skip
    if as_json:
        emit(archives)
        return
    rows = grid(["archive", "topic", "table", "place", "masks", "runs"])
    for one in archives:
        runs = "yes" if one["runs"] else "no: set PENSTOCK_S3_URL, or penstock up"
        rows.add_row(one["name"], one["topic"], one["table"], one["place"], "\n".join(one["masks"]) or "-", runs)
    console().print(rows if archives else "No archives are declared: see docs/archives.md.")


@app.command()
def show(name: Name, start: From = None, end: To = None, as_json: AsJson = False) -> None:
    """Show the hours of an archive: state, records, bytes and files."""
    with clear_errors():
        archive = look_up("archive", name, valid_catalog().archives)
        output = output_of(archive)
        table = ArchiveTable.find(output)
        in_table = reader.read_hours(table, ClosedHours.of(output), as_utc(start), as_utc(end)) if table else []
        hours: list[dict[str, Any]] = [
            {
                "hour": hour.name,
                "state": ("closed" if hour.is_closed else "reopened") if hour.closed else "open",
                "revision": hour.closed.revision if hour.closed else 0,
                "rows": hour.rows,
                "size": sum(file.size for file in hour.files),
                "files": len(hour.files),
            }
            for hour in in_table
        ]
        positions = table.state.positions if table else {}
    if as_json:
        emit({"name": name, "table": output.table, "positions": positions, "hours": hours})
        return
    columns = ["hour", "state", "revision", "rows", "size", "files"]
    rows = grid(columns, columns[2:])
    for one in hours:
        rows.add_row(*(count(v) if k in ("rows", "size") else str(v) for k, v in one.items()))
    console().print(rows if hours else f"Archive {name} is empty.")


@app.command()
def connect(name: Name) -> None:
    """Show how to open the table of an archive in Python; secrets are left out."""
    with clear_errors():
        archive = look_up("archive", name, valid_catalog().archives)
        text = catalog.connection_code(archive.table_name)
    console().print(text, markup=False, highlight=False, soft_wrap=True)


@app.command()
def query(
    name: Name,
    sql: Annotated[str, typer.Argument(help="A SELECT of DuckDB; the archive is the table `records`.")],
    start: Annotated[datetime | None, time_option("--from", "Only records from this event time on")] = None,
    end: Annotated[datetime | None, time_option("--to", "Only records before this event time")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a SELECT over an archive, for instance "SELECT decode(key), count(*) FROM records GROUP BY 1"."""
    with clear_errors():
        output = output_of(look_up("archive", name, valid_catalog().archives))
        table = ArchiveTable.find(output)
        records = table.batches(as_utc(start), as_utc(end)) if table else SCHEMA.empty_table()
        try:
            with duckdb.connect() as connection:
                connection.execute("SET timezone = 'UTC'")
                connection.register("records", records)
                answer = connection.execute(sql)
                # There is none if the text has no statement.
                columns = [column[0] for column in (answer and answer.description) or ()]
                rows = answer.fetchall() if columns else []
        except duckdb.Error as e:
            hint = "write a SELECT of DuckDB that names `records` once; keys and values are BLOB: decode(value)"
            raise PenstockError("the query failed", got=e, hint=hint) from e
    if as_json:
        emit([dict(zip(columns, map(_text, row), strict=True)) for row in rows])
        return
    shown = grid(columns)
    for row in rows:
        shown.add_row(*(Text(str(_text(value))) for value in row))
    console().print(shown)


def _text(value: object) -> object:
    """A value as JSON has it; bytes as text, or in hexadecimal."""
    match value:
        case bytes():
            try:
                return value.decode()
            except ValueError:
                return value.hex()
        case list() | tuple():
            return [_text(item) for item in value]
        case dict():
            return {_text(name): _text(item) for name, item in value.items()}
        case int() | float() | str() | None:
            return value
    return str(value)


@app.command()
def register(name: Name) -> None:
    """Let the catalog know the tables that lie in the folder of an archive, if the catalog that knew them is lost.

    Stop the archive first, and make sure that nobody writes its tables by another catalog.
    """
    with clear_errors():
        for location in registration.register(output_of(look_up("archive", name, valid_catalog().archives))):
            print_check(name, location)


@app.command()
def take_over(
    name: Name,
    bucket: Annotated[str, typer.Option(help="The bucket of the old archive; by default that of the archive.")] = "",
    prefix: Annotated[str | None, typer.Option(help="Its prefix; by default that of the archive.")] = None,
) -> None:
    """Copy the records of an archive of Penstock 0.2 into the table of an archive, and verify them.

    Stop the archive first: penstock streams stop NAME. An interrupted run is continued by the next one.
    """
    with clear_errors():
        catalog = valid_catalog()
        archive = look_up("archive", name, catalog.archives)
        place = bucket or archive.bucket, archive.prefix if prefix is None else prefix
        total, output = 0, output_of(archive, catalog.topics.get(archive.reads[0].name))
        for hour in takeover.take_over(output, *place):
            total += hour.records
            print_check(hour.hour, f"{hour.records:,} records" if hour.records else "is there", "green")
    console().print(f"{total:,} records taken over. Look at them: penstock archives verify {name}")


@app.command()
def maintain(name: Name, as_json: AsJson = False) -> None:
    """Expire old snapshots of an archive's tables, and delete objects that no snapshot needs; Airflow does it daily."""
    with clear_errors():
        done = maintenance.maintain(output_of(look_up("archive", name, valid_catalog().archives)))
    if as_json:
        emit([vars(one) for one in done])
        return
    columns = ["table", "snapshots expired", "objects deleted", "bytes"]
    rows = grid(columns, columns[1:])
    for one in done:
        rows.add_row(one.table, *(f"{value:,}" for value in (one.snapshots, one.objects, one.bytes)))
    console().print(rows if done else f"Archive {name} is empty.")


@app.command()
def verify(name: Name, start: From = None, end: To = None, as_json: AsJson = False) -> None:
    """Read every file, and compare it with what was written and with what each hour had when it was closed.

    Exit code 1 if there is a difference.
    """
    out, wrong, data = console(), 0, []
    with clear_errors():
        archive = look_up("archive", name, valid_catalog().archives)
        output = output_of(archive)
        table = ArchiveTable.find(output)
        for one in verify_archive(table, ClosedHours.of(output), as_utc(start), as_utc(end)) if table else ():
            wrong += not one.ok
            data.append({**vars(one), "right": one.ok, "findings": [vars(f) for f in one.findings]})
            if as_json:
                continue
            result = f"{one.rows:,} records in {one.files} files, {one.size:,} bytes{'' if one.closed else ', open'}"
            print_check(one.hour, result, "green" if one.ok else "red")
            for finding in one.findings:
                out.print(Text(f"    {finding.what}; hint: {finding.hint}", style="red"))
    if as_json:
        emit(data)
    elif not data:
        out.print(f"Archive {name} has no hour in this interval.")
    raise typer.Exit(1 if wrong else 0)
