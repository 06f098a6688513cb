"""Arguments and options of several commands, and lookups of declared names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from penstock.cli.output import echo, unknown
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.catalog import Catalog

T = TypeVar("T")
Declared = Literal["archives", "backfills", "captures", "sinks", "views"]
UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]


def time_option(name: str, text: str) -> Any:
    """An option that is a time in UTC."""
    return typer.Option(
        name, formats=TIMES, metavar="TIME", help=f"{text}, such as 2026-01-31 or 2026-01-31T12:30, UTC."
    )


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what the command would do, and change nothing.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as they are written, until Ctrl-C.")]
Note = Annotated[str, typer.Option("--note", "-m", help="The reason; it is stored in the audit log.")]
Recorded = Annotated[bool, typer.Option("--recorded", hidden=True, help="The caller has stored it in the audit log.")]
Place = Annotated[
    list[str] | None,
    typer.Option("--place", help="A record, as 'TOPIC[PARTITION]@OFFSET' or PARTITION:OFFSET; may be repeated."),
]


def milliseconds(text: str) -> int:
    """A duration such as 90s, 10m, 1.5h, of a millisecond at least; raises PenstockError if it is none."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h)", text)
    if not match or not (duration := round(float(match[1]) * UNITS[match[2]])):
        raise PenstockError("this is not a duration", got=text, hint="e.g. 90s, 10m or 12h")
    return duration


def completion(kind: Declared) -> Callable[[str], list[str]]:
    """Shell completion by the declared names of a kind."""

    def complete(incomplete: str) -> list[str]:
        from penstock.catalog import partial_catalog

        return [name for name in sorted(getattr(partial_catalog()[0], kind)) if name.startswith(incomplete)]

    return complete


def valid_catalog() -> Catalog:
    """The declarations of valid files; a warning is printed for each of the others."""
    from penstock.catalog import partial_catalog

    catalog, broken = partial_catalog()
    for one in broken:
        echo(f"warning: {one}", err=True)
    return catalog


def look_up(kind: str, name: str, declared: Mapping[str, T]) -> T:
    """What is declared under a name.

    Raises:
        typer.Exit: nothing is; an error with similar names was printed.
    """
    if name not in declared:
        raise unknown(kind, name, declared)
    return declared[name]


def as_utc(time: datetime | None) -> datetime | None:
    """A time without a zone is UTC."""
    return time.replace(tzinfo=UTC) if time is not None and time.tzinfo is None else time
