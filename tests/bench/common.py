"""What every benchmark shares: the machine, quantiles, a driver without Airflow, and where results are written."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from penstock.devstack import resource_usage
from penstock.host import process
from penstock.java import runtime
from penstock.settings import PROJECT

SAMPLE_S = 0.5
RESULTS = PROJECT / "docs" / "benchmarks.md"
RAW = PROJECT / "docs" / "benchmarks"
Figures = Mapping[str, Mapping[str, Sequence[float]]]
"""Each measured value: by what was measured, with its unit, and then by what it was measured of."""


def quantile(values: Sequence[float], q: float) -> float:
    """Nearest rank: the smallest value that at least q of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(q * 100) // 100) - 1)]


def machine() -> dict[str, str | float]:
    """Version of the code, processors, memory, versions of others, and how fast and how busy the machine is."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    commit = process.run_captured(["git", "-C", str(PROJECT), "rev-parse", "--short=8", "HEAD"])
    return {
        "Penstock": f"{version('penstock')} ({commit.stdout.strip() or 'no commit'})",
        "processors": f"{os.cpu_count()} × {model[1] if model else platform.machine()}",
        "memory, GiB": round(psutil.virtual_memory().total / 2**30),
        "Python": platform.python_version(),
        "Java": str(runtime.find().version),
        "pyspark": version("pyspark"),
        "Airflow": version("apache-airflow"),
        "10 million additions, CPU s": round(additions(), 2),
        "load average at the end": round(os.getloadavg()[0], 1),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def additions() -> float:
    """CPU seconds that Python takes to add ten million numbers: how fast a shared machine is at the moment."""
    began, total = time.process_time(), 0
    for number in range(10_000_000):
        total += number
    return time.process_time() - began


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


def plain(number: float) -> str:
    """Three digits or more, without an exponent."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def bars(title: str, unit: str, series: Mapping[str, Sequence[float]]) -> str:
    """A chart of the median of each series, as text that the documentation site and code hosts draw."""
    names = ", ".join(f'"{name.replace("`", "")}"' for name in series)
    medians = [statistics.median(values) for values in series.values()]
    return "\n".join(
        [
            "```mermaid",
            "xychart-beta horizontal",
            f'    title "{title}"',
            f"    x-axis [{names}]",
            f'    y-axis "{unit}" 0 --> {plain(max(medians) * 1.05)}',
            f"    bar [{', '.join(map(plain, medians))}]",
            "```",
        ]
    )


def write(section: str, text: str, figures: Figures, *, chart: str = "") -> None:
    """Print a result and put it between the section's marks in docs/benchmarks.md, and its values beside the page.

    Args:
        section: The name of the marks, and of the file of values in docs/benchmarks/.
        text: What the page says.
        figures: All values that the text sums up.
        chart: Which of them the page shows as bars, by what was measured; by default none.
    """
    print(f"\n{text}\n")
    page, about = RESULTS.read_text(), machine()
    start, end = f"<!-- {section} -->", f"<!-- /{section} -->"
    if start not in page:
        raise SystemExit(f"{RESULTS} has no marks for {section}")
    RAW.mkdir(exist_ok=True)
    values = {
        what: {name: [float(f"{one:.5g}") for one in each] for name, each in series.items()}
        for what, series in figures.items()
    }
    (RAW / f"{section}.json").write_text(json.dumps({"machine": about, "figures": values}) + "\n")
    head, rest = page.split(start, 1)
    drawn = f"\n\n{bars(chart, chart.rpartition(', ')[2], figures[chart])}" if chart else ""
    said = "; ".join(f"{name} {value}" for name, value in about.items())
    raw = f"Measured on {said}. [All values](benchmarks/{section}.json)."
    RESULTS.write_text(f"{head}{start}\n{text}{drawn}\n\n{raw}\n{end}{rest.split(end, 1)[1]}")
