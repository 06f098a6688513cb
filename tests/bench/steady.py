"""The rate of a warm job, from samples of its progress and its CPU time during a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from tests.bench.common import during

SAMPLE_S = 0.5


@dataclass(frozen=True)
class SteadyRate:
    """records_s: records a second; cpu_s: CPU seconds per million records."""

    records_s: float
    cpu_s: float


@dataclass
class RunSamples:
    """Samples of a run: the time, CPU seconds so far, and the progress of each step of the job in its own unit."""

    samples: list[tuple[float, float, dict[str, int]]] = field(default_factory=list)

    def note(self, cpu_s: float, steps: Mapping[str, int]) -> None:
        self.samples.append((time.time(), cpu_s, dict(steps)))

    def steady(self, low: float, high: float, records: int) -> SteadyRate:
        """The rate between two shares of the job; reached when the slowest step has. records: of the job."""
        whole = {step: max(s.get(step, 0) for *_, s in self.samples) for _, _, steps in self.samples for step in steps}

        def share(steps: Mapping[str, int]) -> float:
            return min((steps.get(step, 0) / end for step, end in whole.items() if end), default=0.0)

        points = [(share(steps), at, cpu) for at, cpu, steps in self.samples]
        (began, spent), (ended, paid) = (_at(points, wanted) for wanted in (low, high))
        done = (high - low) * records
        return SteadyRate(done / (ended - began), (paid - spent) / done * 1e6)


def _at(points: list[tuple[float, float, float]], wanted: float) -> tuple[float, float]:
    """Time and CPU seconds at which a share was reached, between the samples around it."""
    last = points[0]
    for point in points:
        if point[0] >= wanted:
            over = point[0] - last[0]
            part = (wanted - last[0]) / over if over else 1.0
            return last[1] + part * (point[1] - last[1]), last[2] + part * (point[2] - last[2])
        if point[0] > last[0]:
            last = point
    return points[-1][1], points[-1][2]


@contextmanager
def sample_during(
    samples: RunSamples, cpu_s: Callable[[], float], steps: Callable[[], Mapping[str, int]]
) -> Iterator[None]:
    """Take samples during the block, while there is something to be sampled."""

    def sample() -> float:
        progress = steps()
        if progress:
            # The process may have ended just now.
            with suppress(psutil.NoSuchProcess):
                samples.note(cpu_s(), progress)
        return SAMPLE_S

    with during(sample, after=SAMPLE_S):
        yield
