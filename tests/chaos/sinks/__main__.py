"""Kills the driver of sinks and cuts their stores under load, and compares stores with topics: part of `make chaos`.

`python -m tests.chaos.sinks --seed 7 --kills 50 --outages 20`. After each round of breakers nothing is sent any more;
when all of it is through, every document, point and dead letter is compared with what plain Python makes of the topics
(`oracle.py`). The same seed breaks the same things with the same records, at moments that differ. Each run begins anew.
Exit code 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.sinks.checker import Checker
from tests.chaos.sinks.traffic import Load
from tests.chaos.sinks.world import KILLS, LONGEST, STORES, World, outages, start_platform
from tests.support.wait import wait_until

# Seconds within which all records that were sent must be written.
CATCH_UP_TIMEOUT = 600.0
UNHEALED = 3


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.sinks", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--outages", type=int, default=20)
    parser.add_argument("--hours", type=float, default=4.0, help="it ends at this time even if not all is done")
    parser.add_argument("--round", type=int, default=10, help="breakers between two comparisons")
    parser.add_argument("--rate", type=float, default=25.0, help="records a second")
    parser.add_argument("--longest", type=float, default=LONGEST, help="longest outage of a store, seconds")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--home", type=Path, default=Path(".penstock-chaos") / "sinks")
    return parser.parse_args(argv)


@dataclass
class RunSummary:
    """Results of a run. recoveries: seconds; documents: number compared at the end, by sink; rows_in_outage: for each
    outage of one store in which the driver lived, the rows written to the others."""

    seed: int
    hours: float = 0.0
    records: int = 0
    comparisons: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    outages: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    rows_in_outage: list[int] = field(default_factory=list)
    documents: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)

    def text(self) -> str:
        def counts(of: Counter[str]) -> str:
            return f"{of.total()}: {', '.join(f'{name} {n}' for name, n in sorted(of.items()))}"

        lines = [f"seed {self.seed}, {self.hours:.2f} hours, {self.records} records, {self.comparisons} comparisons"]
        lines += [f"kills {counts(self.kills)}", f"outages {counts(self.outages)}"]
        lines.append(f"compared at the end {counts(self.documents)}")
        if times := sorted(self.recoveries):
            lines.append(f"works again after {statistics.median(times):.0f} s (median), {times[-1]:.0f} s (longest)")
        if self.rows_in_outage:
            lines.append(f"the others took {statistics.median(self.rows_in_outage):.0f} rows in an outage (median)")
        return "\n".join([*lines, *self.mistakes, f"{len(self.mistakes)} mistakes"])


class Run:
    """Faults and comparisons, until all are done, a mistake is found or time is over."""

    def __init__(
        self, world: World, options: argparse.Namespace, summary: RunSummary, load: Load, checker: Checker
    ) -> None:
        self.world, self.options, self.summary, self.load, self.checker = world, options, summary, load, checker
        self.outages = outages(options.longest, options.stores)
        # A generator of its own, so that records do not depend on the faults.
        self.rng = random.Random(f"{options.seed}/breakers")
        self.plan = ["kill"] * options.kills + ["outage"] * options.outages
        self.rng.shuffle(self.plan)
        self.unhealed = 0

    def run(self) -> None:
        end = time.monotonic() + self.options.hours * 3600
        while not self.summary.mistakes and self.plan and time.monotonic() < end:
            self.load.flow()
            self._recover("start")
            for what in self.plan[: self.options.round]:
                if self.summary.mistakes or time.monotonic() > end:
                    break
                self.plan.pop(0)
                self._break(what)
            self._check()

    def _break(self, what: str) -> None:
        counts, faults = (self.summary.kills, KILLS) if what == "kill" else (self.summary.outages, self.outages)
        # The least frequent kind, so that all occur.
        least = min(counts[kind] for kind in faults)
        kind = self.rng.choice([kind for kind in faults if counts[kind] == least])
        time.sleep(self.rng.choice((self.rng.uniform(0, 2), self.rng.uniform(2, 8))))
        try:
            wait_until(self.world.has_driver_to_kill, what="a driver that can be killed")
            written, driver = self.world.written(), self.world.driver()
            description = faults[kind](self.world, self.rng)
        except AssertionError as e:
            self.summary.mistakes.append(f"{kind}: {e}")
            return
        counts[kind] += 1
        if what == "outage" and driver and self.world.is_alive(driver):
            rows = {store: count - written[store] for store, count in self.world.written().items()}
            others = sum(count for store, count in rows.items() if not kind.startswith(store))
            self.summary.rows_in_outage.append(others)
            description += f", the others took {others} rows"
        # Half of the kills hit what has not recovered yet, but not many in a row: supervision waits ever longer.
        self.unhealed += 1
        seconds = None
        if what == "outage" or self.unhealed == UNHEALED or self.rng.random() < 0.5:
            seconds = self._recover(kind)
        description += f", works after {seconds:.0f} s" if seconds is not None else ""
        say(f"{self.summary.kills.total()}+{self.summary.outages.total()} {kind}: {description}")

    def _recover(self, kind: str) -> float | None:
        seconds, self.unhealed = self.world.wait_recovered(), 0
        if seconds is None:
            self.summary.mistakes.append(f"nothing works after {kind}: {self.world.states_text()}")
        elif kind != "start":
            self.summary.recoveries.append(round(seconds, 1))
        return seconds

    def _check(self) -> None:
        self.load.quiet()
        began = time.monotonic()
        if not self.world.wait_caught_up(CATCH_UP_TIMEOUT):
            self.summary.mistakes.append(f"not all is written after {CATCH_UP_TIMEOUT:g} s: {self.world.states_text()}")
        took = time.monotonic() - began
        wrong = self.checker.mistakes()
        self.summary.mistakes += wrong
        self.summary.comparisons += 1
        self.summary.records, self.summary.documents = self.load.sent, Counter(self.checker.compared)
        say(
            f"{self.load.sent} records, all through after {took:.0f} s, {self.checker.compared.total()} documents, "
            f"points and dead letters compared, {len(wrong)} mistakes"
        )


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    home = options.home.resolve()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    summary, began = RunSummary(options.seed), time.monotonic()
    # Who is told to end leaves nothing running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with start_platform(home, options.stores) as world:
            load = Load(world.broker.bootstrap, options.seed, options.rate)
            checker = Checker(world.broker.bootstrap, {name: part.url for name, part in world.stores.items()})
            load.start()
            try:
                Run(world, options, summary, load, checker).run()
            finally:
                load.stop()
                checker.close()
    except KeyboardInterrupt:
        say("ended before it was done")
    finally:
        summary.hours = (time.monotonic() - began) / 3600
        (home / "summary.json").write_text(json.dumps({**vars(summary), "text": summary.text()}, indent=1))
        print(summary.text(), flush=True)
    return 1 if summary.mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
