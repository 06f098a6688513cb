"""The command line of a simulator: the options that all simulators have, and the progress bar while it sends."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from penstock.cli.arguments import milliseconds
from penstock.cli.output import console, count
from penstock.testing.load import SentCounts, interruptible

SeedOption = Annotated[
    int | None,
    typer.Option(min=0, help="Seed of the random numbers. The same seed and start time give the same records."),
]
FastOption = Annotated[
    bool, typer.Option("--fast", help="Send as fast as possible, with event times of the past that end now.")
]
TruthOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where to write what the streams must find. Default: a new file in the home."),
]
CheckOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Send nothing. Compare the output of the streams with this --truth file."),
]


def length_option(clock: str, fast: str) -> Any:
    """The option `--for`, with its defaults on the clock and with `--fast`."""
    text = f"Length of the simulated time, such as 90s, 10m or 2h. Default: {clock}, with --fast {fast}."
    return typer.Option("--for", metavar="DURATION", help=text)


@dataclass(frozen=True)
class SimulatedTime:
    """Start (epoch ms), length (ms) and seed of a simulation."""

    start: int
    length: int
    seed: int

    @classmethod
    def of_options(cls, length: str, seed: int | None, *, fast: bool) -> SimulatedTime:
        """From the values of the options; with `fast` it ends now, otherwise it starts now."""
        now, duration = int(time.time() * 1000), milliseconds(length)
        return cls(now - duration if fast else now, duration, random.randrange(10**6) if seed is None else seed)


class SendProgress:
    """The progress of sending, in a bar on the terminal."""

    def __init__(self, bar: Progress, name: str, noun: str, start: int, length: int) -> None:
        self._bar, self._noun, self._start = bar, noun, start
        self._task = bar.add_task(name, total=length)
        self._began = time.monotonic()

    def update(self, sent: SentCounts) -> None:
        speed = count(sent.records / max(0.001, time.monotonic() - self._began))
        delay = f", {sent.behind / 1000:.1f} s behind the clock" if sent.behind > 1000 else ""
        text = f"{count(sent.records)} {self._noun}, {speed}/s{delay}"
        self._bar.update(self._task, description=text, completed=sent.until - self._start)

    def summary(self, sent: SentCounts) -> str:
        seconds = time.monotonic() - self._began
        return f"{sent.records:,} {self._noun} in {seconds:.1f} s ({count(sent.records / seconds)}/s)"


@contextmanager
def show_progress(name: str, noun: str, start: int, length: int) -> Iterator[tuple[SendProgress, Event]]:
    """Show a progress bar; the event is set by Ctrl-C.

    Args:
        name: Name of what is simulated.
        noun: What its main records are, in the plural.
        start: Start of the simulated time, epoch ms.
        length: Length of the simulated time, ms.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with interruptible() as stop, Progress(*columns, console=console(), transient=True) as bar:
        yield SendProgress(bar, name, noun, start, length), stop
