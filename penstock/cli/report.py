"""Progress of the steps of a long command: bars on a terminal, a line per step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

DONE, FAILED = ("✓", "green"), ("✗", "red")


class Size(DownloadColumn):
    """Bytes of a step that has a size."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text("")


class Seconds(ProgressColumn):
    """Time since the start of the step."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.elapsed or 0:.0f} s", style="dim")


# Seconds between two lines of a step without a terminal: what it waits for may change each second.
BETWEEN_LINES = 5.0


class StepDisplay:
    """One step: a bar on a terminal, otherwise lines on the console."""

    def __init__(self, progress: Progress | None, console: Console) -> None:
        self.progress, self.detail = progress, ""
        self.task = progress.add_task("", total=None, detail="") if progress else None
        self._console, self._ended = console, Event()

    def tick(self, done: int, total: int) -> None:
        if self.progress and self.task is not None:
            self.progress.update(self.task, completed=done, total=total)

    def say(self, text: str) -> None:
        self.detail = text
        if self.progress and self.task is not None:
            self.progress.update(self.task, detail=escape(text[:60]))

    @contextmanager
    def printed(self) -> Iterator[None]:
        """Print what the step waits for every few seconds, while the block runs."""
        thread = Thread(target=self._print, name="steps", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _print(self) -> None:
        printed = ""
        while not self._ended.wait(BETWEEN_LINES):
            if self.detail not in ("", printed):
                printed = self.detail
                self._console.print(f"    {printed}")


class Steps:
    """A `Report` on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, title: str) -> Iterator[StepDisplay]:
        start = time.monotonic()
        display: StepDisplay | None = None
        mark = FAILED
        try:
            if self.console.is_terminal:
                with self._bars(title) as progress:
                    display = StepDisplay(progress, self.console)
                    yield display
            else:
                self.console.print(f"  {title} …")
                display = StepDisplay(None, self.console)
                with display.printed():
                    yield display
            mark = DONE
        finally:
            seconds = time.monotonic() - start
            detail = f": {display.detail}" if display and display.detail and mark == DONE else ""
            self.console.print(Text.assemble(mark, f" {title}{detail} ", (f"{seconds:.1f} s", "dim")))

    def _bars(self, title: str) -> Progress:
        return Progress(
            SpinnerColumn(),
            TextColumn(escape(title)),
            BarColumn(bar_width=24),
            Size(binary_units=True),
            Seconds(),
            TextColumn("[dim]{task.fields[detail]}[/]"),
            console=self.console,
            transient=True,
        )
