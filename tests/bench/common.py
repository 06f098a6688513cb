"""What every benchmark shares: the machine, quantiles, a driver without Airflow, and where results are written."""

from __future__ import annotations

import os
import platform
import re
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from penstock.devstack import resource_usage
from penstock.java import runtime
from penstock.settings import PROJECT

SAMPLE_S = 0.5
RESULTS = PROJECT / "docs" / "benchmarks.md"


def quantile(values: Sequence[float], q: float) -> float:
    """Nearest rank: the smallest value that at least q of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(q * 100) // 100) - 1)]


def machine() -> str:
    """One line: processors, memory, system, versions, and how busy the machine was."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} × {model[1] if model else platform.machine()}, {memory:.0f} GiB, Python "
        f"{platform.python_version()}, Java {runtime.find().version}, pyspark {version('pyspark')}, "
        f"Airflow {version('apache-airflow')}; load average at the end {os.getloadavg()[0]:.1f}; "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


def spread(values: Sequence[float], digits: int = 2) -> list[str]:
    """n, median, p99 and maximum."""
    figures = (statistics.median(values), quantile(values, 0.99), max(values))
    return [str(len(values)), *(f"{v:.{digits}f}" for v in figures)]


@contextmanager
def peak_memory(processes: Callable[[], Iterable[psutil.Process]]) -> Iterator[list[int]]:
    """The most memory, in bytes, that these processes have together at one moment of the block."""
    peak, done = [0], threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            peak[0] = max(peak[0], sum(map(resource_usage.memory, processes())))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


@contextmanager
def during(work: Callable[[], float], after: float = 0.0) -> Iterator[None]:
    """Call `work` repeatedly during the block; it returns the pause in seconds. after: the first pause."""
    done = threading.Event()

    def repeat() -> None:
        pause = after
        while not done.wait(pause):
            pause = work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def write(section: str, text: str) -> None:
    """Print a result and put it between the section's marks in docs/benchmarks.md."""
    print(f"\n{text}\n")
    page = RESULTS.read_text()
    start, end = f"<!-- {section} -->", f"<!-- /{section} -->"
    if start not in page:
        raise SystemExit(f"{RESULTS} has no marks for {section}")
    head, rest = page.split(start, 1)
    RESULTS.write_text(f"{head}{start}\n{text}\n\nMeasured on {machine()}.\n{end}{rest.split(end, 1)[1]}")
