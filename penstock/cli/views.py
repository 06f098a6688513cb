"""`penstock views`: list, show and query views."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.arguments import AsJson, completion, look_up, valid_catalog
from penstock.cli.output import clear_errors, console, emit, state, table
from penstock.control import connect
from penstock.settings import settings
from penstock.views.cluster import client

app = typer.Typer(no_args_is_help=True, help="Query views: compacted topics that are served by REST.")

Name = Annotated[str, typer.Argument(help="A view.", autocompletion=completion("views"))]


def _get(path: str) -> dict[str, Any]:
    answer = client.request(connect(), path)
    if answer.status_code != 200:
        raise client.ViewsUnavailable("the views refused the request", got=client.detail_of(answer))
    body: dict[str, Any] = answer.json()
    return body


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List declared views by instance: state, keys, bytes, lag, age, dead letters."""
    with clear_errors():
        declared, now = valid_catalog(), connect().now()
        progress = connect().progress()
    rows: list[dict[str, Any]] = []
    for name, served in declared.served_views.items():
        row = progress.get(name)
        age = None if row is None or row.behind_ms is None else row.behind_ms + now - row.reported_at
        rows.append(
            {
                "view": served.view.name,
                "instance": served.app,
                "topic": served.view.reads[0].name,
                "state": row.state if row else "stopped",
                "keys": row.state_rows if row else None,
                "bytes": row.state_bytes if row else None,
                "lag": row.lag if row else None,
                "age_ms": age,
                "dead": row.dead if row else None,
            }
        )
    if as_json:
        emit(rows)
        return
    if not rows:
        reason = "declare a View in jobs/" if settings().views_instances else "PENSTOCK_VIEWS_INSTANCES is 0"
        console().print(f"No views are served: {reason}.")
        return
    numbers = ("keys", "bytes", "lag", "age, s", "dead")
    lines = table(["view", "instance", "topic", "state", *numbers], right=numbers)
    for one in sorted(rows, key=lambda one: (one["view"], one["instance"])):
        seconds = None if one["age_ms"] is None else one["age_ms"] // 1000
        figures = [one["keys"], one["bytes"], one["lag"], seconds, one["dead"]]
        cells = ["" if figure is None else f"{figure:,}" for figure in figures]
        lines.add_row(*(str(one[name]) for name in ("view", "instance", "topic")), state(str(one["state"])), *cells)
    console().print(lines)


@app.command()
def show(name: Name) -> None:
    """Print statistics of a view as JSON: keys, bytes, offsets, lag, age, and the owner of each partition."""
    with clear_errors():
        look_up("view", name, valid_catalog().views)
        emit(_get(client.path_of(name)))


@app.command()
def get(name: Name, key: Annotated[str, typer.Argument(help="The key of a record.")]) -> None:
    """Print the latest value of a key, and its freshness, as JSON. Exit code 1 if there is none."""
    with clear_errors():
        look_up("view", name, valid_catalog().views)
        emit(_get(client.key_path(name, key)))
