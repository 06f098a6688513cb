"""Streams and apps as arguments, and lookups of their names."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import unknown
from penstock.control import Control
from penstock.monitoring.dashboard.model import AppView, Overview, StreamView
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.snapshot import read
from penstock.monitoring.dashboard.states import StateLimits
from penstock.settings import settings


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


def view_of(control: Control) -> Overview:
    """What the control database says of all streams."""
    return overview(read(control), StateLimits.of(settings()))


def find(view: Overview, name: str) -> tuple[AppView, StreamView | None]:
    """The stream of that name and its app, or the app of that name."""
    for app_view in view.apps:
        for stream in app_view.streams:
            if stream.name == name:
                return app_view, stream
    for app_view in view.apps:
        if app_view.name == name:
            return app_view, None
    raise unknown("stream or app", name, {a.name for a in view.apps} | {s.name for a in view.apps for s in a.streams})
