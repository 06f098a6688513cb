"""Shows the steps of a long command: bars on a terminal, a line per step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

DONE, FAILED = ("✓", "green"), ("✗", "red")


class Bar(BarColumn):
    """A bar for what has a known size; a pulse while something is waited for."""


class Size(DownloadColumn):
    """Bytes, where bytes are counted."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text("")


class Seconds(ProgressColumn):
    """Time since the step began."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.elapsed or 0:.0f} s", style="dim")


class Shown:
    """One step as it is shown."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress, self.said = progress, ""
        self.task = progress.add_task("", total=None, said="") if progress else None

    def tick(self, done: int, total: int) -> None:
        if self.progress and self.task is not None:
            self.progress.update(self.task, completed=done, total=total)

    def say(self, text: str) -> None:
        self.said = text
        if self.progress and self.task is not None:
            self.progress.update(self.task, said=escape(text[:60]))


class Steps:
    """A `Report` on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, title: str) -> Iterator[Shown]:
        began = time.monotonic()
        shown: Shown | None = None
        mark = FAILED
        try:
            if self.console.is_terminal:
                with self._bars(title) as progress:
                    shown = Shown(progress)
                    yield shown
            else:
                self.console.print(f"  {title} …")
                shown = Shown(None)
                yield shown
            mark = DONE
        finally:
            took = time.monotonic() - began
            said = f": {shown.said}" if shown and shown.said and mark == DONE else ""
            self.console.print(Text.assemble(mark, f" {title}{said} ", (f"{took:.1f} s", "dim")))

    def _bars(self, title: str) -> Progress:
        return Progress(
            SpinnerColumn(),
            TextColumn(escape(title)),
            Bar(bar_width=24),
            Size(binary_units=True),
            Seconds(),
            TextColumn("[dim]{task.fields[said]}[/]"),
            console=self.console,
            transient=True,
        )
