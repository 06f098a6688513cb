"""`penstock meter`: the platform measures itself."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import orjson
import typer

from penstock.monitoring.collect.samples import METRICS, RECEIPTS


def meter(
    every: Annotated[
        float | None, typer.Option(help="Seconds between two samples.", min=0.5, show_default="PENSTOCK_MEASURE_EVERY")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the Prometheus endpoint.", show_default="PENSTOCK_METRICS_PORT")
    ] = None,
    metrics: Annotated[bool, typer.Option("--metrics", help="List what is measured, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --metrics: as JSON.")] = False,
) -> None:
    """Sample the platform, send the samples to Kafka and serve Prometheus, until SIGTERM.

    Every probe fails alone: what cannot be measured is logged and counted as probeErrors.<probe>.
    """
    if metrics:
        _list(as_json)
        return
    chosen = {"PENSTOCK_MEASURE_EVERY": every, "PENSTOCK_METRICS_PORT": port}
    environment = {**os.environ, **{k: str(v) for k, v in chosen.items() if v is not None}}
    # The same process, rid of the command line's libraries: they would be a good part of its memory, day and night.
    os.execve(sys.executable, [sys.executable, "-m", "penstock.monitoring.collect.meter"], environment)


def _list(as_json: bool) -> None:
    if as_json:
        sys.stdout.write(orjson.dumps(METRICS, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    width, unit = max(len(m.name) for m in METRICS), max(len(m.unit) for m in METRICS)
    typer.echo(f"Metrics of the receipts on topic {RECEIPTS}:")
    for m in METRICS:
        typer.echo(f"  {m.name:{width}}  {m.unit:{unit}}  {m.meaning}")
