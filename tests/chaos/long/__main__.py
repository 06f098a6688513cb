"""Breaks a whole platform for hours and compares all it wrote, record by record: `make chaos`.

A run goes in rounds of breakers under load; after each round only pulses flow, and everything is checked. It can be
ended at any time and goes on where it was with the same `--home`.
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


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.long", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--outages", type=int, default=30)
    parser.add_argument("--hours", type=float, default=8.0, help="it ends at this time even if not all is done")
    parser.add_argument("--round", type=int, default=40, help="breakers between two checks")
    parser.add_argument("--home", type=Path, default=Path(".penstock-chaos"), help="data, and what is known so far")
    parser.add_argument("--grace", type=float, default=120.0, help="of the streams, seconds; no outage is longer")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds until all that was sent must be out")
    parser.add_argument("--streams", default=",".join(STREAMS), help="only these, by name, with commas")
    parser.add_argument("--kinds", default="", help="only these kills, by name, with commas")
    parser.add_argument("--without-airflow", action="store_true", help="supervise drivers without Airflow")
    return parser.parse_args(given)


class Run:
    """One sitting of a run."""

    def __init__(self, world: World, state: State, given: argparse.Namespace, checker: Checker, ledger: Ledger) -> None:
        self.world, self.state, self.home = world, state, given.home
        self.checker, self.ledger, self.given = checker, ledger, given
        self.chance = random.Random(f"{state.seed}/{state.rounds}")
        self.kills = {k: b for k, b in breakers.KILLS.items() if not given.kinds or k in given.kinds.split(",")}
        self.outages = breakers.outages(max_seconds=state.grace - 45)
        self.end = time.monotonic() + given.hours * 3600

    def left(self) -> tuple[int, int]:
        """Kills and outages to do."""
        kills, outages = (sum(found.values()) for found in (self.state.kills, self.state.outages))
        return self.given.kills - kills, self.given.outages - outages

    def rounds(self) -> None:
        self.traffic = self._traffic()
        while not self.state.mistakes and max(self.left()) > 0 and time.monotonic() < self.end:
            self.round()

    def _traffic(self) -> Traffic:
        found = Traffic(
            self.world.broker.bootstrap, hash((self.state.seed, self.state.next)), self.state.next, self.state.grace
        )
        # Far behind what an earlier sitting may have sent and not noted.
        found.next += 100_000 if self.state.next > 1 else 0
        found.start()
        return found

    def round(self) -> None:
        self.ledger.start()
        self._recover("start")
        if self._timely():
            self.traffic.late = True
        for _ in range(self.given.round):
            kills, outages = self.left()
            if self.state.mistakes or max(kills, outages) <= 0 or time.monotonic() > self.end:
                break
            self._break(outage=outages > 0 and self.chance.random() * (kills + outages) < outages)
        self.ledger.stop()
        self._check()
        self.state.rounds += 1
        self._save()
        self.traffic.stop()
        if not self.state.mistakes and max(self.left()) > 0:
            self.traffic = self._traffic()

    def _timely(self) -> bool:
        deadline = time.monotonic() + 90
        while not self.world.watermarks_are_recent(self.state.grace):
            if time.monotonic() > deadline:
                return False
            time.sleep(1)
        return True

    def _break(self, *, outage: bool) -> None:
        kinds, counts = (self.outages, self.state.outages) if outage else (self.kills, self.state.kills)
        # The kind that was tried least, so that none is left out.
        least = min(counts.get(kind, 0) for kind in kinds)
        kind = self.chance.choice([kind for kind in kinds if counts.get(kind, 0) == least])
        time.sleep(self.chance.choice((0.0, self.chance.uniform(0, 3), self.chance.uniform(3, 15))))
        try:
            said = kinds[kind](self.world, self.chance)
            if kind != "capture" and "capture" in self.kills and self.chance.random() < 0.5:
                said += f"; the captures' driver: {breakers.kill_or_pause_captures(self.world, self.chance)}"
                self.state.kills["capture"] = self.state.kills.get("capture", 0) + 1
        except AssertionError as e:
            self.state.mistakes.append(f"{kind}: {e}")
            said = str(e)
        counts[kind] = counts.get(kind, 0) + 1
        again = outage or self.chance.random() < 0.5
        seconds = self._recover(kind) if again else None
        left = sum(self.state.kills.values()), sum(self.state.outages.values())
        after = f", works after {seconds:.0f} s" if seconds is not None else ""
        print(f"{time.strftime('%H:%M:%S')} {left[0]}+{left[1]} {kind}: {said}{after}", flush=True)
        self._save()

    def _recover(self, what: str) -> float | None:
        seconds = self.world.wait_recovered()
        if seconds is None:
            self.state.mistakes.append(f"nothing works {what and f'after {what}'}: {self.world.states_text()}")
        elif what != "start":
            self.state.recoveries.append(round(seconds, 1))
        return seconds

    def _check(self) -> None:
        """Wait until all that was sent is out, and no longer than time takes to close what is open."""
        horizon = self.traffic.quiet()
        self._recover("start")
        table = self.ledger.rows()
        began, deadline = time.monotonic(), time.monotonic() + self.state.grace + self.given.patience
        while found := self.checker.mistakes(horizon, table):
            if time.monotonic() > deadline:
                break
            time.sleep(5)
        # What is sent twice may be sent a moment later.
        time.sleep(5)
        found = found or self.checker.mistakes(horizon, table)
        self.state.mistakes += found
        self.state.mistakes += [f"no verdict: {text}" for text in self.traffic.failed[:3]]
        self.state.records = self.checker.records
        compared = sum(self.checker.records.values())
        print(
            f"{time.strftime('%H:%M:%S')} round {self.state.rounds + 1}: {compared} records compared, "
            f"{len(found)} mistakes, all out after {time.monotonic() - began:.0f} s",
            flush=True,
        )
        for text in found:
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


def main(given: Sequence[str] | None = None) -> int:
    asked = arguments(given)
    asked.home = asked.home.resolve()
    asked.home.mkdir(parents=True, exist_ok=True)
    state = State.of(asked.home, asked.seed, max(asked.grace, SHORTEST_GRACE), asked.streams.split(","))
    began = time.monotonic()
    # Who is told to end leaves nothing running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ledgers: list[Ledger] = []

    def prepare() -> None:
        ledgers.append(Ledger(state.ports[1], state.seed + state.rounds))
        ledgers[0].make()

    try:
        with start_platform(asked.home, state, airflow=not asked.without_airflow, prepare_database=prepare) as world:
            checker = Checker(world.broker.bootstrap, state.streams)
            Run(world, state, asked, checker, ledgers[0]).rounds()
            checker.topics.close()
    except KeyboardInterrupt:
        print("ended; the same --home goes on from here", flush=True)
    finally:
        state.hours += (time.monotonic() - began) / 3600
        state.save(asked.home)
        (asked.home / "summary.json").write_text(json.dumps({**vars(state), "text": summary(state)}, indent=1))
        print(summary(state), flush=True)
    return 1 if state.mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
