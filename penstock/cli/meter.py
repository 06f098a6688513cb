"""`penstock meter`: metrics of the platform."""

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
    metrics: Annotated[bool, typer.Option("--metrics", help="List the metrics and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --metrics: print JSON.")] = False,
) -> None:
    """Sample the platform, send the samples to Kafka and serve Prometheus, until SIGTERM.

    If a probe fails, the others continue; failures are logged and counted as probeErrors.<probe>.
    """
    if metrics:
        _list(as_json)
        return
    options = {"PENSTOCK_MEASURE_EVERY": every, "PENSTOCK_METRICS_PORT": port}
    environment = {**os.environ, **{k: str(v) for k, v in options.items() if v is not None}}
    # The same process without the libraries of the command line, which would be a large part of its memory.
    os.execve(sys.executable, [sys.executable, "-m", "penstock.monitoring.collect.meter"], environment)


def _list(as_json: bool) -> None:
    if as_json:
        sys.stdout.write(orjson.dumps(METRICS, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    width, unit = max(len(m.name) for m in METRICS), max(len(m.unit) for m in METRICS)
    typer.echo(f"Metrics of the receipts on topic {RECEIPTS}:")
    for m in METRICS:
        typer.echo(f"  {m.name:{width}}  {m.unit:{unit}}  {m.meaning}")
