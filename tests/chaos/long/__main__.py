"""Injects faults into a platform for hours and compares all output, record by record: `make chaos`.

A run has rounds of faults under load; after each round only pulses are sent, and all output is checked. A run can be
ended at any time and is continued with the same `--home`.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.long import breakers
from tests.chaos.long.checker import STREAMS, Checker
from tests.chaos.long.traffic import Ledger, Traffic
from tests.chaos.long.world import State, World, start_platform

SHORTEST_GRACE = 45.0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.long", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--outages", type=int, default=30)
    parser.add_argument("--hours", type=float, default=8.0, help="the run ends after this time even if kills remain")
    parser.add_argument("--round", type=int, default=40, help="faults between two checks")
    parser.add_argument("--home", type=Path, default=Path(".penstock-chaos"), help="data and state of the run")
    parser.add_argument("--grace", type=float, default=120.0, help="grace of the streams, seconds; no outage is longer")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds within which all output must be written")
    parser.add_argument("--streams", default=",".join(STREAMS), help="only these, by name, with commas")
    parser.add_argument("--kinds", default="", help="only these kills, by name, with commas")
    parser.add_argument("--without-airflow", action="store_true", help="supervise drivers without Airflow")
    return parser.parse_args(argv)


class Run:
    """A run, or a part of it that another start continues."""

    def __init__(
        self, world: World, state: State, options: argparse.Namespace, checker: Checker, ledger: Ledger
    ) -> None:
        self.world, self.state, self.home = world, state, options.home
        self.checker, self.ledger, self.options = checker, ledger, options
        self.rng = random.Random(f"{state.seed}/{state.rounds}")
        self.kills = {k: b for k, b in breakers.KILLS.items() if not options.kinds or k in options.kinds.split(",")}
        self.outages = breakers.outages(max_seconds=state.grace - 45)
        self.end = time.monotonic() + options.hours * 3600

    def remaining(self) -> tuple[int, int]:
        """Numbers of kills and outages that remain."""
        kills, outages = (sum(counts.values()) for counts in (self.state.kills, self.state.outages))
        return self.options.kills - kills, self.options.outages - outages

    def rounds(self) -> None:
        self.traffic = self._start_traffic()
        while not self.state.mistakes and max(self.remaining()) > 0 and time.monotonic() < self.end:
            self.round()

    def _start_traffic(self) -> Traffic:
        traffic = Traffic(
            self.world.broker.bootstrap, hash((self.state.seed, self.state.next)), self.state.next, self.state.grace
        )
        # Far above the numbers that an earlier start may have sent and not saved.
        traffic.next += 100_000 if self.state.next > 1 else 0
        traffic.start()
        return traffic

    def round(self) -> None:
        self.ledger.start()
        self._recover("start")
        if self._wait_watermarks():
            self.traffic.late = True
        for _ in range(self.options.round):
            kills, outages = self.remaining()
            if self.state.mistakes or max(kills, outages) <= 0 or time.monotonic() > self.end:
                break
            self._break(outage=outages > 0 and self.rng.random() * (kills + outages) < outages)
        self.ledger.stop()
        self._check()
        self.state.rounds += 1
        self._save()
        self.traffic.stop()
        if not self.state.mistakes and max(self.remaining()) > 0:
            self.traffic = self._start_traffic()

    def _wait_watermarks(self) -> bool:
        deadline = time.monotonic() + 90
        while not self.world.watermarks_are_recent(self.state.grace):
            if time.monotonic() > deadline:
                return False
            time.sleep(1)
        return True

    def _break(self, *, outage: bool) -> None:
        kinds, counts = (self.outages, self.state.outages) if outage else (self.kills, self.state.kills)
        # The least frequent kind, so that all occur.
        least = min(counts.get(kind, 0) for kind in kinds)
        kind = self.rng.choice([kind for kind in kinds if counts.get(kind, 0) == least])
        time.sleep(self.rng.choice((0.0, self.rng.uniform(0, 3), self.rng.uniform(3, 15))))
        try:
            description = kinds[kind](self.world, self.rng)
            if kind != "capture" and "capture" in self.kills and self.rng.random() < 0.5:
                description += f"; the captures' driver: {breakers.kill_or_pause_captures(self.world, self.rng)}"
                self.state.kills["capture"] = self.state.kills.get("capture", 0) + 1
        except AssertionError as e:
            self.state.mistakes.append(f"{kind}: {e}")
            description = str(e)
        counts[kind] = counts.get(kind, 0) + 1
        must_recover = outage or self.rng.random() < 0.5
        seconds = self._recover(kind) if must_recover else None
        remaining = sum(self.state.kills.values()), sum(self.state.outages.values())
        after = f", works after {seconds:.0f} s" if seconds is not None else ""
        print(f"{time.strftime('%H:%M:%S')} {remaining[0]}+{remaining[1]} {kind}: {description}{after}", flush=True)
        self._save()

    def _recover(self, what: str) -> float | None:
        seconds = self.world.wait_recovered()
        if seconds is None:
            self.state.mistakes.append(f"nothing works {what and f'after {what}'}: {self.world.states_text()}")
        elif what != "start":
            self.state.recoveries.append(round(seconds, 1))
        return seconds

    def _check(self) -> None:
        """Wait until all output is written and compare it; not longer than open windows take to close."""
        horizon = self.traffic.quiet()
        self._recover("start")
        table = self.ledger.rows()
        started_at, deadline = time.monotonic(), time.monotonic() + self.state.grace + self.options.timeout
        while mistakes := self.checker.mistakes(horizon, table):
            if time.monotonic() > deadline:
                break
            time.sleep(5)
        # A duplicate may be written a moment later.
        time.sleep(5)
        mistakes = mistakes or self.checker.mistakes(horizon, table)
        self.state.mistakes += mistakes
        self.state.mistakes += [f"not acknowledged: {text}" for text in self.traffic.failed[:3]]
        self.state.records = self.checker.records
        compared = sum(self.checker.records.values())
        print(
            f"{time.strftime('%H:%M:%S')} round {self.state.rounds + 1}: {compared} records compared, "
            f"{len(mistakes)} mistakes, all written after {time.monotonic() - started_at:.0f} s",
            flush=True,
        )
        for text in mistakes:
            print(f"  {text}", flush=True)

    def _save(self) -> None:
        self.state.next = self.traffic.next
        self.state.save(self.home)


def summary(state: State) -> str:
    times = sorted(state.recoveries)
    lines = [
        f"seed {state.seed}, {state.rounds} rounds, {state.hours:.1f} hours",
        f"{sum(state.kills.values())} kills: {', '.join(f'{k} {n}' for k, n in sorted(state.kills.items()))}",
        f"{sum(state.outages.values())} outages: {', '.join(f'{k} {n}' for k, n in sorted(state.outages.items()))}",
        f"records: {', '.join(f'{k} {n}' for k, n in sorted(state.records.items()))}",
    ]
    if times:
        lines.append(f"works again after {statistics.median(times):.0f} s (median), {times[-1]:.0f} s (longest)")
    return "\n".join([*lines, *state.mistakes, f"{len(state.mistakes)} mistakes"])


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    options.home = options.home.resolve()
    options.home.mkdir(parents=True, exist_ok=True)
    state = State.of(options.home, options.seed, max(options.grace, SHORTEST_GRACE), options.streams.split(","))
    started_at = time.monotonic()
    # SIGTERM ends the run as Ctrl-C does, with all its processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ledgers: list[Ledger] = []

    def prepare() -> None:
        ledgers.append(Ledger(state.ports[1], state.seed + state.rounds))
        ledgers[0].make()

    try:
        with start_platform(
            options.home, state, airflow=not options.without_airflow, prepare_database=prepare
        ) as world:
            checker = Checker(world.broker.bootstrap, state.streams)
            Run(world, state, options, checker, ledgers[0]).rounds()
            checker.topics.close()
    except KeyboardInterrupt:
        print("ended; run again with the same --home to continue", flush=True)
    finally:
        state.hours += (time.monotonic() - started_at) / 3600
        state.save(options.home)
        (options.home / "summary.json").write_text(json.dumps({**vars(state), "text": summary(state)}, indent=1))
        print(summary(state), flush=True)
    return 1 if state.mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
