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
from tests.chaos.sinks.world import KILLS, LONGEST, STORES, World, outages, started
from tests.support.wait import wait_until

# Seconds until all that was sent must be out.
PATIENCE = 600.0
UNHEALED = 3


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.sinks", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--outages", type=int, default=20)
    parser.add_argument("--hours", type=float, default=4.0, help="it ends at this time even if not all is done")
    parser.add_argument("--round", type=int, default=10, help="breakers between two comparisons")
    parser.add_argument("--rate", type=float, default=25.0, help="records a second")
    parser.add_argument("--longest", type=float, default=LONGEST, help="seconds that a store is away at most")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--home", type=Path, default=Path(".penstock-chaos") / "sinks")
    return parser.parse_args(given)


@dataclass
class Found:
    """What a run came to. recoveries: seconds; documents: compared at the end, by sink; meanwhile: of outages of one
    store in which the driver lived, how many rows the others took."""

    seed: int
    hours: float = 0.0
    records: int = 0
    comparisons: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    outages: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    meanwhile: list[int] = field(default_factory=list)
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
        if self.meanwhile:
            lines.append(f"the others took {statistics.median(self.meanwhile):.0f} rows in an outage (median)")
        return "\n".join([*lines, *self.mistakes, f"{len(self.mistakes)} mistakes"])


class Run:
    """Breakers and comparisons, until all is done, something is wrong or time is over."""

    def __init__(self, world: World, given: argparse.Namespace, found: Found, load: Load, checker: Checker) -> None:
        self.world, self.given, self.found, self.load, self.checker = world, given, found, load, checker
        self.outages = outages(given.longest, given.stores)
        # Of its own, so that records do not depend on what is broken when.
        self.chance = random.Random(f"{given.seed}/breakers")
        self.plan = ["kill"] * given.kills + ["outage"] * given.outages
        self.chance.shuffle(self.plan)
        self.unhealed = 0

    def run(self) -> None:
        end = time.monotonic() + self.given.hours * 3600
        while not self.found.mistakes and self.plan and time.monotonic() < end:
            self.load.flow()
            self._recover("start")
            for what in self.plan[: self.given.round]:
                if self.found.mistakes or time.monotonic() > end:
                    break
                self.plan.pop(0)
                self._break(what)
            self._check()

    def _break(self, what: str) -> None:
        counts, ways = (self.found.kills, KILLS) if what == "kill" else (self.found.outages, self.outages)
        # The kind that was tried least, so that none is left out.
        least = min(counts[kind] for kind in ways)
        kind = self.chance.choice([kind for kind in ways if counts[kind] == least])
        time.sleep(self.chance.choice((self.chance.uniform(0, 2), self.chance.uniform(2, 8))))
        try:
            wait_until(self.world.killable, what="a driver that can be killed")
            written, driver = self.world.written(), self.world.driver()
            said = ways[kind](self.world, self.chance)
        except AssertionError as e:
            self.found.mistakes.append(f"{kind}: {e}")
            return
        counts[kind] += 1
        if what == "outage" and driver and self.world.lives(driver):
            rows = {store: count - written[store] for store, count in self.world.written().items()}
            others = sum(count for store, count in rows.items() if not kind.startswith(store))
            self.found.meanwhile.append(others)
            said += f", the others took {others} rows"
        # Half of the kills hit what has not recovered yet, but not many in a row: supervision waits ever longer.
        self.unhealed += 1
        seconds = None
        if what == "outage" or self.unhealed == UNHEALED or self.chance.random() < 0.5:
            seconds = self._recover(kind)
        said += f", works after {seconds:.0f} s" if seconds is not None else ""
        say(f"{self.found.kills.total()}+{self.found.outages.total()} {kind}: {said}")

    def _recover(self, kind: str) -> float | None:
        seconds, self.unhealed = self.world.wait_recovered(), 0
        if seconds is None:
            self.found.mistakes.append(f"nothing works after {kind}: {self.world.states_text()}")
        elif kind != "start":
            self.found.recoveries.append(round(seconds, 1))
        return seconds

    def _check(self) -> None:
        self.load.quiet()
        began = time.monotonic()
        if not self.world.through(PATIENCE):
            self.found.mistakes.append(f"not all is through after {PATIENCE:g} s: {self.world.states_text()}")
        took = time.monotonic() - began
        wrong = self.checker.mistakes()
        self.found.mistakes += wrong
        self.found.comparisons += 1
        self.found.records, self.found.documents = self.load.sent, Counter(self.checker.compared)
        say(
            f"{self.load.sent} records, all through after {took:.0f} s, {self.checker.compared.total()} documents, "
            f"points and dead letters compared, {len(wrong)} mistakes"
        )


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main(given: Sequence[str] | None = None) -> int:
    asked = arguments(given)
    home = asked.home.resolve()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    found, began = Found(asked.seed), time.monotonic()
    # Who is told to end leaves nothing running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with started(home, asked.stores) as world:
            load = Load(world.broker.bootstrap, asked.seed, asked.rate)
            checker = Checker(world.broker.bootstrap, {name: part.url for name, part in world.stores.items()})
            load.start()
            try:
                Run(world, asked, found, load, checker).run()
            finally:
                load.stop()
                checker.close()
    except KeyboardInterrupt:
        say("ended before it was done")
    finally:
        found.hours = (time.monotonic() - began) / 3600
        (home / "summary.json").write_text(json.dumps({**vars(found), "text": found.text()}, indent=1))
        print(found.text(), flush=True)
    return 1 if found.mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
